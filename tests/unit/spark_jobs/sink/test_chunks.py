"""Rows are cut into transactions of bounded size, in order, one half partition each."""

from __future__ import annotations

from itertools import count

from halfbridge.spark_jobs.sink.attempt import Chunks, merge_timestamps


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
    """A transaction stands in one pair; rows of several keys interleave."""
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
