"""What the model says of Kafka, as one suite of checks for the model and for a real broker.

Each check takes an adapter with one topic of one partition and one group. `settle` lets markers
arrive that follow an acknowledged end of a kafka_txn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


class WasRefusedError(Exception):
    """A broker refused; the text holds Kafka's name of the error."""


class TransactionalProducer(Protocol):
    """A producer with a transactional id; its first write begins a kafka_txn."""

    def write(self, *values: bytes) -> list[int]:
        """Write records and return their offsets."""

    def send_offset(self, member: object, offset: int, metadata: str) -> None:
        """Have an offset committed with the kafka_txn."""

    def commit(self) -> None:
        """Commit."""

    def abort(self) -> None:
        """Abort."""


class Kafka(Protocol):
    """One topic with one partition, and one group."""

    def append(self, value: bytes) -> int:
        """Store a record of an idempotent producer."""

    def read(self, *, is_committed: bool = True) -> list[tuple[int, bytes]]:
        """Return offset and value of what a reader is shown now, from the log start on."""

    def times(self) -> list[tuple[int, int]]:
        """Return kind and value of the records' timestamps."""

    def start_lso_end(self) -> tuple[int, int, int]:
        """Return the log start, the last stable offset and the high watermark."""

    def delete_before(self, offset: int) -> None:
        """Delete what is below `offset`."""

    def producer(self, name: str) -> TransactionalProducer:
        """Return a new producer with this transactional id; it has been initialised."""

    def join(self, instance: str) -> object:
        """Have a static member join; return its metadata once it has its assignment."""

    def committed(self, *, is_stable: bool = True) -> tuple[int, str] | None:
        """Return the group's offset and its metadata; None while a stable one is awaited."""

    def settle(self) -> None:
        """Wait until no marker is under way."""


def visible_after_the_commit_only(kafka: Kafka) -> None:
    """A kafka_txn's records are shown to read_committed readers when it is committed."""
    producer = kafka.producer("a")
    assert producer.write(b"1", b"2") == [0, 1]
    assert kafka.read() == []
    assert kafka.read(is_committed=False) == [(0, b"1"), (1, b"2")]
    producer.commit()
    kafka.settle()
    assert kafka.read() == [(0, b"1"), (1, b"2")]


def never_visible_after_an_abort(kafka: Kafka) -> None:
    """Aborted records are passed over, whatever is committed around them."""
    producer = kafka.producer("a")
    producer.write(b"gone")
    producer.abort()
    kafka.settle()
    producer.write(b"kept")
    producer.commit()
    kafka.settle()
    assert [value for _, value in kafka.read()] == [b"kept"]
    assert [value for _, value in kafka.read(is_committed=False)] == [b"gone", b"kept"]


def open_kafka_txn_holds_the_lso(kafka: Kafka) -> None:
    """Readers stop at the first record of the oldest open kafka_txn."""
    kafka.append(b"before")
    producer = kafka.producer("a")
    producer.write(b"open")
    kafka.append(b"after")
    assert kafka.start_lso_end() == (0, 1, 3)
    assert kafka.read() == [(0, b"before")]
    producer.commit()
    kafka.settle()
    assert kafka.start_lso_end() == (0, 4, 4)
    assert [value for _, value in kafka.read()] == [b"before", b"open", b"after"]


def markers_take_an_offset(kafka: Kafka) -> None:
    """The record after a kafka_txn's end stands one further on; so does the end."""
    producer = kafka.producer("a")
    producer.write(b"1")
    producer.commit()
    kafka.settle()
    assert kafka.start_lso_end() == (0, 2, 2)
    assert kafka.append(b"2") == 2


def offsets_are_pending_until_the_end(kafka: Kafka) -> None:
    """Who wants stable offsets waits for an open kafka_txn that commits some."""
    member = kafka.join("one")
    producer = kafka.producer("a")
    producer.send_offset(member, 1, "first")
    assert kafka.committed() is None
    producer.commit()
    kafka.settle()
    assert kafka.committed() == (1, "first")
    producer.send_offset(member, 2, "second")
    assert kafka.committed(is_stable=False) == (1, "first")
    producer.abort()
    kafka.settle()
    assert kafka.committed() == (1, "first")


def newer_offset_commit_stands(kafka: Kafka) -> None:
    """Of the commits of two producers in turn, the newer one is found."""
    member = kafka.join("one")
    producers = [kafka.producer("a"), kafka.producer("b")]
    for offset in range(10):
        producers[offset % 2].send_offset(member, offset, f"number {offset}")
        producers[offset % 2].commit()
    kafka.settle()
    assert kafka.committed() == (9, "number 9")


def zombie_epoch_is_fenced(kafka: Kafka) -> None:
    """A new producer of the same id aborts what the old one left open, and shuts it out."""
    zombie = kafka.producer("a")
    zombie.write(b"old")
    successor = kafka.producer("a")
    successor.write(b"new")
    with pytest.raises(WasRefusedError):
        zombie.commit()
    successor.commit()
    kafka.settle()
    assert [value for _, value in kafka.read()] == [b"new"]


def stale_generation_is_refused(kafka: Kafka) -> None:
    """A member whose group has gone on without it cannot commit offsets any more."""
    stale = kafka.join("one")
    kafka.join("two")
    producer = kafka.producer("a")
    with pytest.raises(WasRefusedError, match="ILLEGAL_GENERATION"):
        producer.send_offset(stale, 1, "")


def replaced_member_is_refused(kafka: Kafka) -> None:
    """A static member that was taken over cannot either."""
    old = kafka.join("one")
    kafka.join("one")
    producer = kafka.producer("a")
    with pytest.raises(WasRefusedError, match="FENCED_INSTANCE_ID"):
        producer.send_offset(old, 1, "")


def append_time_is_the_brokers(kafka: Kafka) -> None:
    """Timestamps are the broker's, and one record's is no earlier than the one's before it."""
    for value in (b"1", b"2", b"3"):
        kafka.append(value)
    times = kafka.times()
    assert [kind for kind, _ in times] == [2, 2, 2]
    assert [ms for _, ms in times] == sorted(ms for _, ms in times)


def deleted_records_are_gone(kafka: Kafka) -> None:
    """The log start moves, the end does not, and readers from there on find the rest."""
    for value in (b"1", b"2", b"3"):
        kafka.append(value)
    kafka.delete_before(2)
    assert kafka.start_lso_end() == (2, 3, 3)
    assert kafka.read() == [(2, b"3")]


CHECKS: tuple[Callable[[Kafka], None], ...] = (
    visible_after_the_commit_only,
    never_visible_after_an_abort,
    open_kafka_txn_holds_the_lso,
    markers_take_an_offset,
    offsets_are_pending_until_the_end,
    newer_offset_commit_stands,
    zombie_epoch_is_fenced,
    stale_generation_is_refused,
    replaced_member_is_refused,
    append_time_is_the_brokers,
    deleted_records_are_gone,
)
