"""Values of a Protobuf schema as JSON, by what registries answer about such schemas."""

import base64
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from google.type.money_pb2 import Money

from halfbridge.cli.schema_registry import PayloadTexts
from halfbridge.kafka.protobuf_schemas import FILES_MAX
from tests.kit.schema_registry import Registry, registry_of, written

pytestmark = pytest.mark.process

LINE = 'syntax = "proto3"; package shop; message Line { string item = 1; int32 shirts = 2; }'
ORDER = """
syntax = "proto3";
package shop;
import "shop/line.proto";
import "google/protobuf/timestamp.proto";
message Order {
  message Note { string text = 1; }
  repeated Line lines = 1;
  google.protobuf.Timestamp placed_at = 2;
}
message Parcel { Order.Note note = 1; }
"""
MONEY = FileDescriptorProto()
Money.DESCRIPTOR.file.CopyToProto(MONEY)


def schema(text: str, *references: str) -> dict[str, Any]:
    """Return a registry's answer; a reference has the name of its subject."""
    named = [{"name": each, "subject": each, "version": 1} for each in references]
    return {"schema": text, "schemaType": "PROTOBUF", "references": named}


def serialized(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


SCHEMAS = {
    1: schema(LINE),
    2: schema(ORDER, "shop/line.proto"),
    3: schema(serialized(MONEY)),
    4: schema(ORDER),
    5: schema(ORDER.replace("shop/line.proto", "../line.proto"), "../line.proto"),
    6: schema('syntax = "proto3"; message {'),
    7: {"schema": "<xs/>", "schemaType": "XML"},
    8: schema(ORDER, "shop/line.proto", "struct.py"),
    9: schema(LINE, *(f"{number}.proto" for number in range(FILES_MAX))),
    11: schema(ORDER, *["shop/line.proto"] * FILES_MAX),
}
# Line(item="a hat", shirts=0), Order(lines=[it], placed_at=5 s), Note(text="soon"), Parcel(note=it)
A_LINE = b"\x0a\x05a hat"
AN_ORDER = b"\x0a\x07" + A_LINE + b"\x12\x02" + Timestamp(seconds=5).SerializeToString()
A_NOTE = b"\x0a\x04soon"
A_PARCEL = b"\x0a\x06" + A_NOTE
THE_ORDER = {"lines": [{"item": "a hat", "shirts": 0}], "placed_at": "1970-01-01T00:00:05Z"}


@pytest.fixture
def server() -> Iterator[Registry]:
    files = (
        "shop/line.proto",
        "../line.proto",
        "struct.py",
        *(f"{n}.proto" for n in range(FILES_MAX)),
    )
    subjects = {name: [1] for name in files}
    with registry_of(SCHEMAS, subjects) as made:
        yield made


@pytest.mark.parametrize(
    ("number", "body", "shown"),
    [
        pytest.param(1, b"\x00" + A_LINE, THE_ORDER["lines"][0], id="first"),
        pytest.param(2, b"\x02\x00" + AN_ORDER, THE_ORDER, id="first in the long form"),
        pytest.param(2, b"\x02\x02" + A_PARCEL, {"note": {"text": "soon"}}, id="second"),
        pytest.param(2, b"\x04\x00\x00" + A_NOTE, {"text": "soon"}, id="nested"),
        pytest.param(8, b"\x00" + AN_ORDER, THE_ORDER, id="beside a file named as a module"),
        pytest.param(
            3,
            b"\x00" + Money(currency_code="EUR", units=3).SerializeToString(),
            {"currency_code": "EUR", "units": "3", "nanos": 0},
            id="serialized by the registry",
        ),
    ],
)
def test_the_message_that_the_indexes_choose_is_decoded(
    server: Registry, number: int, body: bytes, shown: dict[str, Any]
) -> None:
    """By the schema and all that it imports, with the names of its fields."""
    text = PayloadTexts(server.url()).decoded(written(number, body)).text
    assert text is not None
    assert json.loads(text) == shown


def test_a_schema_is_compiled_once(server: Registry) -> None:
    """However many messages there are of it, and however many of its messages."""
    texts = PayloadTexts(server.url())
    assert texts.decoded(written(2, b"\x00" + AN_ORDER)).text is not None
    asked = len(server.asked)
    assert texts.decoded(written(2, b"\x02\x02" + A_PARCEL)).text is not None
    assert len(server.asked) == asked


def test_a_serialized_schema_needs_no_compiler(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a text says which package has one."""
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    texts = PayloadTexts(server.url())
    assert (
        texts.decoded(written(3, b"\x00")).text == '{"currency_code": "", "units": "0", "nanos": 0}'
    )
    data = written(1, b"\x00" + A_LINE)
    assert texts.decoded(data).text is None
    why = "schema 1: the registry has only its text; install grpcio-tools"
    assert texts.decoded(data).why_not == why


def test_a_file_is_asked_for_once(server: Registry) -> None:
    """However many files refer to it."""
    texts = PayloadTexts(server.url())
    assert texts.decoded(written(11, b"\x00" + AN_ORDER)).text is not None
    assert len([path for path, _ in server.asked if "subjects/" in path]) == 1


@pytest.mark.parametrize(
    ("number", "body", "why"),
    [
        pytest.param(1, b"\x00\x0a\x09a hat", "schema 1: .*", id="cut off"),
        pytest.param(1, b"", "schema 1: .*", id="without indexes"),
        pytest.param(1, b"\x02\x02" + A_LINE, "schema 1: .*", id="an index too high"),
        pytest.param(1, b"\xff" * 99, "schema 1: .*", id="no index"),
        pytest.param(4, b"\x00", "schema 4: shop/line.proto: File not found.*", id="no import"),
        pytest.param(5, b"\x00", "schema 5: it imports ../line.proto", id="outside"),
        pytest.param(6, b"\x00", "schema 6: schema.proto:1:.*", id="no schema"),
        pytest.param(7, b"\x00", "schema 7: XML is not decoded", id="another kind"),
        pytest.param(9, b"\x00", "schema 9: it has more than 100 files", id="too many files"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason(
    server: Registry, number: int, body: bytes, why: str
) -> None:
    """Damaged bytes, and schemas that are not whole."""
    texts = PayloadTexts(server.url())
    assert texts.decoded(written(number, body)).text is None
    found = texts.decoded(written(number, body)).why_not
    assert found is not None
    assert re.fullmatch(why, found, re.DOTALL)
