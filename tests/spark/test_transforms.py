"""The pure steps, on frames with the Kafka source's columns."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from halfbridge.serde.headers import BORN_TIMESTAMP, TRANSACTION_ID, Headers, real_headers
from halfbridge.spark_jobs.reading.wire import rows_per_transaction, with_transaction_id

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
    rows = with_transaction_id(frame).orderBy("offset").collect()
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


def test_contract_of_with_transaction_id(spark: SparkSession) -> None:
    """Seven columns of the source and the id, in this order; timestampType is left out."""
    frame = with_transaction_id(records(spark, None))
    assert frame.columns == [
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
        "transaction_id",
    ]
    assert dict(frame.dtypes)["transaction_id"] == "string"


def test_rows_are_counted_per_transaction(spark: SparkSession) -> None:
    """Each id once with its rows; those without an id together under null."""
    a1, b2 = real_headers([], "a1", 5), real_headers([], "b2", 5)
    given = with_transaction_id(records(spark, a1, None, b2, a1, None, a1))
    counted = [tuple(row) for row in rows_per_transaction(given).collect()]
    assert sorted(counted, key=str) == [("a1", 3), ("b2", 1), (None, 2)]


def test_no_rows_no_counts(spark: SparkSession) -> None:
    """An empty frame gives an empty one of the same contract."""
    nothing = spark.createDataFrame([], KAFKA_SCHEMA)
    counted = rows_per_transaction(with_transaction_id(nothing))
    assert counted.collect() == []
    assertSchemaEqual(
        counted.schema,
        spark.createDataFrame([], "transaction_id string, row_count long not null").schema,
    )
