"""The pure steps, on frames with the Kafka source's columns."""

import io
import json
from itertools import product
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from halfbridge.serde import protocol
from halfbridge.serde.avro import MARKER, schema_fingerprint
from halfbridge.serde.headers import BORN_TIMESTAMP, TRANSACTION_ID, Headers, real_headers
from halfbridge.serde.protocol import STATE_AFTER, Effect, State, effect_of
from halfbridge.serde.records import Op, OpKind, OpSource, new_op
from halfbridge.spark_jobs.reading import decisions
from halfbridge.spark_jobs.reading.schemas import (
    BROKEN_BODY,
    NOT_FRAMED,
    UNKNOWN_SCHEMA,
    WriterSchema,
    load_schema,
    with_payload,
)
from halfbridge.spark_jobs.reading.wire import with_identity

pytestmark = pytest.mark.spark
KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>"
)


def records(spark: SparkSession, *headers: Headers | None) -> DataFrame:
    """Return a frame as the Kafka source gives it, one row for each list of headers."""
    rows = [(b"k", b"v", "real", 0, offset, None, 0, each) for offset, each in enumerate(headers)]
    return spark.createDataFrame(rows, KAFKA_SCHEMA)


def ids(frame: DataFrame) -> list[str | None]:
    """Return the transaction ids in offset order."""
    rows = with_identity(frame).orderBy("offset").collect()
    return [row["transaction_id"] for row in rows]


def test_id_is_found_among_the_users_headers(spark: SparkSession) -> None:
    """User headers around it, repeated names and null values included, do not matter."""
    user: Headers = [("trace", b"\xff"), ("trace", None), ("empty", b"")]
    given = records(spark, real_headers(user, "a1", 5), real_headers([], "b2", 5))
    assert ids(given) == ["a1", "b2"]


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("trace", b"a1")],
        [(BORN_TIMESTAMP, b"5")],
        [(TRANSACTION_ID, None)],
        [(TRANSACTION_ID, b"")],
        [(TRANSACTION_ID, b"\xff\xfe")],
        [(TRANSACTION_ID.lower(), b"a1")],
    ],
)
def test_foreign_records_have_no_id(spark: SparkSession, headers: Headers | None) -> None:
    """No header, another one, an empty or a broken id: null, never an error."""
    assert ids(records(spark, headers)) == [None]


def test_the_daemons_header_wins(spark: SparkSession) -> None:
    """A record with the reserved name twice counts for the last one, which the daemon appends."""
    assert ids(records(spark, real_headers([(TRANSACTION_ID, b"forged")], "a1", 5))) == ["a1"]


# --- the protocol's table as columns says what the table says ------------------------------

AGES_MS = (-1, 0, 100)

# Append time of an op whose first half was appended at 1,000; -1: it has none.
TIMES_MS = (-1, 1_099, 1_100)


def _op(kind: OpKind, source: OpSource, age_ms: int = 0) -> Op:
    return new_op(
        transaction_id="t",
        timestamp=0,
        half_offset=0,
        producer_group="g",
        kind=kind,
        message_count=1,
        source=source,
        actor="",
        age_ms=age_ms,
    )


def test_every_kind_and_source_as_the_table_has_it(spark: SparkSession) -> None:
    """All kinds, sources and decisions in force: who decides, and what is a conflict."""
    decided = [
        (kind, STATE_AFTER[effect_of(_op(kind, OpSource.CHECKER), State.UNDECIDED)])
        for kind in OpKind
        if kind is not OpKind.UNKNOWN
    ]
    cases = list(product(OpKind, OpSource, decided))
    rows = [(kind.value, source.value, stands.value) for kind, source, (stands, _) in cases]
    frame = spark.createDataFrame(rows, "kind string, source string, stands string")
    kind, source, stands = F.col("kind"), F.col("source"), F.col("stands")
    decides = decisions.decides(kind, source)
    conflict = decides & decisions.contradicts(stands, kind, source)
    found = frame.select(decides.alias("decides"), conflict.alias("conflict")).collect()
    wanted = [
        (
            protocol.decision_of(_op(kind, source)) is not None,
            effect_of(_op(kind, source), state) is Effect.CONFLICT,
        )
        for kind, source, (_, state) in cases
    ]
    assert [tuple(row) for row in found] == wanted


def test_a_gap_is_none_as_the_protocol_has_it(spark: SparkSession) -> None:
    """All sources, lives and counts: whether a COMMIT delivers what is there."""
    cases = list(product(OpSource, (0, 1, 2), (-1, 0, 2)))
    frame = spark.createDataFrame(
        [(source.value, *numbers) for source, *numbers in cases],
        "source string, resume int, count int",
    )
    covers = decisions.covers_what_is_there(F.col("resume"), F.col("source"), F.col("count"))
    found = [row["covers"] for row in frame.select(covers.alias("covers")).collect()]
    assert found == [
        protocol.covers_what_is_there(
            _op(OpKind.COMMIT, source)._replace(resume_count=resume, message_count=count)
        )
        for source, resume, count in cases
    ]
    assert sum(found) == 2


def test_ages_are_proven_as_the_table_has_it(spark: SparkSession) -> None:
    """All kinds, sources, claims and append times: whether an op may take effect."""
    cases = list(product(OpKind, OpSource, AGES_MS, TIMES_MS, (-1, 1_000)))
    rows = [(kind.value, source.value, *numbers) for kind, source, *numbers in cases]
    schema = "kind string, source string, age long, op_ms long, first_ms long"
    frame = spark.createDataFrame(rows, schema)
    claimed_ms = decisions.claimed_age_ms(F.col("kind"), F.col("source"), F.col("age"))
    proven = decisions.proves_its_age(claimed_ms, F.col("op_ms"), F.col("first_ms"))
    found = [row["proven"] for row in frame.select(proven.alias("proven")).collect()]
    assert found == [
        protocol.proves_its_age(_op(kind, source, age_ms), op_ms, first_ms)
        for kind, source, age_ms, op_ms, first_ms in cases
    ]


# --- values with given Avro schemas: decoded, or kept with the reason; never dropped -------

V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": ["null", "string"], "default": None}],
}
V2 = {**V1, "fields": [*V1["fields"], {"name": "pieces", "type": "int", "default": 1}]}
A_LENGTH_OF_2_GB = b"\x02\xfe\xff\xff\xff\x0f"  # of the string in the union
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
    """Spark gives a struct of nulls for both; here they are distinguished."""
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
    """Unknown fingerprint, unknown id, no frame, broken: each its own reason, bytes kept."""
    strange = single_object(STRANGE, n=1)
    values = [
        strange,
        confluent(5, V1, item="x"),
        b'{"json": 1}',
        b"",
        MARKER + b"\x00" * 7,
        b"\x00\x00\x00\x00",
        single_object(V2, item="shirt", pieces=3)[:-3],
        single_object(V2, item="shirt", pieces=3)[:10] + A_LENGTH_OF_2_GB,
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
        BROKEN_BODY + schemas[2].name,
    ]


def test_tombstones_are_well(spark: SparkSession, schemas: tuple[WriterSchema, ...]) -> None:
    """A null value has no schema and misses none."""
    (row,) = decode(spark, schemas, None)
    assert (row["schema_name"], row["payload"], row["quarantine_reason"]) == (None, None, None)
