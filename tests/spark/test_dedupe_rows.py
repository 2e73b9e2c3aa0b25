"""Which rows say the same thing twice: against an oracle, and case by case."""

import random
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from halfbridge.serde.headers import MESSAGE_INDEX, real_headers
from halfbridge.spark_jobs.dedupe import SAME_MESSAGE, SAME_RECORD, dedupe, mark_duplicates

pytestmark = pytest.mark.spark

SCHEMA = (
    "topic string, partition int, offset long, timestamp timestamp,"
    " key binary, value binary, headers array<struct<key: string, value: binary>>,"
    " transaction_id string, quarantine_reason string, publish_date date, quarantined boolean"
)
Given = tuple[Any, ...]


def row(
    transaction_id: str | None,
    offset: int,
    value: bytes | None = b"v",
    *,
    at_s: int = 0,
    partition: int = 0,
    key: bytes | None = b"k",
    index: int = 0,
    quarantined: bool = False,
) -> Given:
    """Return one row of an ingested table."""
    time = datetime.fromtimestamp(1_760_000_000 + at_s, timezone.utc)
    reason = "why" if quarantined else None
    headers = tuple(real_headers([], transaction_id, 5, index)) if transaction_id else None
    return (
        *("orders", partition, offset, time, key, value, headers, transaction_id),
        *(reason, time.date(), quarantined),
    )


def mark(spark: SparkSession, *rows: Given) -> list[tuple[str | None, int | None]]:
    """Return (duplicate, message index) of each row, in the order given."""
    shuffled = [(number, *each) for number, each in enumerate(rows)]
    random.Random(len(rows)).shuffle(shuffled)
    frame = spark.createDataFrame(shuffled, f"n int, {SCHEMA}")
    marked = mark_duplicates(frame).orderBy("n").collect()
    assert len(marked) == len(rows)
    return [(each["duplicate"], each["message_index"]) for each in marked]


def test_the_index_is_that_of_the_header(spark: SparkSession) -> None:
    """A record without the header is message 0, wherever it is."""
    given = [row("a", 5, index=2), row("a", 2, index=1), row("a", 9, partition=1), row("b", 3)]
    assert mark(spark, *given) == [(None, 2), (None, 1), (None, 0), (None, 0)]


def test_equal_messages_of_one_transaction_are_kept(spark: SparkSession) -> None:
    """The user sent them all, to one partition or to two: their indices differ."""
    given = [row("a", 1), row("a", 2, index=1), row("a", 0, partition=1, index=2)]
    assert mark(spark, *given) == [(None, 0), (None, 1), (None, 2)]


def test_a_transaction_delivered_again_is_found_message_by_message(spark: SparkSession) -> None:
    """The first delivery is kept, whether the second has another publish time or not."""
    first = [row("a", 1), row("a", 2, index=1), row("a", 3, b"w", index=2)]
    again = [row("a", 7, at_s=90), row("a", 8, index=1), row("a", 9, b"w", at_s=90, index=2)]
    assert mark(spark, *again, *first) == [
        (SAME_MESSAGE, 0),
        (SAME_MESSAGE, 1),
        (SAME_MESSAGE, 2),
        (None, 0),
        (None, 1),
        (None, 2),
    ]


def test_the_same_record_ingested_twice(spark: SparkSession) -> None:
    """One stays, with or without a transaction: the one whose schema was known."""
    given = [row("a", 1, quarantined=True), row("a", 1), row(None, 2), row(None, 2)]
    marks = mark(spark, *given)
    assert marks[:2] == [(SAME_RECORD, 0), (None, 0)]
    assert sorted(marks[2:], key=str) == [(SAME_RECORD, None), (None, None)]


def test_what_is_not_byte_equal_is_no_duplicate(spark: SparkSession) -> None:
    """Null and empty differ; so do two records at one place of a topic that was created again."""
    given = [row("a", 1, None), row("a", 2, b"", at_s=5), row(None, 9, b"x"), row(None, 9, b"y")]
    assert [duplicate for duplicate, _ in mark(spark, *given)] == [None] * 4


def test_a_header_that_the_daemon_does_not_write_is_no_index(spark: SparkSession) -> None:
    """The row is kept, and its index is null."""
    forged = list(row("a", 1))
    forged[6] = ((MESSAGE_INDEX, b"01"),)
    assert mark(spark, tuple(forged)) == [(None, None)]


def test_a_day_that_python_does_not_know(spark: SparkSession, tmp_path: Path) -> None:
    """A producer may set its timestamps in microseconds, in the year 55,840, say."""
    bronze, silver = str(tmp_path / "bronze"), str(tmp_path / "silver")
    near = spark.createDataFrame([row("a", 1)], SCHEMA)
    far = spark.createDataFrame([row("b", 2), row("b", 2)], SCHEMA)
    far = far.withColumn("publish_date", F.expr("date_from_unix_date(19675925)"))
    near.union(far).write.partitionBy("publish_date", "quarantined").parquet(bronze)
    done = dedupe(spark, bronze, silver, "parquet")
    assert (done.rows_kept, done.days_written, done.days) == (2, 2, 2)
    assert dedupe(spark, bronze, silver, "parquet").days_written == 0


def test_records_of_other_producers_are_never_messages(spark: SparkSession) -> None:
    """Equal ones at two places are two records; they have no index."""
    assert mark(spark, row(None, 1), row(None, 2, at_s=5)) == [(None, None), (None, None)]


def oracle(rows: list[Given]) -> set[Given]:
    """Return (topic, partition, offset, index) of the rows to keep, the slow and obvious way."""
    kept: dict[Given, Given] = {}
    for topic, partition, offset, _, key, value, headers, transaction_id, *_ in sorted(
        set(rows), key=lambda each: each[:4]
    ):
        place, index = (topic, partition, offset), None
        if transaction_id is not None:
            index = int(dict(headers).get(MESSAGE_INDEX, 0))
        message = place if index is None else (transaction_id, index, topic, key, value)
        kept.setdefault(message, (*place, index))
    return set(kept.values())


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.spark_long) for seed in (2, 3))]
)
def test_against_the_oracle(spark: SparkSession, seed: int) -> None:
    """Random transactions, delivered and ingested once or more, in any order of rows."""
    draw = random.Random(seed)
    rows: list[Given] = []
    offsets = [0, 0]

    def deliver(transaction_id: str | None, messages: list[tuple[int, bytes]], at_s: int) -> None:
        for index, (partition, value) in enumerate(messages):
            at = offsets[partition]
            made = row(transaction_id, at, value, at_s=at_s, partition=partition, index=index)
            rows.extend([made] * draw.choice([1, 1, 2]))
            offsets[partition] += draw.choice([1, 2])

    for number in range(60):
        count = draw.randint(1, 4)
        messages = [(draw.randint(0, 1), draw.choice([b"x", b"y"])) for _ in range(count)]
        name = None if draw.random() < 0.1 else f"t{number}"
        for again in range(draw.choice([1, 1, 1, 2, 3])):
            deliver(name, messages, number + 1000 * again)
    draw.shuffle(rows)
    marked = mark_duplicates(spark.createDataFrame(rows, SCHEMA)).collect()
    kept = [each for each in marked if each["duplicate"] is None]
    found = [
        (each["topic"], each["partition"], each["offset"], each["message_index"]) for each in kept
    ]
    assert len(found) == len(set(found))
    assert set(found) == oracle(rows)
    assert date(2025, 10, 9) in {each["publish_date"] for each in kept}
