"""Frames for notebooks: messages of real topics, and decoded records of the internal ones."""

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halfbridge.serde import headers as names
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from halfbridge.spark import (
    JsonPayload,
    decode_half,
    decode_op,
    read_messages,
    stream_messages,
)
from halfbridge.spark.frames import messages
from halfbridge.spark.transactions import transactions
from halfbridge.spark_jobs.reading.topics import KAFKA_SCHEMA, LOG_APPEND_TIME
from halfbridge.spark_jobs.reading.wire import MISSING, NOT_OURS
from tests.spark.marks import INTERPRETED
from tests.spark.real_topic import BORN_MS, Real, make_topic
from tests.spark.tape import GROUP, NAMES, ORDERS, Tape

pytestmark = INTERPRETED

# As docs/how-to/spark-notebook.md has them; users' tables and queries rest on these.
MESSAGES = {
    "transaction_id": "string",
    "message_index": "int",
    "born_timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "map<string,binary>",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}
PLACE = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}
HALVES = {
    **PLACE,
    "key": "binary",
    "value": "binary",
    "headers": "map<string,binary>",
    "transaction_id": "string",
    "born_timestamp": "bigint",
    "resume_count": "int",
    "message_index": "int",
    "producer_group": "string",
    "real_topic": "string",
    "real_partition": "int",
    "check_times": "int",
    "immunity_ms": "bigint",
    "first_append_timestamp": "bigint",
    "origin_offset": "bigint",
    "error": "string",
}
OPS = {
    **PLACE,
    "transaction_id": "string",
    "written_timestamp": "bigint",
    "half_offset": "bigint",
    "resume_count": "int",
    "producer_group": "string",
    "kind": "string",
    "message_count": "int",
    "check_number": "int",
    "source": "string",
    "actor": "string",
    "reason": "string",
    "age_ms": "bigint",
    "error": "string",
}
TRANSACTIONS = {
    "transaction_id": "string",
    "resume_count": "int",
    "producer_group": "string",
    "state": "string",
    "half_timestamp": "timestamp",
    "decided_timestamp": "timestamp",
    "delivered_timestamp": "timestamp",
    "half_partition": "int",
    "half_offset": "bigint",
    "message_count": "int",
    "real_topic": "string",
    "first_key": "binary",
    "reason": "string",
    "check_count": "int",
}


def by_offset(frame: DataFrame) -> list[Any]:
    """Return the rows of one partition."""
    return sorted(frame.collect(), key=lambda row: int(row["offset"]))


@pytest.mark.broker
@pytest.mark.feature
def test_messages_as_batch_and_as_stream(
    spark: SparkSession, kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Committed ones with what halfbridge says about them; not aborted ones, not other writers'.

    A value that cannot be decoded ends no stream.
    """
    topic = make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")
    twice = [("trace", b"a"), ("trace", None), (names.MESSAGE_INDEX, b"1")]
    topic.commit(Real(transaction_id="a" * 32), Real(transaction_id="a" * 32, headers=twice))
    topic.abort(Real(transaction_id="b" * 32))
    topic.write_plain(b"other")
    where = {"bootstrap_servers": topic.servers, "topics": topic.name}
    batch = read_messages(spark, **where)
    assert dict(batch.dtypes) == MESSAGES
    first, second = by_offset(batch)
    assert (first["transaction_id"], first["message_index"]) == ("a" * 32, 0)
    assert (first["key"], first["value"]) == (b"k", b"v")
    assert first["headers"] == {"trace": b"\x00\xff"}
    assert first["born_timestamp"].timestamp() * 1000 == BORN_MS
    assert (first["topic"], first["partition"], first["offset"]) == (topic.name, 0, 0)
    assert (second["message_index"], second["headers"]) == (1, {"trace": None})

    stream = stream_messages(spark, **where, max_offsets=1, payload=JsonPayload("id INT"))
    decoded = {"payload": "struct<id:int>", "payload_error": "string"}
    assert dict(stream.dtypes) == {**MESSAGES, **decoded}
    query = (
        stream.writeStream.format("memory")
        .queryName("messages_of_a_stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    streamed = spark.table("messages_of_a_stream")
    assert by_offset(streamed.drop(*decoded)) == [first, second]
    error = "cannot be decoded with the given schema"
    assert [(row["payload"], row["payload_error"]) for row in by_offset(streamed)] == [
        *[(None, error)] * 2
    ]


def test_strange_headers_end_no_query(spark: SparkSession) -> None:
    """A birth or an index that is none is null; a foreign record without headers is left out."""
    time = datetime.fromtimestamp(BORN_MS / 1000, timezone.utc)
    place = (None, None, ORDERS, 0)
    mine = (names.TRANSACTION_ID, b"a" * 32)
    given: list[Any] = [
        [mine, (names.BORN_TIMESTAMP, b"9" * 18), (names.MESSAGE_INDEX, b"4294967296")],
        [mine, (names.BORN_TIMESTAMP, b"soon"), (names.MESSAGE_INDEX, None)],
        [mine, (names.MESSAGE_INDEX, b"01")],
        [mine, (names.MESSAGE_INDEX, b"1\n")],
        [(names.TRANSACTION_ID, b"\xff")],
        None,
    ]
    rows = [(*place, at, time, LOG_APPEND_TIME, each) for at, each in enumerate(given)]
    found = by_offset(messages(spark.createDataFrame(rows, KAFKA_SCHEMA)))
    assert [row["offset"] for row in found] == [0, 1, 2, 3]
    assert {(row["born_timestamp"], row["message_index"]) for row in found} == {(None, None)}
    assert [row["headers"] for row in found] == [{}] * 4


def test_half_records_are_decoded(spark: SparkSession) -> None:
    """Each row has the fields, or says why it has none."""
    tape = Tape()
    half = tape.half(user=[("h", b"1")], message_index=2)
    tape.write(NAMES.half, 0, value=b"junk")
    tape.write(NAMES.half, 0, headers=[(names.HALF, b"junk")])
    frame = decode_half(tape.frame(spark, NAMES.half))
    assert dict(frame.dtypes) == HALVES
    good, bare, junk = by_offset(frame)
    assert (good["transaction_id"], good["message_index"]) == (half.txn, 2)
    assert (good["producer_group"], good["real_topic"]) == (GROUP, ORDERS)
    assert (good["key"], good["value"], good["headers"]) == (b"key", b"value", {"h": b"1"})
    assert good["error"] is None
    assert (bare["error"], junk["error"]) == (MISSING, NOT_OURS)
    assert (bare["transaction_id"], bare["value"]) == (None, b"junk")


def test_op_records_are_decoded(spark: SparkSession) -> None:
    """Each row has the fields, or says why it has none."""
    tape = Tape()
    half = tape.half()
    tape.op(OpKind.ROLLBACK, half, reason="no stock")
    tape.write(NAMES.op, 0, value=b"junk")
    frame = decode_op(tape.frame(spark, NAMES.op))
    assert dict(frame.dtypes) == OPS
    good, junk = by_offset(frame)
    assert (good["transaction_id"], good["kind"], good["reason"]) == (
        *(half.txn, "ROLLBACK", "no stock"),
    )
    assert (good["error"], junk["error"], junk["kind"]) == (None, NOT_OURS, None)


def frame_of(spark: SparkSession, tape: Tape, *, reads_reals: bool = True) -> DataFrame:
    """Return the transactions of a tape."""
    return transactions(
        halves=tape.frame(spark, NAMES.half),
        ops=tape.frame(spark, NAMES.op),
        letters=tape.frame(spark, NAMES.dead),
        reals=tape.frame(spark, *(tape.real_topics() if reads_reals else ())),
    )


def states_of(frame: DataFrame) -> dict[tuple[str, int], tuple[str, str | None]]:
    """Return (id, life) -> state and reason."""
    return {
        (row["transaction_id"], row["resume_count"]): (row["state"], row["reason"])
        for row in frame.collect()
    }


def test_state_of_each_transaction(spark: SparkSession) -> None:
    """By the first decision and what became of the messages; unreadable records are no rows."""
    tape = Tape()
    wanted: dict[tuple[str, int], tuple[str, str | None]] = {}
    wanted[tape.delivered().txn, 0] = ("delivered", None)
    for topic in (NAMES.half, NAMES.op, NAMES.dead):
        tape.write(topic, 0, value=b"junk")
    halves = [tape.half() for _ in range(7)]
    waits, put_back, back, given_up, refused, twice, hasty = halves
    tape.put_back(put_back)
    wanted[waits.txn, 0] = wanted[put_back.txn, 0] = ("undecided", None)
    tape.op(OpKind.ROLLBACK, back, reason="no stock")
    wanted[back.txn, 0] = ("rolled_back", "no stock")
    tape.op(OpKind.DISCARD, given_up, source=OpSource.CHECKER, reason="CHECK_TIMES")
    tape.dead(given_up, DeadReason.CHECK_TIMES)
    wanted[given_up.txn, 0] = ("discarded", "CHECK_TIMES")
    tape.op(OpKind.COMMIT, refused)
    tape.dead(refused, DeadReason.NOT_ALLOWED)
    wanted[refused.txn, 0] = ("refused", "NOT_ALLOWED")
    tape.op(OpKind.COMMIT, twice)
    tape.op(OpKind.ROLLBACK, twice)
    wanted[twice.txn, 0] = ("committed", None)
    # A discard for an age that the transaction does not have is none.
    tape.op(OpKind.DISCARD, hasty, source=OpSource.CHECKER, reason="AGE", age_ms=3_600_000)
    tape.op(OpKind.ROLLBACK, hasty)
    wanted[hasty.txn, 0] = ("rolled_back", None)
    assert states_of(frame_of(spark, tape)) == wanted


def test_a_transaction_of_several_messages(spark: SparkSession) -> None:
    """It is delivered with its last message; one redelivered later is another life of it."""
    tape = Tape()
    first = tape.half(key=b"a", pair=1, user=[("h", b"1")])
    second = tape.half(first.txn, key=b"b", pair=1, message_index=1)
    tape.put_back(first)
    tape.op(OpKind.COMMIT, second)
    tape.real(first)
    assert states_of(frame_of(spark, tape)) == {(first.txn, 0): ("committed", None)}
    tape.dead(second, DeadReason.UNDELIVERABLE)
    assert states_of(frame_of(spark, tape)) == {(first.txn, 0): ("refused", "UNDELIVERABLE")}
    again = tape.half(first.txn, key=b"b", pair=1, message_index=1, resume_count=1)
    tape.op(OpKind.COMMIT, again, source=OpSource.OPERATOR, message_count=-1)
    tape.real(again)
    assert states_of(frame_of(spark, tape)) == {
        (first.txn, 0): ("refused", "UNDELIVERABLE"),
        (first.txn, 1): ("delivered", None),
    }


def test_a_late_message_is_refused_even_if_another_life_delivers_it(spark: SparkSession) -> None:
    """Stored above the decision's half offset, or dead-lettered because the op named more."""
    tape = Tape()
    above = tape.delivered()
    later = tape.half(above.txn, message_index=1)
    named = tape.half()
    tape.op(OpKind.COMMIT, named, half_offset=named.at + 1, message_count=-1)
    tape.real(named)
    beyond = tape.half(named.txn, message_index=1)
    assert beyond.at == named.at + 1
    assert states_of(frame_of(spark, tape)) == {
        (above.txn, 0): ("committed", None),
        (named.txn, 0): ("committed", None),
    }
    wanted: dict[tuple[str, int], tuple[str, str | None]] = {}
    for late in (later, beyond):
        tape.dead(late, DeadReason.LATE)
        again = tape.half(late.txn, message_index=1, resume_count=1)
        tape.op(OpKind.COMMIT, again, source=OpSource.OPERATOR, message_count=-1)
        tape.real(again)
        wanted[late.txn, 0] = ("refused", "LATE")
        wanted[late.txn, 1] = ("delivered", None)
    assert states_of(frame_of(spark, tape)) == wanted


def test_a_late_duplicate_says_nothing_of_its_message(spark: SparkSession) -> None:
    """Its dead letter does not refuse the message, whether or not the real topic is read."""
    tape = Tape()
    half = tape.delivered()
    tape.dead(tape.half(half.txn), DeadReason.LATE)
    assert states_of(frame_of(spark, tape)) == {(half.txn, 0): ("delivered", None)}
    assert states_of(frame_of(spark, tape, reads_reals=False)) == {
        (half.txn, 0): ("committed", None)
    }


def test_columns_of_a_transaction(spark: SparkSession) -> None:
    """Times of half message, decision and delivery, and the place; deliveries only if read."""
    tape = Tape()
    tape.half(pair=1)
    half = tape.delivered(pair=1, key=b"a")
    frame = frame_of(spark, tape)
    assert dict(frame.dtypes) == TRANSACTIONS
    (row,) = frame.where(F.col("transaction_id") == half.txn).collect()
    times = [row[f"{name}_timestamp"].timestamp() for name in ("half", "decided", "delivered")]
    assert [round(time * 1000) - half.ms for time in times] == [0, 1, 2]
    assert (row["producer_group"], row["real_topic"], row["first_key"]) == (GROUP, ORDERS, b"a")
    assert (row["half_partition"], row["half_offset"], row["message_count"]) == (1, 1, 1)
    unread = frame_of(spark, tape, reads_reals=False)
    assert dict(unread.dtypes) == TRANSACTIONS
    assert states_of(unread)[half.txn, 0] == ("committed", None)
