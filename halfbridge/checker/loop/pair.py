"""A pair as a worker serves it: its ledger, its clock and its held plan."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any
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
from halfbridge.checker.loop.plan_bodies import WithoutHeaders, let_go_plan, whole_or_bare
from halfbridge.checker.loop.sizes import bytes_at_most
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError, NotBelievedError
from halfbridge.serde.headers import headers_of, parse_half, user_bytes
from halfbridge.serde.limits import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.core.plan import Plan
    from halfbridge.checker.core.settings import LedgerSettings
    from halfbridge.checker.loop.publish import Publisher
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.records import Op
    from halfbridge.serde.verifier import Verifier

# Memory of a record beyond its size in a log: about 290 bytes for the objects of key and value, and
# 146 for those of each header (`sys.getsizeof`).
RECORD_OVERHEAD_BYTES = 300
HEADER_OVERHEAD_BYTES = 150


class Pair:
    """The ledger of a partition pair, its clock, and the plan that waits to be written.

    Attributes:
        held: A plan that was taken from the ledger and is not written yet.
        held_since: When the held plan was taken, monotonic seconds.
        topics_read: Real topics of the half messages that were read since the caller cleared it.
        retried_by: Number of the last look-up of topics (`TopicWatch.looks`) before the last plan:
            a later one is new to deferred deliveries.
        began_from: Progress from which this ledger was rebuilt.
        committed: Progress that is committed.
        paused: Topics of the pair that are not fetched at present.
        latest_ms: Append time of the record that was read last; 0 before the first record.
        rebuild_began: When this ledger was made, monotonic seconds.
        announced: The end of the rebuild was logged.
        read_to_end: Topics of the pair that this ledger has once read to their end.
        has_news: The ledger was told something since it had nothing to write (`found_idle`).
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
        self.held_since = began
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
        """Return partition time: the newest append time seen, plus the monotonic time since then.

        0 before the first record: then nothing can fall due.
        """
        if not self._newest_ms:
            return 0
        return self._newest_ms + int((monotonic_s - self._newest_at) * 1000)

    def take_half(self, message: Any, monotonic_s: float) -> None:
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

    def take_op(self, message: Any, monotonic_s: float) -> Op | None:
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

    def take_end(self, message: Any, *, is_half: bool) -> None:
        """Record that one of the two topics was read to its end (PARTITION_EOF)."""
        self.has_news = True
        self.read_to_end.add(message.topic())
        if is_half:
            self.ledger.half_read_to(message.offset())
        else:
            self.ledger.op_read_to(message.offset())

    def _take_time(self, message: Any, monotonic_s: float) -> int:
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
        """Hand a broker's answer to the ledger, as `Ledger.op_end`."""
        self.has_news = True
        self.ledger.op_end(end, asked_ms)

    def half_end(self, end: int, token: int) -> None:
        """Hand a proven end to the ledger, as `Ledger.half_end`."""
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
        """Drop bodies beyond the budget: those of undecided messages first, then the plan's.

        Args:
            is_written: Whether the plan's kafka_txn is under way and needs its bodies. One batch
                bounds their bytes.
        """
        memory = self.ledger.memory
        if self.held is not None and not is_written and memory.is_too_large(self.plan_bytes):
            let_go_plan(self.held)
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


def _junk(body: Any, message: Any, error: DecodeError) -> JunkRead:
    append_ms = append_ms_of(*message.timestamp())
    headers = body.headers()
    size_bytes = bytes_at_most(body.key(), body.value(), headers) + _overhead_bytes(headers)
    is_doubted = isinstance(error, NotBelievedError)
    return JunkRead(
        message.offset(), append_ms, shortened(error.reason), size_bytes, body, is_doubted
    )


def _overhead_bytes(headers: Headers | None) -> int:
    return RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(headers or ())


def in_turn(pairs: Mapping[int, Pair], last: int) -> list[Pair]:
    """Return the pairs, beginning after partition `last`, so that each pair has its turn."""
    numbers = sorted(pairs)
    behind = bisect_right(numbers, last)
    return [pairs[number] for number in (*numbers[behind:], *numbers[:behind])]
