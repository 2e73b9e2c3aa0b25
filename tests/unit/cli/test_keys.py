"""`halfbridge keys`: what it prints is a key file, and what it checks is told."""

import json
import re
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import click
import fastavro
import pytest
from click.testing import CliRunner

from halfbridge.checker.admin.doctor.logs import END_MS, key_problems
from halfbridge.cli.keys import keys
from halfbridge.cli.options import acting, confirm, who
from halfbridge.cli.schema_registry import SchemaRegistry
from halfbridge.serde.signing_keys import Role, load_key_file
from halfbridge.testkit.ports import HOST
from tests.kit.records import BORN_MS
from tests.kit.signing import a_key, a_ring, a_table, write_key_file


def run(*words: str, status: int = 0) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(keys, list(words), standalone_mode=False)
    assert (result.return_value or 0) == status, result.output
    assert result.exception is None
    return result.output


@pytest.mark.parametrize("algorithm", ["ed25519", "hmac-sha256"])
def test_new_keys_make_a_file(tmp_path: Path, algorithm: str) -> None:
    """The table of who signs signs, and the table of all others verifies."""
    text = run("new", "orders-1", "--role", "client", "--group", "orders", "--algorithm", algorithm)
    demand = run("demand", "--in", "1h", "--fresh", "5m")
    tables = re.split(r"(?m)^(?=\[\[)", text)[1:]
    rings = []
    for number, table in enumerate(tables):
        path = tmp_path / f"{number}.toml"
        path.write_text(f'installation = "shop"\n{table}\n{demand}')
        rings.append(load_key_file(path))
    key = rings[0].keys["orders-1"]
    assert (key.role, key.groups) == (Role.CLIENT, {"orders"})
    assert rings[-1].keys["orders-1"].is_signed(b"data", key.sign(b"data"))
    assert rings[-1].keys["orders-1"].can_sign == (algorithm == "hmac-sha256")
    assert rings[0].demands[0].fresh_ms == 300_000


def test_two_new_keys_differ() -> None:
    """Nothing of a key is guessed."""
    assert run("new", "a", "--role", "daemon") != run("new", "a", "--role", "daemon")


@pytest.mark.parametrize("words", [("--in", "9m"), ("--fresh", "59s")])
def test_a_demand_is_made_for_the_future(words: tuple[str, str]) -> None:
    """A demand that begins before every worker has it would doubt what was delivered."""
    result = CliRunner().invoke(keys, ["demand", *words])
    assert result.exit_code == 2
    assert "at least" in result.output


def test_a_file_is_checked(tmp_path: Path) -> None:
    """Each key and each demand has its line; secrets have none."""
    text = run("check", str(write_key_file(tmp_path / "keys.toml", a_table())))
    assert "key client-1: signs as client of *, hmac-sha256, from the beginning" in text
    assert "demanded of *, from the beginning" in text
    lacks = write_key_file(tmp_path / "lacks.toml", a_table(a_key("client")))
    run("check", str(lacks), status=1)


def test_a_key_that_ends_without_another_is_a_problem() -> None:
    """Two weeks before, if no key of its role goes on for its groups."""
    ends = a_key("client", valid_until_ms=BORN_MS + END_MS)
    others = [a_key("daemon"), a_key("operator")]
    (problem,) = key_problems(a_ring(ends, *others), BORN_MS)
    assert "key client-1 ends at" in problem
    assert key_problems(a_ring(ends, *others), BORN_MS - 1) == []
    follows = a_key("client", id="client-2", valid_from_ms=BORN_MS)
    assert key_problems(a_ring(ends, follows, *others), BORN_MS) == []
    gap = a_key("client", id="client-2", valid_from_ms=BORN_MS + END_MS + 1)
    assert len(key_problems(a_ring(ends, gap, *others), BORN_MS)) == 1


# --- who acts, why, and whether anybody was asked ------------------------------------------


@click.command()
@acting
def act(**values: Any) -> None:
    """Act."""
    click.echo(f"{who(values)}: {values['reason']}")
    click.echo(confirm("sure?", yes=values["yes"]))


def test_the_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says, or as `--actor` does."""
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "h7")
    assert CliRunner().invoke(act, ["--reason", "r", "--yes"]).output == "ada@h7: r\nTrue\n"
    given = CliRunner().invoke(act, ["--reason", "r", "--yes", "--actor", "bob"])
    assert given.output == "bob: r\nTrue\n"


def test_a_user_without_a_name_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as numbers."""

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert CliRunner().invoke(act, ["--reason", "r", "--yes"]).output.startswith("unknown@")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], "Missing option '--reason'"),
        (["--reason", " "], "must not be empty"),
        (["--reason", "x" * 1025], "at most 1024"),
        (["--reason", "r"], "standard input is no terminal; give --yes"),
    ],
)
def test_what_is_missing_is_reported(words: list[str], wanted: str) -> None:
    """Wrong usage, before anything is done."""
    result = CliRunner().invoke(act, words)
    assert result.exit_code == 2
    assert wanted in result.output


# --- payloads that were written with a schema registry; the registry is a server of the test's

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


@pytest.mark.process
def test_avro_and_json_are_decoded_and_a_schema_is_asked_for_once(server: Registry) -> None:
    """With the user and the password of the URL, which its path does not show."""
    registry = SchemaRegistry(f"http://ada:p%40ss@{HOST}:{server.server_port}/")
    assert registry.text_of(written(7, order(2))) == '{"shirts": 2}'
    assert registry.text_of(written(7, order(3))) == '{"shirts": 3}'
    assert registry.text_of(written(8, b'{"a": [1]}')) == '{"a": [1]}'
    basic = "Basic YWRhOnBAc3M="
    assert server.asked == [("/schemas/ids/7", basic), ("/schemas/ids/8", basic)]


@pytest.mark.process
@pytest.mark.parametrize(
    "data", [None, b"", b"text that has no zero in front", written(9, b"\x08"), written(11, b"x")]
)
def test_what_no_schema_fits_is_left_as_it_is(server: Registry, data: bytes | None) -> None:
    """Other bytes, Protobuf, and a number that the registry does not know."""
    assert SchemaRegistry(f"http://{HOST}:{server.server_port}").text_of(data) is None


@pytest.mark.process
def test_damaged_bytes_are_left_as_they_are(server: Registry) -> None:
    """Too short for their schema."""
    registry = SchemaRegistry(f"http://{HOST}:{server.server_port}")
    assert registry.text_of(written(7, b"")) is None
    assert registry.text_of(written(8, b"{")) is None


@pytest.mark.process
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
