"""One half and op partition of the same number, as a worker serves it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checker.core.events import HalfRead, JunkRead, OpRead
from checker.core.ledger import Ledger
from serde.avro import OP
from serde.errors import DecodeError
from serde.headers import headers_of, parse_half

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from checker.core.plan import Check, Plan
    from checker.core.progress import Progress
    from checker.core.settings import LedgerSettings
    from checker.publish import Publisher
    from serde.headers import Headers
    from serde.records import Op

# What a record weighs beside its value and its headers' values: key, names, and the objects around
# them, about.
RECORD_OVERHEAD_BYTES = 200


class Pair:
    """The ledger of a partition pair, its clock, and the plan that waits to be written.

    Attributes:
        held: A plan that was taken from the ledger and is not written yet.
        began_from: Progress that this life of the ledger began from.
        committed: Progress that stands.
        paused: Topics of it that are not fetched at present.
        latest_ms: Append time of the record that was read last; 0 before any.
        rebuild_began: Monotonic seconds at which this life of the ledger began.
        announced: The rebuild's end was logged.
        read_to_end: Topics of it that were read to their end once, in this life of the ledger.
    """

    def __init__(
        self,
        partition: int,
        settings: LedgerSettings,
        committed: Progress,
        publisher: Publisher,
        *,
        began: float,
    ) -> None:
        self.partition = partition
        self.ledger = Ledger(settings, committed)
        self.publisher = publisher
        self.held: Plan | None = None
        self.began_from = committed
        self.committed = committed
        self.committed_at = began
        self.paused: frozenset[str] = frozenset()
        self.rebuild_began = began
        self.announced = False
        self.read_to_end: set[str] = set()
        self.latest_ms = 0
        self._newest_ms = 0
        self._newest_at = began

    def now_ms(self, monotonic_s: float) -> int:
        """Return partition time: the newest append time seen, plus the time since then.

        0 before any record was seen: then there is nothing that could fall due.
        """
        if not self._newest_ms:
            return 0
        return self._newest_ms + int((monotonic_s - self._newest_at) * 1000)

    def take_half(self, message: Any, monotonic_s: float) -> None:
        """Take a half record as it was consumed."""
        append_ms = message.timestamp()[1]
        self._take_time(append_ms, monotonic_s)
        try:
            headers = headers_of(message)
        except DecodeError as error:
            self.ledger.junk_half(_junk(_WithoutHeaders(message), message, error))
            return
        try:
            metadata, flaw = parse_half(headers)
        except DecodeError as error:
            self.ledger.junk_half(_junk(message, message, error))
            return
        size_bytes = _size_bytes(message, headers)
        self.ledger.half(HalfRead(message.offset(), append_ms, metadata, flaw, size_bytes, message))

    def take_op(self, message: Any, monotonic_s: float) -> Op | None:
        """Take an op record as it was consumed; return what it says, None when unreadable."""
        append_ms = message.timestamp()[1]
        self._take_time(append_ms, monotonic_s)
        try:
            op = OP.decode(message.value() or b"")
        except DecodeError as error:
            self.ledger.junk_op(_junk(_whole_or_bare(message), message, error))
            return None
        self.ledger.op(OpRead(message.offset(), append_ms, op))
        return op

    def take_end(self, message: Any, *, is_half: bool) -> None:
        """Take that one of its topics was read to its end (PARTITION_EOF)."""
        self.read_to_end.add(message.topic())
        if is_half:
            self.ledger.half_read_to(message.offset())
        else:
            self.ledger.op_read_to(message.offset())

    def _take_time(self, append_ms: int, monotonic_s: float) -> None:
        self.latest_ms = append_ms
        if append_ms > self._newest_ms:
            self._newest_ms, self._newest_at = append_ms, monotonic_s

    @property
    def has_work(self) -> bool:
        """Whether another plan can be taken without reading anything first."""
        ledger = self.ledger
        if not ledger.is_rebuilt:
            return False
        return ledger.letters_waiting > 0 or (ledger.ops_waiting > 0 and not ledger.waits_for_half)


class _WithoutHeaders:
    """A record whose headers the client cannot read: key and value are kept."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def key(self) -> bytes | None:
        key: bytes | None = self._message.key()
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self._message.value()
        return value

    def headers(self) -> Headers | None:
        return None


def _junk(body: Any, message: Any, error: DecodeError) -> JunkRead:
    size_bytes = _size_bytes(message, body.headers())
    return JunkRead(message.offset(), message.timestamp()[1], error.reason, size_bytes, body)


def _size_bytes(message: Any, headers: Headers | None) -> int:
    # len() of a message is the length of its value.
    size_bytes = len(message) + RECORD_OVERHEAD_BYTES
    return size_bytes + sum(len(value or b"") for _, value in headers or ())


def _whole_or_bare(message: Any) -> Any:
    try:
        headers_of(message)
    except DecodeError:
        return _WithoutHeaders(message)
    return message


def in_turn(pairs: Mapping[int, Pair], last: int) -> list[Pair]:
    """Return the pairs, first those behind partition `last`, so that each has its turn."""
    numbers = sorted(pairs)
    behind = bisect_right(numbers, last)
    return [pairs[number] for number in (*numbers[behind:], *numbers[:behind])]


def restore_plan(plan: Plan, read: Callable[[Iterable[int]], dict[int, Any]]) -> None:
    """Give the half records of `plan` back the bodies that the ledger let go.

    Args:
        plan: Changed in place.
        read: Half offsets -> records by offset.
    """
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
        return record._replace(body=_whole_or_bare(bodies[record.offset]))

    plan.deliveries[:] = [
        one._replace(messages=tuple(map(whole, one.messages))) for one in plan.deliveries
    ]
    plan.dead[:] = [replace(one, half=whole(one.half)) for one in plan.dead]
    plan.junk[:] = [replace(one, record=whole_junk(one.record)) for one in plan.junk]
    plan.put_backs[:] = [replace(one, half=whole(one.half)) for one in plan.put_backs]


def restore_checks(
    checks: list[Check], read: Callable[[Iterable[int]], dict[int, Any]]
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
        yield dead.half
    for put_back in plan.put_backs:
        yield put_back.half
