"""Values as columns, by a given schema or a registry's; one that cannot be decoded says why."""

import json
import sys
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession

from halfbridge.kafka.errors import RetriableError
from halfbridge.kafka.protobuf_schemas import pool_of, protobuf_schema
from halfbridge.kafka.schema_registry import SchemaRegistry
from halfbridge.spark import (
    AvroPayload,
    JsonPayload,
    ProtobufPayload,
    RegistryPayload,
    decode_payload,
)
from halfbridge.spark.payloads import NOT_FRAMED, Payload
from halfbridge.testkit.ports import HOST
from tests.kit.schema_registry import avro, registry_of, written
from tests.spark.marks import INTERPRETED

pytestmark = INTERPRETED

V1 = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": ["null", "string"]}]}
SHIRTS = {"name": "shirts", "type": "int", "default": 1}
V2 = {**V1, "fields": [*V1["fields"], SHIRTS]}
LIST = {"name": "lines", "type": {"type": "array", "items": "null"}}
V3 = {**V1, "fields": [LIST]}
JSON_ORDER = {"type": "object", "properties": {"shirts": {"type": "integer"}}}
HUGE = b"\xfe\xff\xff\xff\x0f"  # 2**31 - 1 as Avro writes a number
PROTO = 'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";'
PROTO_LINE = "message Line { string item = 1; int32 shirts = 2; }"
PROTO_KINDS = """
message Kinds {
  uint32 small = 1; uint64 large = 2; optional int64 count = 3; bytes raw = 4; Size size = 5;
  google.protobuf.Timestamp at = 6; Line line = 7; repeated Line lines = 8;
  map<string, Size> sizes = 9; repeated double rates = 10; bool is_paid = 11;
  map<uint64, string> names = 12;
}
enum Size { NONE = 0; LARGE = 1; }
message Tree { repeated Tree branches = 1; }
"""


def proto(*texts: str) -> dict[str, Any]:
    return {"schema": "".join((PROTO, *texts)), "schemaType": "PROTOBUF"}


SCHEMAS = {
    7: {"schema": json.dumps(V1)},
    8: {"schema": json.dumps(V2)},
    9: {"schema": json.dumps(JSON_ORDER), "schemaType": "JSON"},
    11: {"schema": "<xs/>", "schemaType": "XML"},
    20: proto("message Line { string item = 1; }"),
    21: proto("message {"),
    22: proto("message Other {}"),
    25: {"schema": "AAAA", "schemaType": "PROTOBUF"},  # base64, and no descriptor
    26: proto(),
    23: proto("message Head {}", PROTO_LINE),
    24: proto(PROTO_LINE, PROTO_KINDS),
    12: {"schema": json.dumps(V2), "references": [{"name": "a", "subject": "a", "version": 1}]},
}
SUBJECTS = {"orders-value": [9, 7, 8], "json-value": [7, 9], "xml-value": [11], "parts": [7, 12]}
SUBJECTS |= {"lines-value": [20, 21, 25, 22, 23], "empty-value": [26], "broken-value": [25]}


def decoded(spark: SparkSession, payload: Payload, *values: bytes | None) -> list[Any]:
    """Return payload and error of each value, as tuples."""
    rows = [(at, None if each is None else bytearray(each)) for at, each in enumerate(values)]
    frame = decode_payload(spark.createDataFrame(rows, "at int, value binary"), payload)
    assert frame.columns == ["at", "value", "payload", "payload_error"]
    return [
        (each.payload and tuple(each.payload), each.payload_error)
        for each in sorted(frame.collect(), key=lambda row: int(row["at"]))
    ]


def test_values_of_a_given_avro_schema(spark: SparkSession) -> None:
    """A record of nulls is a record; a length that no memory has is an error as any other."""
    error = "cannot be decoded with the given schema"
    assert decoded(
        spark,
        AvroPayload(json.dumps(V1)),
        *(avro(V1, item="hat"), avro(V1, item=None), None),
        *(b"", b"\x04", b"\x02" + HUGE + b"x"),
    ) == [(("hat",), None), ((None,), None), (None, None), *[(None, error)] * 3]
    lists = AvroPayload(json.dumps(V3), framed=True)
    assert decoded(spark, lists, written(5, b"\x00"), written(5, HUGE), b"\x00\x00") == [
        (([],), None),
        (None, error),
        (None, NOT_FRAMED),
    ]


def test_values_of_json(spark: SparkSession) -> None:
    """Only one whole object, in UTF-8, whose fields fit; others of its fields are left out."""
    good = ['{"a": 1, "b": {"c": [1]}, "d": 0}', ' {"b": null}\n']
    bad = [
        *('{"a": "no"}', '{"a": 1', '{"a": 1} tail', '{"a": 1},{"a": 2}', '{"a": 1}}', '{"a": 1}]'),
        *('{"a": 1}} tail }', "1] tail", '[{"a": 1}]', "null", "", '{"a": 1.5}', "{'a': 1}"),
        *("[" * 2000, '{"a": NaN}'),
    ]
    values = [*(each.encode() for each in (*good, *bad)), b'{"b": "\xff"}', None]
    error = (None, "cannot be decoded with the given schema")
    assert decoded(spark, JsonPayload("a BIGINT, b STRING"), *values) == [
        ((1, '{"c":[1]}'), None),
        ((None, None), None),
        *[error] * (len(bad) + 1),
        (None, None),
    ]


def test_a_registry_that_lacks_the_subject_is_the_callers_error(spark: SparkSession) -> None:
    """As is one whose last schema Spark has no function for here; one that is away is none."""
    frame = spark.createDataFrame([], "value binary")
    with registry_of(SCHEMAS, SUBJECTS) as server:
        for subject, says in (
            ("nothing", "has no subject nothing"),
            ("xml-value", "is XML"),
            ("parts", "refers to other schemas"),
            ("", "name the subject"),
        ):
            with pytest.raises(ValueError, match=says):
                decode_payload(frame, RegistryPayload(server.url(), subject))
    away = RegistryPayload(f"http://ada:secret@{HOST}:1", "orders-value")
    assert "secret" not in repr(away)
    with pytest.raises(RetriableError, match="does not answer"):
        decode_payload(frame, away)


def test_values_of_a_registry(spark: SparkSession) -> None:
    """As the last version says, whichever a value names; other ids and no frame are errors."""
    with registry_of(SCHEMAS, SUBJECTS) as server:
        orders = RegistryPayload(server.url(), "orders-value")
        assert decoded(
            spark,
            orders,
            *(written(7, avro(V1, item="hat")), written(8, avro(V2, item=None, shirts=2))),
            *(None, b"text", written(8, b"\x09"), written(9, b"{}"), written(2**32 - 1, b"")),
        ) == [
            (("hat", 1), None),
            ((None, 2), None),
            (None, None),
            (None, NOT_FRAMED),
            (None, "cannot be decoded with schema 8"),
            (None, "schema 9 is none of subject orders-value that is known"),
            (None, "schema 4294967295 is none of subject orders-value that is known"),
        ]
        assert decoded(
            spark,
            RegistryPayload(server.url(), "json-value"),
            *(written(9, b'{"shirts": 2}'), written(9, b'{"shirts": "x"}'), written(7, b"{}")),
        ) == [
            ((2,), None),
            (None, "cannot be decoded with schema 9"),
            (None, "schema 7 is none of subject json-value that is known"),
        ]


def test_values_of_a_given_protobuf_message(spark: SparkSession) -> None:
    """Each kind of field; a field that is not there is its default, or null where that differs."""
    with registry_of(SCHEMAS) as server:
        files = protobuf_schema(SchemaRegistry(server.url()), 24)
    kinds = GetMessageClass(pool_of(files).FindMessageTypeByName("shop.Kinds"))
    full = kinds(small=2**32 - 1, large=2**64 - 1, count=0, raw=b"\xff", size="LARGE", is_paid=True)
    full.at.FromDatetime(datetime(2026, 12, 1, tzinfo=timezone.utc))
    full.line.item = "hat"
    full.lines.add(item="shirt", shirts=2)
    full.sizes["a"] = 1
    full.rates.extend([0.5, 2])
    full.names[2**64 - 1] = "most"
    beyond = kinds()
    beyond.at.seconds = 10**15
    values = (
        *(full.SerializeToString(), b"", kinds(size=7).SerializeToString(), None),
        *(b"\x3a\x09", b"\x3a\x03\x0a\x01\xff", beyond.SerializeToString()),
    )
    payload = ProtobufPayload(files.SerializeToString(), "shop.Kinds")
    [whole, empty, unknown, *others] = decoded(spark, payload, *values)
    at = datetime(2026, 12, 1, tzinfo=timezone.utc).astimezone().replace(tzinfo=None)
    assert whole == (
        (
            *(2**32 - 1, Decimal(2**64 - 1), 0, bytearray(b"\xff"), "LARGE", at, ("hat", 0)),
            *([("shirt", 2)], {"a": "LARGE"}, [0.5, 2.0], True, {Decimal(2**64 - 1): "most"}),
        ),
        None,
    )
    assert empty == (
        (0, Decimal(0), None, bytearray(), "NONE", None, None, [], {}, [], False, {}),
        None,
    )
    assert unknown[0][4] == "7"
    assert others == [(None, None), *[(None, "cannot be decoded with the given schema")] * 3]


def test_values_of_protobuf_in_a_frame(spark: SparkSession) -> None:
    """The indexes behind the id choose the message, in either form of the first one."""
    with registry_of(SCHEMAS) as server:
        files = protobuf_schema(SchemaRegistry(server.url()), 24).SerializeToString()
    line = ProtobufPayload(files, "shop.Line", framed=True)
    hat = b"\x0a\x03hat"
    values = [written(1, front + hat) for front in (b"\x00", b"\x02\x00", b"\x02\x02", b"")]
    assert decoded(spark, line, *values, b"\x01") == [
        *[(("hat", 0), None)] * 2,
        *[(None, "cannot be decoded with the given schema")] * 2,
        (None, NOT_FRAMED),
    ]


def test_values_of_protobuf_schemas_of_a_registry(spark: SparkSession) -> None:
    """The last version decodes all; each says where the message is, and those without it are out.

    Versions that cannot be compiled or read are out, too.
    """
    unknown = "schema {} is none of subject lines-value that is known".format
    with registry_of(SCHEMAS, SUBJECTS) as server:
        lines = RegistryPayload(server.url(), "lines-value", message="shop.Line")
        assert decoded(
            spark,
            lines,
            *(written(20, b"\x00\x0a\x03hat"), written(23, b"\x02\x02\x0a\x03hat\x10\x02")),
            *(written(23, b"\x00"), written(21, b"\x00"), written(22, b"\x00"), None),
        ) == [
            (("hat", 0), None),
            (("hat", 2), None),
            (None, "cannot be decoded with schema 23"),
            (None, unknown(21)),
            (None, unknown(22)),
            (None, None),
        ]
        first = decode_payload(
            spark.createDataFrame([(written(23, b"\x00"),)], "value binary"),
            RegistryPayload(server.url(), "lines-value"),
        )
        assert first.schema["payload"].simpleString() == "payload:struct<>"
        assert [each.payload_error for each in first.collect()] == [None]


def test_protobuf_that_cannot_be_used_is_the_callers_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is not there, or contains itself; no descriptors; no package for them."""
    frame = spark.createDataFrame([], "value binary")
    with registry_of(SCHEMAS, SUBJECTS) as server:
        files = protobuf_schema(SchemaRegistry(server.url()), 24).SerializeToString()
        for payload, says in (
            (RegistryPayload(server.url(), "lines-value", message="shop.No"), "no message shop.No"),
            (RegistryPayload(server.url(), "empty-value"), "has no message"),
            (RegistryPayload(server.url(), "broken-value"), "cannot be read"),
            (ProtobufPayload(files, "shop.No"), "no message shop.No"),
            (ProtobufPayload(files, "google.protobuf.Timestamp", framed=True), "not in the last"),
            (ProtobufPayload(files, "shop.Tree"), "shop.Tree contains itself"),
            (ProtobufPayload(b"\xff", "shop.Line"), "cannot be used"),
        ):
            with pytest.raises(ValueError, match=says):
                decode_payload(frame, payload)
    monkeypatch.setitem(sys.modules, "halfbridge.spark.protobuf", None)
    monkeypatch.delattr("halfbridge.spark.protobuf", raising=False)
    with pytest.raises(ValueError, match="pip install protobuf"):
        decode_payload(frame, ProtobufPayload(files, "shop.Line"))
