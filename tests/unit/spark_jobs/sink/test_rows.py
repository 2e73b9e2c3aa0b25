"""Rows as Spark's own Kafka sink takes them, and their order-free hash."""

from itertools import combinations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from halfbridge.serde.headers import RESERVED
from halfbridge.spark_jobs.sink.errors import RowError
from halfbridge.spark_jobs.sink.rows import ContentHash, Row, check_schema, rows_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "headers": ArrayType(PAIR),
    "map": MapType(StringType(), BinaryType()),
}


def schema(text: str) -> StructType:
    """Return a schema as Spark hands it over, of `name type, name type`."""
    columns = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


@pytest.mark.parametrize(
    "columns",
    [
        "value binary",
        "value string, key string",
        "headers headers, partition int, topic string, value binary",
    ],
)
def test_what_sparks_sink_takes_is_taken(columns: str) -> None:
    """Any order of columns; value alone is enough."""
    check_schema(schema(columns), topic="orders")


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ("key binary", "t", "required attribute 'value' not found"),
        ("value binary", None, "topic option required"),
        ("value int", "t", "value attribute unsupported type int"),
        ("value binary, key bigint", "t", "key attribute unsupported type bigint"),
        ("value binary, partition bigint", "t", "partition attribute unsupported type bigint"),
        ("value binary, topic binary", "t", "topic attribute unsupported type binary"),
        ("value binary, headers map", "t", "headers attribute unsupported type"),
        ("value binary, amount int", "t", r"column amount is none of .*to_json"),
    ],
)
def test_other_schemas_are_refused(columns: str, topic: str | None, text: str) -> None:
    """Before anything runs, in the words of Spark's own sink."""
    with pytest.raises(RowError, match=text):
        check_schema(schema(columns), topic=topic)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    """Return an Arrow batch."""
    return pa.record_batch(list(columns.values()), names=list(columns))


def test_rows_are_byte_exact() -> None:
    """Null and empty are different things; text is UTF-8; headers keep order and repeats."""
    given = batch(
        key=pa.array(["ä", "", None]),
        value=pa.array([b"\xff\x00", b"", None], pa.binary()),
        partition=pa.array([2, None, 0], pa.int32()),
        headers=pa.array(
            [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None], HEADERS
        ),
    )
    assert list(rows_of(given, topic="orders")) == [
        ("orders", 2, "ä".encode(), b"\xff\x00", [("h", b"1"), ("h", None)]),
        ("orders", -1, b"", b"", []),
        ("orders", 0, None, None, []),
    ]


def test_the_option_topic_wins_over_the_column() -> None:
    """As in Spark's own sink; without the option each row goes where it says."""
    given = batch(value=pa.array([b"v", b"w"]), topic=pa.array(["a", "b"]))
    assert [row[0] for row in rows_of(given, topic="c")] == ["c", "c"]
    assert [row[0] for row in rows_of(given, topic=None)] == ["a", "b"]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_headers_are_refused(name: str) -> None:
    """The daemon would not deliver them."""
    pairs = pa.array([[{"key": name, "value": b"1"}]], HEADERS)
    with pytest.raises(RowError, match="reserved"):
        list(rows_of(batch(value=pa.array([b"v"]), headers=pairs), topic="t"))


def test_rows_that_can_go_nowhere_are_refused() -> None:
    """A null topic, a negative partition, a header without a name, or none at all."""
    value = pa.array([b"v"])
    nameless = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    with pytest.raises(RowError, match="null topic present in the data"):
        list(rows_of(batch(value=value, topic=pa.array([None], pa.string())), topic=None))
    with pytest.raises(RowError, match="below 0"):
        list(rows_of(batch(value=value, partition=pa.array([-2], pa.int32())), topic="t"))
    with pytest.raises(RowError, match="without a name"):
        list(rows_of(batch(value=value, headers=nameless), topic="t"))
    missing = pa.array([[None]], nameless.type)
    with pytest.raises(RowError, match="a header that is null"):
        list(rows_of(batch(value=value, headers=missing), topic="t"))


DIFFERENT: list[Row] = [
    ("t", -1, b"k", b"v", []),
    ("u", -1, b"k", b"v", []),
    ("t", 0, b"k", b"v", []),
    ("t", -1, b"kv", b"", []),
    ("t", -1, b"kv", None, []),
    ("t", -1, b"", b"kv", []),
    ("t", -1, None, b"kv", []),
    ("tk", -1, b"", b"v", []),
    ("t", -1, b"k", b"v", [("a", b"b")]),
    ("t", -1, b"k", b"v", [("a", None)]),
    ("t", -1, b"k", b"v", [("a", b"")]),
    ("t", -1, b"k", b"v", [("ab", b"")]),
    ("t", -1, b"k", b"v", [("a", b"b"), ("a", b"b")]),
]


def hashed(*rows: Row) -> str:
    """Return the hash of some rows."""
    content = ContentHash()
    for row in rows:
        content.add(row)
    return content.hex()


def test_different_rows_have_different_hashes() -> None:
    """However bytes move between key, value, topic and headers."""
    for one, other in combinations(DIFFERENT, 2):
        assert hashed(one) != hashed(other)


def test_order_and_cut_do_not_matter_but_repeats_do() -> None:
    """Tasks add up to the batch, in any order; a row twice is not a row once, nor none."""
    whole = hashed(*DIFFERENT)
    assert hashed(*reversed(DIFFERENT)) == whole
    parts = ContentHash()
    for rows in (DIFFERENT[:4], DIFFERENT[4:]):
        part = ContentHash()
        for row in rows:
            part.add(row)
        parts.add_sum(part.sum())
    assert parts.hex() == whole
    assert len({hashed(), hashed(DIFFERENT[0]), hashed(*DIFFERENT[:1] * 2)}) == 3


def test_the_hash_stays_the_same_for_ever() -> None:
    """It stands in manifests, and is compared after an upgrade."""
    assert hashed(*DIFFERENT) == "8f3cf8d9988eb60b5d06b74c1d86b99e"
