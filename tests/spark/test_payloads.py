"""Values as columns, by a given schema or a registry's; one that cannot be decoded says why."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from halfbridge.kafka.errors import RetriableError
from halfbridge.spark import AvroPayload, JsonPayload, RegistryPayload, decode_payload
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
SCHEMAS = {
    7: {"schema": json.dumps(V1)},
    8: {"schema": json.dumps(V2)},
    9: {"schema": json.dumps(JSON_ORDER), "schemaType": "JSON"},
    11: {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
    12: {"schema": json.dumps(V2), "references": [{"name": "a", "subject": "a", "version": 1}]},
}
SUBJECTS = {"orders-value": [9, 7, 8], "json-value": [7, 9], "proto-value": [11], "parts": [7, 12]}


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
            ("proto-value", "is PROTOBUF"),
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
