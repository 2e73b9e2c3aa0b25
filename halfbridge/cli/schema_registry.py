"""Keys and values that were written with a schema registry, as JSON (Confluent's wire format).

Such bytes begin with a zero byte and the schema's id, a big-endian int of 32 bits. Avro and JSON
Schema are decoded; Protobuf is not.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import urllib.error
import urllib.request
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import click

REGISTRY_VARIABLE = "HALFBRIDGE_SCHEMA_REGISTRY"
# An operator waits for the answers: of a registry that is there, each takes milliseconds.
ANSWER_S = 5.0
SCHEMA_BYTES_MAX = 1 << 20  # the largest record that a registry's own topic holds by default
SCHEMAS_MAX = 100  # 100 MiB at most; a command meets a few
_HEAD = struct.Struct(">bI")
_NOT_FOUND = 404  # RFC 9110: no schema has the number

registry_option = click.option(
    "--schema-registry",
    envvar=REGISTRY_VARIABLE,
    default=None,
    metavar="URL",
    help="With --payload: decode records with the schemas of this registry. Give a URL"
    f" with a password in the variable. [{REGISTRY_VARIABLE}]",
)


class SchemaRegistry:
    """Decodes by the schemas of one registry; each is asked for once.

    User and password in the URL are sent as basic authentication.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.ClickException("--schema-registry: wanted http://HOST:PORT, or https")
        place = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self._headers = {}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"
        self._schemas: dict[int, dict[str, Any] | None] = {}

    def text_of(self, data: bytes | None) -> str | None:
        """Return a key or value as JSON; None if no schema of the registry fits."""
        if data is None or len(data) < _HEAD.size or data[0]:
            return None
        _, number = _HEAD.unpack_from(data)
        schema = self.schema(number)
        if schema is None:
            return None
        try:
            return json.dumps(_decoded(schema, data[_HEAD.size :]), ensure_ascii=False, default=str)
        except Exception:  # noqa: BLE001 (a stranger's bytes: fastavro raises whatever it meets)
            return None

    def schema(self, number: int) -> dict[str, Any] | None:
        """Return the registry's answer about a schema; None: it has no such schema."""
        if number not in self._schemas:
            if len(self._schemas) >= SCHEMAS_MAX:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[number] = self._asked(number)
        return self._schemas[number]

    def _asked(self, number: int) -> dict[str, Any] | None:
        request = urllib.request.Request(  # noqa: S310 (http or https, see above)
            f"{self._url}/schemas/ids/{number}", headers=self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310 (as above)
                found = json.loads(answer.read(SCHEMA_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    return None
            raise click.ClickException(f"the schema registry answers {error.code}") from error
        except (OSError, ValueError) as error:
            why = re.sub("^<urlopen error (.*)>$", r"\1", str(error))
            raise click.ClickException(f"the schema registry does not answer: {why}") from error
        return found if isinstance(found, dict) else None


def _decoded(schema: dict[str, Any], body: bytes) -> Any:
    kind = schema.get("schemaType", "AVRO")
    if kind == "JSON":
        return json.loads(body)
    if kind != "AVRO":
        raise ValueError(kind)
    import fastavro  # imported here: few commands need it

    parsed = fastavro.parse_schema(json.loads(schema["schema"]))
    return fastavro.schemaless_reader(BytesIO(body), parsed)
