"""A pair as a worker serves it: its ledger, its clock, its held plan, and its memory."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from halfbridge.checker.core.events import (
    NO_KEY,
    HalfRead,
    JunkRead,
    OpRead,
    append_ms_of,
    message_bytes,
)
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.memory import ALARM_PERCENT, HALVES_PERCENT, NEEDED_HALVES_PERCENT
from halfbridge.checker.loop.clients import QUESTION_S, client_config, unjoined
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError, NotBelievedError
from halfbridge.serde.headers import headers_of, parse_half, user_bytes
from halfbridge.serde.limits import shortened
from halfbridge.serde.record_size import bytes_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.plan import Check, Plan
    from halfbridge.checker.core.settings import LedgerSettings
    from halfbridge.checker.loop.publish import Publisher
    from halfbridge.kafka.ports import Ports, Reader, Record, StoredRecord
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.records import Op
    from halfbridge.serde.signatures import Verifier

# Memory of a record beyond its size in a log: about 290 bytes for the objects of key and value, and
# 146 for those of each header (`sys.getsizeof`).
RECORD_OVERHEAD_BYTES = 300
HEADER_OVERHEAD_BYTES = 150


class Pair:
    """The ledger of a partition pair, its clock, and the plan that waits to be written.

    Attributes:
        held: The plan that was taken from the ledger and is not committed yet; the only reference.
        topics_read: Real topics of the half messages that were read since the caller cleared it.
        retried_by: `TopicWatch.refreshes` when the last plan was made: deferred deliveries are
            retried after a further refresh.
        began_from: Progress from which this ledger was rebuilt.
        paused: Topics of the pair that are not fetched at present.
        latest_ms: Append time of the record that was read last; 0 before the first record.
        announced: The end of the rebuild was logged.
        read_to_end: Topics of the pair that this ledger has once read to their end.
        has_news: The ledger got records or answers since it last had nothing to write.
        idle_at: When the ledger had nothing to write last, monotonic seconds.
    """

    def __init__(
        self,
        partition: int,
        settings: LedgerSettings,
        committed: Progress,
        publisher: Publisher,
        *,
        began: float,
        verifier: Verifier | None = None,
    ) -> None:
        self.partition = partition
        self._verifier = verifier
        self.ledger = Ledger(settings, committed)
        self.publisher = publisher
        self.held: Plan | None = None
        self.topics_read: set[str] = set()
        self.retried_by = -1
        self.began_from = committed
        self.committed = committed
        self.committed_at = began
        self.paused: frozenset[str] = frozenset()
        self.rebuild_began = began
        self.announced = False
        self.read_to_end: set[str] = set()
        self.has_news = True
        self.idle_at = began
        self.latest_ms = 0
        self._newest_ms = 0
        self._newest_at = began

    def now_ms(self, monotonic_s: float) -> int:
        """Return partition time: newest append time plus time since; 0 before the first record."""
        if not self._newest_ms:
            return 0
        return self._newest_ms + int((monotonic_s - self._newest_at) * 1000)

    def add_half(self, message: StoredRecord, monotonic_s: float) -> None:
        """Take a consumed half record."""
        append_ms = self._take_time(message, monotonic_s)
        try:
            headers = headers_of(message)
        except DecodeError as error:
            self.ledger.junk_half(_junk(WithoutHeaders(message), message, error))
            return
        key, value = message.key(), message.value()
        try:
            metadata, flaw = parse_half(headers)
            if self._verifier is not None:
                self._verifier.check_half(
                    self.partition, append_ms, metadata, headers=headers or (), key=key, value=value
                )
        except DecodeError as error:
            self.ledger.junk_half(_junk(message, message, error))
            return
        self.topics_read.add(metadata.real_topic)
        size_bytes = bytes_at_most(key, value, headers)
        self.ledger.half(
            HalfRead(
                message.offset(),
                append_ms,
                metadata,
                flaw,
                size_bytes,
                message,
                user_bytes(key, value, headers or (), has_flaw=bool(flaw)),
                message_bytes(metadata),
                size_bytes + _overhead_bytes(headers),
                NO_KEY if key is None else crc32(key),
            )
        )

    def add_op(self, message: StoredRecord, monotonic_s: float) -> Op | None:
        """Take a consumed op record; return the op, or None if it cannot be read."""
        append_ms = self._take_time(message, monotonic_s)
        value = message.value() or b""
        try:
            op = OP.decode(value)
            if self._verifier is not None:
                self._verifier.check_op(
                    self.partition,
                    append_ms,
                    op,
                    headers=partial(headers_of, message),
                    key=message.key(),
                    value=value,
                )
        except DecodeError as error:
            self.ledger.junk_op(_junk(whole_or_bare(message), message, error))
            return None
        self.ledger.op(OpRead(message.offset(), append_ms, op, len(message)))
        return op

    def add_end(self, message: StoredRecord, *, is_half: bool) -> None:
        """Record that one of the two topics was read to its end (PARTITION_EOF)."""
        self.has_news = True
        self.read_to_end.add(message.topic())
        if is_half:
            self.ledger.half_read_to(message.offset())
        else:
            self.ledger.op_read_to(message.offset())

    def _take_time(self, message: StoredRecord, monotonic_s: float) -> int:
        """Return the append time of a record; a client's timestamp (CreateTime) is ignored."""
        self.has_news = True
        append_ms = append_ms_of(*message.timestamp())
        if append_ms < 0:
            return append_ms
        self.latest_ms = append_ms
        if append_ms > self._newest_ms:
            self._newest_ms, self._newest_at = append_ms, monotonic_s
        return append_ms

    def op_end(self, end: int, asked_ms: int) -> None:
        """Hand a broker's answer to the ledger."""
        self.has_news = True
        self.ledger.op_end(end, asked_ms)

    def half_end(self, end: int, token: int) -> None:
        """Hand a proven end to the ledger."""
        self.has_news = True
        self.ledger.half_end(end, token)

    def found_idle(self, now: float) -> None:
        """Record that the ledger has nothing to write, and that no offset has to move."""
        self.has_news = False
        self.idle_at = now

    @property
    def plan_bytes(self) -> int:
        """Bytes of the held plan's bodies that are in memory."""
        return 0 if self.held is None else self.held.body_bytes

    @property
    def bodies_bytes(self) -> int:
        """Bytes of all bodies of the pair that are in memory."""
        return self.ledger.memory.bodies_bytes + self.plan_bytes

    @property
    def entries_bytes(self) -> int:
        """Estimated bytes of the pair's entries in memory."""
        return self.ledger.memory.entries_bytes + self._plan_entries_bytes

    @property
    def fill_percent(self) -> int:
        """Percentage of the budget of entries that is used."""
        return self.ledger.memory.fill_percent(self._plan_entries_bytes)

    def takes_halves(self, *, is_paused: bool) -> bool:
        """Tell whether the budget of entries allows to read more half records."""
        ledger = self.ledger
        return ledger.memory.takes_halves(
            self._plan_entries_bytes, are_needed=ledger.waits_for_half, is_paused=is_paused
        )

    def takes_ops(self, *, is_paused: bool) -> bool:
        """Tell whether the budgets allow to read more ops."""
        ledger = self.ledger
        return ledger.memory.takes_ops(
            self._plan_entries_bytes, wait=ledger.waits_for_half, is_paused=is_paused
        )

    def keep_bodies(self, *, is_written: bool) -> None:
        """Drop bodies beyond the budget, undecided messages' first; not those being written."""
        memory = self.ledger.memory
        if self.held is not None and not is_written and memory.is_too_large(self.plan_bytes):
            release_bodies(self.held)
        memory.keep_bodies(self.plan_bytes)

    @property
    def _plan_entries_bytes(self) -> int:
        return 0 if self.held is None else self.held.metadata_bytes

    @property
    def has_work(self) -> bool:
        """Whether another plan can be taken before more is read."""
        ledger = self.ledger
        if not ledger.is_rebuilt:
            return False
        return ledger.letters_waiting > 0 or (ledger.ops_waiting > 0 and not ledger.waits_for_half)


def _junk(body: Content, message: StoredRecord, error: DecodeError) -> JunkRead:
    append_ms = append_ms_of(*message.timestamp())
    headers = body.headers()
    size_bytes = bytes_at_most(body.key(), body.value(), headers) + _overhead_bytes(headers)
    is_not_believed = isinstance(error, NotBelievedError)
    return JunkRead(
        message.offset(), append_ms, shortened(error.reason), size_bytes, body, is_not_believed
    )


def _overhead_bytes(headers: Headers | None) -> int:
    return RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(headers or ())


def in_turn(pairs: Mapping[int, Pair], last: int) -> list[Pair]:
    """Return the pairs, beginning after partition `last`, so that each pair has its turn."""
    numbers = sorted(pairs)
    behind = bisect_right(numbers, last)
    return [pairs[number] for number in (*numbers[behind:], *numbers[:behind])]


# Batches of ops and dead letters that may be read ahead of the present commit: one to write as soon
# as it ends, and one to read meanwhile. More only take memory.
READ_AHEAD_BATCHES = 2


class Throttle:
    """Decides which topics of a pair are not fetched."""

    def __init__(self, config: CheckerConfig) -> None:
        self._half, self._op = config.names.half, config.names.op
        self._batch_records = config.batch_records_max
        self._batch_bytes = config.batch_bytes_max

    def not_wanted(self, pair: Pair) -> frozenset[str]:
        """Return the topics of a pair that must not be fetched now.

        The half topic: if the budget of entries is nearly spent; or if more than one batch of dead
        letters waits, until none waits, because ops wait for them. The op topic: if too many ops
        wait to be applied, or if the budget of entries is spent.
        """
        names = set()
        is_paused = self._half in pair.paused
        letters_max = 0 if is_paused else self._batch_records
        if pair.ledger.letters_waiting > letters_max or not pair.takes_halves(is_paused=is_paused):
            names.add(self._half)
        if not pair.takes_ops(is_paused=self._op in pair.paused):
            names.add(self._op)
        return frozenset(names)

    def trouble(self, pairs: Iterable[Pair]) -> str:
        """Return in words which pair has nearly spent its budget of entries; empty for none."""
        full = max(pairs, key=lambda pair: pair.fill_percent, default=None)
        if full is None or full.fill_percent < ALARM_PERCENT:
            return ""
        return (
            f"partition {full.partition} takes {full.fill_percent} % of the memory that it may take"
            f" for {full.ledger.held_halves} held half messages and what is kept of"
            f" others: from {HALVES_PERCENT} % it reads none that no op waits for, from"
            f" {NEEDED_HALVES_PERCENT} % none at all; have them decided, or raise entries_bytes_max"
        )

    def is_far_ahead(self, pairs: Iterable[Pair]) -> bool:
        """Tell whether enough is read for the batches after the present one."""
        ledgers = [pair.ledger for pair in pairs]
        waiting = sum(ledger.ops_waiting + ledger.letters_waiting for ledger in ledgers)
        if waiting >= READ_AHEAD_BATCHES * self._batch_records:
            return True
        junk_bytes = sum(ledger.memory.junk_op_bytes for ledger in ledgers)
        return junk_bytes >= READ_AHEAD_BATCHES * self._batch_bytes


def whole_or_bare(message: Content) -> Content:
    """Return a record, without its headers where they cannot be read."""
    try:
        headers_of(message)
    except DecodeError:
        return WithoutHeaders(message)
    return message


def restore_plan(plan: Plan, read: Callable[[Iterable[int]], Mapping[int, Content]]) -> None:
    """Read again, by half offset, the bodies that the ledger has released, into `plan`."""
    missing = [half.offset for half in _halves(plan) if half.body is None]
    missing += [each.record.offset for each in plan.junk if each.record.body is None]
    if not missing:
        return
    bodies = read(missing)

    def whole(half: HalfRead) -> HalfRead:
        return half if half.body is not None else half._replace(body=bodies[half.offset])

    def whole_junk(record: JunkRead) -> JunkRead:
        if record.body is not None:
            return record
        return record._replace(body=whole_or_bare(bodies[record.offset]))

    plan.deliveries[:] = [
        one._replace(messages=tuple(map(whole, one.messages))) for one in plan.deliveries
    ]
    plan.dead[:] = [
        one if one.by_reference else replace(one, half=whole(one.half)) for one in plan.dead
    ]
    plan.junk[:] = [replace(one, record=whole_junk(one.record)) for one in plan.junk]
    plan.put_backs[:] = [replace(one, half=whole(one.half)) for one in plan.put_backs]
    plan.body_bytes = sum(half.body_bytes for half in _halves(plan))
    plan.body_bytes += sum(each.record.body_bytes for each in plan.junk)


def release_bodies(plan: Plan) -> None:
    """Release the half records' bodies of `plan` until `restore_plan`; ops' bodies stay."""

    def bare(half: HalfRead) -> HalfRead:
        return half._replace(body=None)

    plan.deliveries[:] = [
        one._replace(messages=tuple(map(bare, one.messages))) for one in plan.deliveries
    ]
    plan.dead[:] = [replace(one, half=bare(one.half)) for one in plan.dead]
    plan.put_backs[:] = [replace(one, half=bare(one.half)) for one in plan.put_backs]
    plan.junk[:] = [
        one if one.is_op else replace(one, record=one.record._replace(body=None))
        for one in plan.junk
    ]
    plan.body_bytes = sum(one.record.body_bytes for one in plan.junk if one.is_op)


def restore_checks(
    checks: list[Check], read: Callable[[Iterable[int]], Mapping[int, Content]]
) -> list[Check]:
    """Return `checks` with all bodies there."""
    missing = [one.half.offset for one in checks if one.half.body is None]
    if not missing:
        return checks
    bodies = read(missing)
    return [
        one
        if one.half.body is not None
        else replace(one, half=one.half._replace(body=bodies[one.half.offset]))
        for one in checks
    ]


def _halves(plan: Plan) -> Iterable[HalfRead]:
    for delivery in plan.deliveries:
        yield from delivery.messages
    for dead in plan.dead:
        if not dead.by_reference:
            yield dead.half
    for put_back in plan.put_backs:
        yield put_back.half


class Content(Protocol):
    """What a record holds."""

    def key(self) -> bytes | None:
        """Return the key."""

    def value(self) -> bytes | None:
        """Return the value."""

    def headers(self) -> Headers | None:
        """Return the headers, in order."""


class WithoutHeaders:
    """A record whose headers the client cannot read: key and value only."""

    def __init__(self, message: Content) -> None:
        self._key: bytes | None = message.key()
        self._value: bytes | None = message.value()

    def key(self) -> bytes | None:
        """Return the key."""
        return self._key

    def value(self) -> bytes | None:
        """Return the value."""
        return self._value

    def headers(self) -> Headers | None:
        """Return no headers."""
        return None


# A gap of at most this many records is read and skipped, instead of a new fetch: of 1 KB each they
# are one fetch of the client's default size (fetch.message.max.bytes, 1 MiB).
SKIP_MAX = 1000
# Interval at which the deadline is checked.
_SLICE_S = 0.2


class BodyReader:
    """Reads half records again by offset."""

    def __init__(self, config: CheckerConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._topic = config.names.half
        self._reader = self._open()

    def read(self, partition: int, offsets: Iterable[int]) -> dict[int, Record]:
        """Return the records by offset.

        Raises InputLostError: one is deleted, or no broker answers; the worker reads again.
        """
        found: dict[int, Record] = {}
        position = -1 - SKIP_MAX
        try:
            for offset in sorted(set(offsets)):
                if not position <= offset < position + SKIP_MAX:
                    self._reader.read_from({(self._topic, partition): offset})
                found[offset] = self._read_one(partition, offset)
                position = offset + 1
        except InputLostError:
            self._renew()
            raise
        self._reader.read_from({})
        return found

    def close(self) -> None:
        """Close the reader; waits no longer than `close_clients`."""
        self._ports.run.close_clients(self._reader)

    def _read_one(self, partition: int, offset: int) -> Record:
        monotonic = self._ports.clock.monotonic
        deadline = monotonic() + QUESTION_S
        while monotonic() < deadline:
            record = self._reader.poll(_SLICE_S)
            if record is None:
                continue
            if record.error() is not None:
                said = failure_of(record.error())
                raise InputLostError(f"{self._topic}[{partition}]@{offset}: {said}")
            position = record.offset() or 0
            if position == offset:
                return record
            if position > offset:
                break
            deadline = monotonic() + QUESTION_S  # the reader makes progress
        raise InputLostError(f"{self._topic}[{partition}]@{offset} cannot be read again")

    def _renew(self) -> None:
        """Replace the reader, because the old one may have stalled (`StallWatch`)."""
        with suppress(ConfigError):  # not possible now: the old reader is kept
            old, self._reader = self._reader, self._open()
            self._ports.run.close_clients(old)

    def _open(self) -> Reader:
        config = self._config
        return self._ports.kafka.reader(
            {
                **client_config(config),
                **unjoined(config),
                "check.crcs": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 4096,
                "fetch.wait.max.ms": 10,
            },
        )
