"""Rows are cut into transactions of bounded size, in order, one half partition each."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest
from pyspark.sql import Row as SparkRow

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import Headers
from halfbridge.serde.manifest import BatchManifest
from halfbridge.spark_jobs.sink.attempt import Chunks, merge_timestamps
from halfbridge.spark_jobs.sink.dead_letters import NO_BATCH, Letter, Poll, Tally
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, RefusedError
from halfbridge.spark_jobs.sink.options import SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import BoundedCache
from halfbridge.spark_jobs.sink.progress import RefusedWatch
from halfbridge.spark_jobs.sink.rows import (
    ANY_BYTES,
    FRAME_BYTES_MAX,
    RealTopic,
    batches_of,
    delivered_bytes,
    rows_of,
)
from tests.kit.records import A_MANIFEST


def chunks(*, messages_max: int = 3, bytes_max: int = 100) -> Chunks:
    """Return chunks whose ids are 0, 1, ..."""
    numbers = count()
    return Chunks(messages_max=messages_max, bytes_max=bytes_max, new_id=lambda: str(next(numbers)))


def test_a_chunk_has_at_most_so_many_messages() -> None:
    """The next message begins another; counts and order are what decisions need."""
    cut = chunks()
    placed = [cut.place(0, "a", 1).transaction_id for _ in range(7)]
    assert placed == ["0", "0", "0", "1", "1", "1", "2"]
    assert [each.message_count for each in cut.transactions()] == [3, 3, 1]


def test_a_chunk_has_at_most_so_many_bytes() -> None:
    """A single message may be as large as all of them."""
    cut = chunks(messages_max=10)
    assert [cut.place(0, "a", size).transaction_id for size in (60, 40, 1, 150, 1)] == [
        *("0", "0", "1", "2", "3")
    ]


def test_half_partitions_do_not_share_a_chunk() -> None:
    """A transaction is in one pair; rows of several keys interleave."""
    cut = chunks()
    placed = [cut.place(n % 2, "a", 1) for n in range(6)]
    assert [each.transaction_id for each in placed] == ["0", "1", "0", "1", "0", "1"]
    assert [each.half_partition for each in cut.all] == [0, 1]


def test_topics_do_not_share_a_chunk() -> None:
    """What the daemon cannot deliver of one takes nothing of another to the dead letters."""
    cut = chunks()
    placed = [cut.place(0, topic, 1).transaction_id for topic in "abab"]
    assert placed == ["0", "1", "0", "1"]


def test_the_rows_of_a_topic_stay_in_order() -> None:
    """However topics interleave: its chunks are decided in the order in which they were begun."""
    cut = chunks(messages_max=2)
    placed = [cut.place(0, topic, 1) for topic in "aabaabbbaab"]
    order = [each.transaction_id for each in cut.transactions()]
    for topic in "ab":
        ids = [
            each.transaction_id
            for each, of in zip(placed, "aabaabbbaab", strict=True)
            if of == topic
        ]
        assert ids == sorted(ids, key=order.index)


def test_acknowledgements_give_the_offset_and_time_that_count() -> None:
    """The last message's offset, the first one's append time."""
    cut = chunks()
    chunk = cut.place(0, "a", 1)
    cut.place(0, "a", 1)
    assert chunk.unacknowledged == 2
    chunk.acknowledged(7, 1_000)
    chunk.acknowledged(9, 1_005)
    assert chunk.unacknowledged == 0
    assert cut.transactions() == (("0", 0, 2, 9),)
    assert cut.first_append_timestamp() == 1_000


def test_nothing_has_no_time() -> None:
    """Attempts without rows do not count for the oldest."""
    assert chunks().first_append_timestamp() == -1
    assert merge_timestamps([]) == -1
    assert merge_timestamps([-1, 9, 4, -1]) == 4


# --- what a poll at the dead letters makes of a batch, and what it tells -------------------

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app", "fail.on.refused": "true"}
EARLIER = A_MANIFEST._replace(
    batch_id=4, refused_count=3, dead_letter_offsets=(7,), dead_letter_topic_id="A"
)


class Topic:
    """A dead-letter topic that was read."""

    def __init__(self, *letters: Letter, topic_id: str = "A") -> None:
        self._letters = letters
        self._topic_id = topic_id

    def dead_letters(self, _: SinkOptions) -> Topic:
        """Return this: it stands for what a process has, too."""
        return self

    def read(self, since: Tally) -> Poll:
        assert since == Tally(3, (7,), "A")
        return Poll(self._letters, (9,), 0, self._topic_id, is_recreated=self._topic_id != "A")


def watched(
    given: dict[str, str], topic: Topic, winner_of: Callable[[int], BatchManifest | None]
) -> RefusedWatch:
    """Return what watches a topic that was read."""
    return RefusedWatch(parse_options(given), cast("Any", topic), winner_of)


@pytest.mark.parametrize("error", [CommitInDoubtError("no answer"), DecodeError("damaged", None)])
def test_manifests_that_cannot_be_read_fail_no_batch(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The tally stays where it was, so that the next poll finds the same dead letters."""

    def winner_of(_: int) -> BatchManifest:
        raise error

    watch = watched(GIVEN, Topic(Letter("t", 4, "why")), winner_of)
    assert watch.before([EARLIER]) == Tally(3, (7,), "A")
    assert "counted with a later batch" in caplog.text


@pytest.mark.parametrize("claimed", [NO_BATCH, -5])
def test_what_was_not_looked_up_fails_a_query_that_is_to_fail(claimed: int) -> None:
    """It may be rows that were published: a stub has no batch.

    With fail.on.refused=false the query continues.
    """
    topic = Topic(Letter("t", claimed, "why"))
    with pytest.raises(
        RefusedError, match=r"1 transactions .* until one new batch is published"
    ) as why:
        watched(GIVEN, topic, lambda _: EARLIER).before([EARLIER])
    assert (why.value.app_id, why.value.refused_count) == (GIVEN["app.id"], 0)
    lenient = {**GIVEN, "fail.on.refused": "false"}
    assert watched(lenient, topic, lambda _: EARLIER).before([EARLIER]) == Tally(3, (9,), "A")


def test_a_dead_letter_topic_that_was_made_anew_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """What was deleted with the old one is not known: a query that is to fail fails."""
    topic = Topic(topic_id="B")
    named = r"was deleted and created again \(id A, now B\).* until one new batch"
    with pytest.raises(RefusedError, match=named):
        watched(GIVEN, topic, lambda _: EARLIER).before([EARLIER])
    lenient = {**GIVEN, "fail.on.refused": "false"}
    assert watched(lenient, topic, lambda _: EARLIER).before([EARLIER]) == Tally(3, (9,), "B")
    assert "was deleted and created again" in caplog.text


# --- how large a row is as a record; test_sink_rows.py holds it against the brokers' own count

ORDERS = RealTopic(1_000, is_compacted=False)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 8_191, 8_192, 1 << 20])
@pytest.mark.parametrize("key", [None, b"", b"k" * 64])
@pytest.mark.parametrize("headers", [[], [("n", None)] * 70, [("n" * 64, b""), ("n", b"x" * 64)]])
def test_a_rows_size_has_a_bound(length: int, key: bytes | None, headers: Headers) -> None:
    """The one that the loop over all rows knows: twice the headers, one more each, and a frame."""
    twice = 2 * sum(len(name) + len(value or b"") for name, value in headers)
    bound = len(key or b"") + length + twice + len(headers) + FRAME_BYTES_MAX
    assert length < delivered_bytes(("orders", -1, key, b"v" * length, headers)) <= bound


def test_the_error_of_a_row_that_does_not_fit_says_what_to_do() -> None:
    """With its size and the topic's."""
    assert ORDERS.refusal(("orders", -1, None, b"v" * 700, [])) == ""
    assert "a row is 1174 bytes" in ORDERS.refusal(("orders", -1, None, b"v" * 1_000, []))


def test_where_settings_may_not_be_read_all_fits() -> None:
    """No more is known of it."""
    unknown = RealTopic(ANY_BYTES, is_compacted=False)
    assert unknown.refusal(("orders", -1, None, b"v" * (1 << 20), [])) == ""


def test_a_compacted_topic_takes_tombstones() -> None:
    """A key it needs, a value it does not."""
    compacted = RealTopic(1_000, is_compacted=True)
    assert compacted.refusal(("orders", -1, b"", None, [])) == ""
    assert "without a key" in compacted.refusal(("orders", -1, None, b"v", []))


# --- what a process keeps does not grow, and is not its parent's ---------------------------


def test_the_one_that_was_not_used_for_longest_is_let_go() -> None:
    """A notebook that runs a replay after the other would keep a Kafka client for each."""
    kept: BoundedCache[int] = BoundedCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)


@pytest.mark.process
def test_a_fork_does_not_use_what_its_parent_kept() -> None:
    """A Kafka client's threads stay with the parent: in the child it would wait for ever."""
    kept: BoundedCache[int] = BoundedCache(2)
    kept.put("a", 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kept.put("b", 2)
        os.write(writer, repr((kept.get("a"), kept.get("b"))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"(None, 2)"
    assert (kept.get("a"), kept.get("b")) == (1, None)
    os.close(reader)
    os.close(writer)


def test_rows_of_a_spark_without_arrow_streams() -> None:
    """They become the same rows as those in Arrow: bytes, text, nulls, headers, any number."""
    record = SparkRow("key", "value", "topic", "partition", "headers")
    pair = SparkRow("key", "value")
    records = [
        record(
            bytearray(b"k\xff"), "text", "a", 2, [pair("h", bytearray(b"\x00")), pair("n", None)]
        ),
        record(None, "", "b", None, None),
        *(record(bytearray(b"%d" % n), None, "c", None, []) for n in range(2_500)),
    ]
    batches = list(batches_of(iter(records)))
    assert [batch.num_rows for batch in batches] == [1_000, 1_000, 502]
    rows = [row for batch in batches for row in rows_of(batch, topic=None)]
    assert rows[:2] == [
        ("a", 2, b"k\xff", b"text", [("h", b"\x00"), ("n", None)]),
        ("b", -1, None, b"", []),
    ]
    assert rows[2:] == [("c", -1, b"%d" % n, None, []) for n in range(2_500)]
    nothing = [record(None, None, None, None, None)]
    (batch,) = batches_of(iter(nothing))
    assert [*rows_of(batch, topic="c")] == [("c", -1, None, None, [])]
    assert [*batches_of(iter([]))] == []
