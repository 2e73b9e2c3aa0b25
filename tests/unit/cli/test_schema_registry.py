"""Payloads that were written with a schema registry; the registry is a server of the test's."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import click
import fastavro
import pytest

from halfbridge.cli.schema_registry import SchemaRegistry
from halfbridge.testkit.ports import HOST

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "shirts", "type": "int"}]}
SCHEMAS = {
    7: {"schema": json.dumps(ORDER)},
    8: {"schema": "{}", "schemaType": "JSON"},
    9: {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
}


class Registry(ThreadingHTTPServer):
    """Has SCHEMAS, and the paths and the credentials that were asked with."""

    asked: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Registry

    def do_GET(self) -> None:
        """Return a schema; 404 where there is none, 500 for number 10."""
        self.server.asked.append((self.path, self.headers["Authorization"]))
        number = int(self.path.rpartition("/")[2])
        status = 500 if number == 10 else 200 if number in SCHEMAS else 404
        body = json.dumps(SCHEMAS.get(number, {})).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Registry]:
    """A registry."""
    with Registry((HOST, 0), Handler) as made:
        made.asked = []
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def written(number: int, body: bytes) -> bytes:
    """Return bytes as a serializer of the registry writes them."""
    return struct.pack(">bI", 0, number) + body


def order(shirts: int) -> bytes:
    """Return an order in Avro."""
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), {"shirts": shirts})
    return out.getvalue()


def test_avro_and_json_are_decoded_and_a_schema_is_asked_for_once(server: Registry) -> None:
    """With the user and the password of the URL, which its path does not show."""
    registry = SchemaRegistry(f"http://ada:p%40ss@{HOST}:{server.server_port}/")
    assert registry.text_of(written(7, order(2))) == '{"shirts": 2}'
    assert registry.text_of(written(7, order(3))) == '{"shirts": 3}'
    assert registry.text_of(written(8, b'{"a": [1]}')) == '{"a": [1]}'
    basic = "Basic YWRhOnBAc3M="
    assert server.asked == [("/schemas/ids/7", basic), ("/schemas/ids/8", basic)]


@pytest.mark.parametrize(
    "data",
    [None, b"", b"text that has no zero in front", written(9, b"\x08"), written(11, b"x")],
)
def test_what_no_schema_fits_is_left_as_it_is(server: Registry, data: bytes | None) -> None:
    """Other bytes, Protobuf, and a number that the registry does not know."""
    assert SchemaRegistry(f"http://{HOST}:{server.server_port}").text_of(data) is None


def test_damaged_bytes_are_left_as_they_are(server: Registry) -> None:
    """Too short for their schema."""
    registry = SchemaRegistry(f"http://{HOST}:{server.server_port}")
    assert registry.text_of(written(7, b"")) is None
    assert registry.text_of(written(8, b"{")) is None


def test_a_registry_that_fails_is_an_error(server: Registry) -> None:
    """In one line, without the password."""
    url = f"http://ada:secret@{HOST}:{server.server_port}"
    with pytest.raises(click.ClickException, match="answers 500"):
        SchemaRegistry(url).text_of(written(10, b""))
    with pytest.raises(click.ClickException, match="does not answer") as nobody:
        SchemaRegistry(f"http://ada:secret@{HOST}:1").text_of(written(7, b""))
    assert "secret" not in str(nobody.value.message)
    with pytest.raises(click.ClickException, match="wanted http://HOST:PORT"):
        SchemaRegistry("file:///etc/passwd")
