"""Values with given Avro schemas: decoded, or kept with the reason; never dropped."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import Row, SparkSession

from halfbridge.serde.avro import MARKER, schema_fingerprint
from halfbridge.spark_jobs.reading.schemas import (
    BROKEN_BODY,
    NOT_FRAMED,
    UNKNOWN_SCHEMA,
    WriterSchema,
    load_schema,
    with_payload,
)

pytestmark = pytest.mark.spark

V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": ["null", "string"], "default": None}],
}
V2 = {
    **V1,
    "fields": [*V1["fields"], {"name": "pieces", "type": "int", "default": 1}],
}
STRANGE = {"type": "record", "name": "Other", "fields": [{"name": "n", "type": "long"}]}


def body(schema: Any, **values: Any) -> bytes:
    """Return the Avro body of a record."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), values)
    return out.getvalue()


def single_object(schema: Any, **values: Any) -> bytes:
    """Return a value in single-object encoding."""
    return MARKER + schema_fingerprint(fastavro.parse_schema(schema)) + body(schema, **values)


def confluent(number: int, schema: Any, **values: Any) -> bytes:
    """Return a value in Confluent's frame."""
    return b"\x00" + number.to_bytes(4, "big") + body(schema, **values)


@pytest.fixture
def schemas(tmp_path: Path) -> tuple[WriterSchema, ...]:
    """Both versions under their fingerprints, and the first as Confluent's id 4,000,000,001."""
    for name, schema in (("v1.avsc", V1), ("v2.avsc", V2)):
        (tmp_path / name).write_text(json.dumps(schema))
    files = (f"4000000001={tmp_path}/v1.avsc", f"{tmp_path}/v1.avsc", f"{tmp_path}/v2.avsc")
    return tuple(load_schema(each) for each in files)


def decode(
    spark: SparkSession, schemas: tuple[WriterSchema, ...], *values: bytes | None
) -> list[Row]:
    """Return the rows of these values, in order."""
    frame = spark.createDataFrame(list(enumerate(values)), "n int, value binary")
    return with_payload(frame, schemas).orderBy("n").collect()


def test_values_come_out_as_the_newest_schema_says(
    spark: SparkSession, schemas: tuple[WriterSchema, ...]
) -> None:
    """Whichever schema and frame they were written with; a record of nulls is a record."""
    rows = decode(
        spark,
        schemas,
        single_object(V2, item="shirt", pieces=3),
        single_object(V1, item="hat"),
        confluent(4_000_000_001, V1, item="scarf"),
        single_object(V1, item=None),
    )
    assert [tuple(row["payload"]) for row in rows] == [
        ("shirt", 3),
        ("hat", 1),
        ("scarf", 1),
        (None, 1),
    ]
    assert [row["quarantine_reason"] for row in rows] == [None] * 4
    assert rows[2]["schema_name"] == "confluent:4000000001"


def test_a_record_of_nulls_is_not_taken_for_a_broken_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark gives a struct of nulls for both; here they are told apart."""
    (tmp_path / "v1.avsc").write_text(json.dumps(V1))
    known = (load_schema(str(tmp_path / "v1.avsc")),)
    null, broken = decode(
        spark, known, single_object(V1, item=None), single_object(V1, item="abc")[:-1]
    )
    assert tuple(null["payload"]) == (None,)
    assert null["quarantine_reason"] is None
    assert broken["payload"] is None
    assert broken["quarantine_reason"] == BROKEN_BODY + known[0].name


def test_what_cannot_be_decoded_is_kept_with_its_reason(
    spark: SparkSession, schemas: tuple[WriterSchema, ...]
) -> None:
    """Unknown fingerprint, unknown id, no frame, cut short: each its own reason, bytes kept."""
    strange = single_object(STRANGE, n=1)
    values = [
        strange,
        confluent(5, V1, item="x"),
        b'{"json": 1}',
        b"",
        MARKER + b"\x00" * 7,
        b"\x00\x00\x00\x00",
        single_object(V2, item="shirt", pieces=3)[:-3],
    ]
    rows = decode(spark, schemas, *values)
    assert [bytes(row["value"]) for row in rows] == values
    assert [row["payload"] for row in rows] == [None] * len(values)
    assert [row["quarantine_reason"] for row in rows] == [
        f"{UNKNOWN_SCHEMA}avro:{strange[2:10].hex()}",
        f"{UNKNOWN_SCHEMA}confluent:5",
        NOT_FRAMED,
        NOT_FRAMED,
        NOT_FRAMED,
        NOT_FRAMED,
        BROKEN_BODY + schemas[2].name,
    ]


def test_tombstones_are_well(spark: SparkSession, schemas: tuple[WriterSchema, ...]) -> None:
    """A null value has no schema and misses none."""
    (row,) = decode(spark, schemas, None)
    assert (row["schema_name"], row["payload"], row["quarantine_reason"]) == (None, None, None)
