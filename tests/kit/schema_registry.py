"""A schema registry of a test's own, and bytes as its serializers write them."""

import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro

from halfbridge.testkit.ports import HOST
from tests.kit.http import answer_json

FAILS = 10  # the id for which it answers 500


class Registry(ThreadingHTTPServer):
    """Has schemas by id and ids by subject; keeps the paths and the credentials of requests."""

    def __init__(self, schemas: Mapping[int, Any], subjects: Mapping[str, list[int]]) -> None:
        super().__init__((HOST, 0), _Handler)
        self.schemas = dict(schemas)
        self.subjects = dict(subjects)
        self.asked: list[tuple[str, str | None]] = []

    def url(self, user: str = "") -> str:
        """Return its address, for a `user:password@`."""
        return f"http://{user}{HOST}:{self.server_port}"

    def answer(self, path: str) -> Any:
        """Return what it has at a path; None: nothing."""
        parts = urlsplit(path).path.strip("/").split("/")
        match [unquote(each) for each in parts]:
            case ["schemas", "ids", number]:
                return self.schemas.get(int(number))
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version]:
                number = self.subjects[subject][int(version) - 1]
                return {"id": number, "version": int(version), **self.schemas[number]}
        return None


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        """Answer one request."""
        self.server.asked.append((self.path, self.headers["Authorization"]))
        found = self.server.answer(self.path)
        is_broken = self.path == f"/schemas/ids/{FAILS}"
        answer_json(self, 500 if is_broken else 404 if found is None else 200, found)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def registry_of(
    schemas: Mapping[int, Any], subjects: Mapping[str, list[int]] | None = None
) -> Iterator[Registry]:
    """Serve these schemas for the time of the block."""
    with Registry(schemas, subjects or {}) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def written(number: int, body: bytes) -> bytes:
    """Return bytes as a serializer of the registry writes them."""
    return struct.pack(">bI", 0, number) + body


def avro(schema: Any, **fields: Any) -> bytes:
    """Return a record in Avro, without a frame."""
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), fields)
    return out.getvalue()
