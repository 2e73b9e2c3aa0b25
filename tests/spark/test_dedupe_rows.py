"""Which rows say the same thing twice: against an oracle, and case by case."""

import random
from datetime import date, datetime, timezone
from typing import Any

import pytest
from pyspark.sql import SparkSession

from halfbridge.serde.headers import real_headers
from halfbridge.spark_jobs.dedupe import SAME_MESSAGE, SAME_RECORD, mark_duplicates

pytestmark = pytest.mark.spark

SCHEMA = (
    "topic string, partition int, offset long, timestamp timestamp, timestamp_type int,"
    " key binary, value binary, headers array<struct<key: string, value: binary>>,"
    " transaction_id string, quarantine_reason string, publish_date date, quarantined boolean"
)
Given = tuple[Any, ...]
CREATE_TIME, APPEND_TIME = 0, 1


def row(
    transaction_id: str | None,
    offset: int,
    value: bytes | None = b"v",
    *,
    at_s: int = 0,
    partition: int = 0,
    key: bytes | None = b"k",
    timestamp_type: int = CREATE_TIME,
    index: int = 0,
    quarantined: bool = False,
) -> Given:
    """Return one row of an ingested table."""
    time = datetime.fromtimestamp(1_760_000_000 + at_s, timezone.utc)
    reason = "why" if quarantined else None
    headers = real_headers([], transaction_id, 5, index) if transaction_id and index else None
    return (
        *("orders", partition, offset, time, timestamp_type, key, value, headers, transaction_id),
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


def test_messages_are_numbered_by_place(spark: SparkSession) -> None:
    """By topic, partition and offset; each transaction by itself."""
    given = [row("a", 5), row("a", 2, b"w"), row("a", 1, b"x", partition=1), row("b", 3)]
    assert mark(spark, *given) == [(None, 1), (None, 0), (None, 2), (None, 0)]


def test_equal_messages_of_one_delivery_are_two_messages(spark: SparkSession) -> None:
    """The user sent them both: nothing is dropped, in one partition or in two."""
    given = [row("a", 1), row("a", 2), row("a", 0, partition=1)]
    assert mark(spark, *given) == [(None, 0), (None, 1), (None, 2)]


def test_a_transaction_delivered_again_is_found_message_by_message(spark: SparkSession) -> None:
    """Its second delivery has another publish time; the first stays, equal messages included."""
    first = [row("a", 1), row("a", 2), row("a", 3, b"w")]
    again = [row("a", 7, at_s=90), row("a", 8, at_s=90), row("a", 9, b"w", at_s=90)]
    assert mark(spark, *again, *first) == [
        (SAME_MESSAGE, None),
        (SAME_MESSAGE, None),
        (SAME_MESSAGE, None),
        (None, 0),
        (None, 1),
        (None, 2),
    ]


def test_the_same_record_ingested_twice(spark: SparkSession) -> None:
    """One stays, with or without a transaction: the one whose schema was known."""
    given = [row("a", 1, quarantined=True), row("a", 1), row(None, 2), row(None, 2)]
    marks = mark(spark, *given)
    assert marks[:2] == [(SAME_RECORD, None), (None, 0)]
    assert sorted(marks[2:], key=str) == [(SAME_RECORD, None), (None, None)]


def test_what_is_not_byte_equal_is_no_duplicate(spark: SparkSession) -> None:
    """Null and empty differ; so do two records at one place of a topic that was created again."""
    given = [row("a", 1, None), row("a", 2, b"", at_s=5), row(None, 9, b"x"), row(None, 9, b"y")]
    assert [duplicate for duplicate, _ in mark(spark, *given)] == [None] * 4


def test_deliveries_that_cannot_be_distinguished_are_left_alone(spark: SparkSession) -> None:
    """With the broker's append times two equal messages may be both meant: both stay."""
    given = [
        row("a", 1, timestamp_type=APPEND_TIME),
        row("a", 2, at_s=1, timestamp_type=APPEND_TIME),
        row("a", 2, at_s=1, timestamp_type=APPEND_TIME),
    ]
    marks = mark(spark, *given)
    assert marks[0] == (None, 0)
    assert sorted(marks[1:], key=str) == [(SAME_RECORD, None), (None, 1)]


def test_an_index_tells_where_times_do_not(spark: SparkSession) -> None:
    """With append times, or with times that differ within a delivery: equal is equal with it."""
    given = [
        row("a", 1, timestamp_type=APPEND_TIME, index=1),
        row("a", 2, timestamp_type=APPEND_TIME, index=2),
        row("a", 3, at_s=1, timestamp_type=APPEND_TIME, index=1),
        row("b", 4, index=1),
        row("b", 5, at_s=1, index=2),
        row("b", 6, at_s=9, index=1),
    ]
    expected = [(None, 0), (None, 1), (SAME_MESSAGE, None)]
    assert mark(spark, *given) == expected + expected


def test_records_of_other_producers_are_never_messages(spark: SparkSession) -> None:
    """Equal ones at two places are two records; they have no index."""
    assert mark(spark, row(None, 1), row(None, 2, at_s=5)) == [(None, None), (None, None)]


def oracle(rows: list[Given]) -> set[Given]:
    """Return (place, index) of what must stay, the slow and obvious way."""
    records = sorted(set(rows))
    stay: list[Given] = []
    seen: set[Given] = set()
    copies: dict[Given, int] = {}
    for each in records:
        topic, _, _, time, _, key, value, _, transaction_id, *_ = each
        if transaction_id is None:
            stay.append(each)
            continue
        content = (transaction_id, topic, key, value)
        delivery = (*content, time)
        copies[delivery] = nth = copies.get(delivery, 0) + 1
        if (*content, nth) not in seen:
            seen.add((*content, nth))
            stay.append(each)
    indices: dict[str, int] = {}
    result = set()
    for each in stay:
        transaction_id = each[8]
        index = indices.get(transaction_id, 0) if transaction_id else None
        if transaction_id:
            indices[transaction_id] = index + 1
        result.add((each[0], each[1], each[2], index))
    return result


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.spark_long) for seed in (2, 3))]
)
def test_against_the_oracle(spark: SparkSession, seed: int) -> None:
    """Random transactions, delivered and ingested once or more, in any order of rows."""
    draw = random.Random(seed)
    rows: list[Given] = []
    offsets = [0, 0]

    def deliver(transaction_id: str | None, messages: list[tuple[int, bytes]], at_s: int) -> None:
        for partition, value in messages:
            at = offsets[partition]
            rows.extend(
                [row(transaction_id, at, value, at_s=at_s, partition=partition)]
                * draw.choice([1, 1, 2])
            )
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
