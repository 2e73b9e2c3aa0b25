"""A REST catalog of Iceberg on this machine: what Iceberg's client asks for, over pyiceberg's SQL.

Nothing else answers requests of Spark's here: the one of Iceberg itself comes as an image only.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import CommitTableRequest, Table

from tests.kit.http import answer_json

# The exceptions with the status and the name that Iceberg's client knows.
_ERRORS = {
    CommitFailedException: (HTTPStatus.CONFLICT, "CommitFailedException"),
    TableAlreadyExistsError: (HTTPStatus.CONFLICT, "AlreadyExistsException"),
    NoSuchNamespaceError: (HTTPStatus.NOT_FOUND, "NoSuchNamespaceException"),
    NoSuchTableError: (HTTPStatus.NOT_FOUND, "NoSuchTableException"),
}

# What a client may leave out, and pyiceberg's model asks for.
_LEFT_OUT = {"location": None, "partition-spec": None, "write-order": None}


@contextmanager
def rest_catalog(directory: Path) -> Iterator[tuple[str, SqlCatalog]]:
    """Yield the address of a catalog, and the catalog itself."""
    uri = f"sqlite:///{directory}/catalog.db"
    catalog = SqlCatalog("rest", uri=uri, warehouse=f"file://{directory}/warehouse")

    class Handler(_Handler):
        tables = catalog

    # One request at a time, so the catalog needs no lock of its own.
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="iceberg-rest")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", catalog
        finally:
            server.shutdown()
            thread.join()
            catalog.close()


class _Handler(BaseHTTPRequestHandler):
    tables: SqlCatalog

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self, words: list[str], _: bytes) -> Any:
        match words:
            case ["config"]:
                return {"defaults": {}, "overrides": {}}
            case ["namespaces", namespace]:
                properties = self.tables.load_namespace_properties(namespace)
                return {"namespace": [namespace], "properties": properties}
            case ["namespaces", namespace, "tables", name]:
                return _loaded(self.tables.load_table((namespace, name)))
        raise NoSuchTableError("/".join(words))

    def _post(self, words: list[str], body: bytes) -> Any:
        match words:
            case ["namespaces", namespace, "tables"]:
                asked = CreateTableRequest.model_validate({**_LEFT_OUT, **json.loads(body)})
                table = self.tables.create_table(
                    (namespace, asked.name),
                    asked.table_schema,
                    partition_spec=asked.partition_spec or PartitionSpec(),
                    properties=asked.properties,
                )
                return _loaded(table)
            case ["namespaces", namespace, "tables", name]:
                identifier = {"namespace": [namespace], "name": name}  # which clients leave out
                commit = CommitTableRequest.model_validate(
                    {"identifier": identifier, **json.loads(body)}
                )
                table = self.tables.load_table((namespace, name))
                self.tables.commit_table(table, commit.requirements, commit.updates)
                return _loaded(self.tables.load_table((namespace, name)))
        return {}  # metrics

    def _answer(self, answer: Any) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        words = self.path.partition("?")[0].split("/")[2:]
        status, given = HTTPStatus.OK, None
        try:
            given = answer(words, body)
        except tuple(_ERRORS) as error:
            status, kind = _ERRORS[type(error)]
            given = {"error": {"message": str(error), "type": kind, "code": status}}
        answer_json(self, status, given)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _loaded(table: Table) -> Any:
    metadata = json.loads(table.metadata.model_dump_json(by_alias=True, exclude_none=True))
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
