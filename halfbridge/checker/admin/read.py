"""Reads committed offsets, and the records of a partition, for the operator's commands.

`first_decisions` judges ops by the protocol's table, for all commands that need a winner.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from halfbridge.checker.core.events import OpRead, append_ms_of
from halfbridge.checker.errors import AdminRetriableError, DamagedRecordError
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import DAMAGED, Code, KafkaFailure
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, parse_half
from halfbridge.serde.protocol import State, state_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halfbridge.kafka.ports import Clock, Reader, StoredRecord, TopicPartition
    from halfbridge.serde.records import HalfMetadata, Op
    from halfbridge.serde.signatures import Verifier

# Most records in one call; the reader returns the fetched ones, so fewer would cost calls.
READ_BATCH = 10_000
_READ_WAIT_S = 0.5  # how late it is noticed that nothing comes any more


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset; -1 when there is none."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as read; `timestamp` is Kafka's type of it, and milliseconds."""

    partition: int
    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def append_ms(self) -> int:
        """The broker's append time, or NO_APPEND_MS."""
        return append_ms_of(*self.timestamp)

    def half(self, verifier: Verifier | None) -> tuple[HalfMetadata, str]:
        """Return what `parse_half` says.

        Raises DecodeError: as `parse_half`, or the record is not believed; its writer must act.
        """
        metadata, flaw = parse_half(self.headers)
        if verifier is not None:
            verifier.check_half(
                self.partition,
                self.append_ms,
                metadata,
                headers=self.headers,
                key=self.key,
                value=self.value,
            )
        return metadata, flaw

    def op(self, verifier: Verifier | None) -> Op:
        """Return an op that is believed; raises as `half`."""
        value = self.value or b""
        op = OP.decode(value)
        if verifier is not None:
            verifier.check_op(
                self.partition,
                self.append_ms,
                op,
                headers=lambda: self.headers,
                key=self.key,
                value=value,
            )
        return op


# Transaction id, resume count and producer group, which identify a transaction (rule 6).
Key = tuple[str, int, str]


class First(NamedTuple):
    """The first decision of a transaction; `append_ms` is its append time, or NO_APPEND_MS."""

    offset: int
    append_ms: int
    state: State
    op: Op


def readable_ops(records: Iterable[LogRecord], verifier: Verifier | None) -> Iterator[OpRead]:
    """Yield the ops that can be read and are believed; the daemon ignores the others too."""
    for record in records:
        with suppress(DecodeError):
            yield OpRead(record.offset, record.append_ms, record.op(verifier))


def first_decisions(ops: Iterable[OpRead], first_append_ms: Mapping[Key, int]) -> dict[Key, First]:
    """Return the first decision of each transaction that has one, by the table of the protocol.

    `ops` come in op order. `first_append_ms` has the append time of each transaction's first half
    message, or NO_APPEND_MS; ops of other transactions are ignored.
    """
    found: dict[Key, First] = {}
    for read in ops:
        op = read.op
        key = op.transaction_id, op.resume_count, op.producer_group
        if key not in first_append_ms or key in found:
            continue
        state = state_after(
            op, State.UNDECIDED, op_append_ms=read.append_ms, first_append_ms=first_append_ms[key]
        )
        if state is not None:
            found[key] = First(read.offset, read.append_ms, state, op)
    return found


def records_between(
    reader: Reader,
    place: TopicPartition,
    start: int,
    end: int,
    *,
    clock: Clock,
    patience_s: float,
    on_silence: Callable[[Mapping[TopicPartition, int]], None] = lambda _: None,
) -> Iterator[LogRecord]:
    """Yield the committed records of a partition from `start` up to `end`, an end it has had.

    If nothing comes for `patience_s`, `on_silence` is called with the offset from which nothing
    comes; it may raise the reason.

    Raises:
        AdminRetriableError: nothing came for `patience_s`, such as when a kafka_txn is open; try
            again.
    """
    reader.read_from({place: start})
    last_progress = clock.monotonic()
    at_end = False
    while not at_end:
        for record in _fetched(reader):
            last_progress = clock.monotonic()
            error = record.error()
            if error is None:
                if record.offset() < end:
                    yield _log_record(record)
                at_end = at_end or record.offset() >= end - 1
                continue
            failure = failure_of(error)
            if failure.code != Code.PARTITION_EOF:
                raise named(failure, place, record.offset())
            # EOF is sent at the last stable offset, which an open kafka_txn holds back.
            at_end = at_end or record.offset() >= end
        if clock.monotonic() - last_progress > patience_s:
            at = reader.positions([place])[place]
            on_silence({place: max(start, at)})
            raise AdminRetriableError(
                f"{place[0]} {place[1]}: nothing readable up to offset {end} within"
                f" {patience_s:.0f} s: an open kafka_txn may hold it back; try again",
                topics=(place[0],),
            )


def named(failure: KafkaFailure, place: TopicPartition, offset: int | None) -> Exception:
    """Return what to raise for an error that came in place of a record; it names the place."""
    if failure.code in DAMAGED and offset is not None and offset >= 0:
        return DamagedRecordError(place, offset, failure.text)
    topic, partition = place
    return KafkaFailure(failure.code, f"{topic}[{partition}]@{offset}: {failure.text}")


def _fetched(reader: Reader) -> list[StoredRecord]:
    """Return what has been fetched; to wait for many records would be to wait for all of them."""
    first = reader.poll(_READ_WAIT_S)
    found = [] if first is None else [first, *reader.take(READ_BATCH)]
    return cast("list[StoredRecord]", found)  # or errors, each in place of a record


def _log_record(message: StoredRecord) -> LogRecord:
    try:
        headers = headers_of(message)
    except DecodeError:
        headers = None  # what cannot be read is no half message
    return LogRecord(
        message.partition(),
        message.offset(),
        message.timestamp(),
        message.key(),
        message.value(),
        list(headers or ()),
    )
