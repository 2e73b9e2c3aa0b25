"""The life of one transaction: its records as events, judged by the ledger. Pure.

The records pass through the ledger's `Book` and `Ops`, so each op is judged as the daemon judges
it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from halfbridge.checker.admin.transactions.logs import append_ms, headers_or_none
from halfbridge.checker.core.book import Book
from halfbridge.checker.core.ops import Ops
from halfbridge.checker.core.plan import Count
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import DEAD, HALF, RESERVED, real_identity
from halfbridge.serde.protocol import Effect, State, decision_of, effect_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.admin.transactions.asked import Request
    from halfbridge.checker.admin.transactions.waits import DeliveryWait, Undecided
    from halfbridge.checker.core.deferred import Lack
    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import HalfRead, OpRead
    from halfbridge.checker.core.plan import Plan
    from halfbridge.checker.core.settings import LedgerSettings
    from halfbridge.kafka.ports import StoredRecord
    from halfbridge.serde.avro import Codec
    from halfbridge.serde.delivery import Delivery
    from halfbridge.serde.progress import Progress
    from halfbridge.serde.records import DeadReason, Op

R = TypeVar("R", bound="tuple[object, ...]")

NOT_FOUND = "NOT_FOUND"
STATES = {
    State.UNDECIDED: "PREPARED",
    State.COMMITTED: "COMMITTED",
    State.ROLLED_BACK: "ROLLED_BACK",
    State.DISCARDED: "DISCARDED",
}
_PLAN_MAX = 1 << 60  # without a limit: nothing is written


class Kind(str, Enum):
    """What an event of a transaction's life is, in the order in which they happen."""

    HALF = "half"
    CHECK = "check"
    ANSWER = "answer"
    DECISION = "decision"
    COPY = "copy"
    DELIVERY = "delivery"
    DEAD_LETTER = "dead_letter"


class Verdict(str, Enum):
    """What became of an op.

    WON decided the transaction. COUNTED and NOT_COUNTED are answers. The others changed nothing.
    """

    WON = "WON"
    COUNTED = "COUNTED"
    NOT_COUNTED = "NOT_COUNTED"
    DUPLICATE = "DUPLICATE"
    CONFLICT = "CONFLICT"
    TOO_LATE = "TOO_LATE"
    INVALID = "INVALID"


class Payload(NamedTuple):
    """A record's own bytes."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record of a transaction's life. Fields that the kind of record does not have are None.

    Texts are as clients wrote them: a caller that prints them uses `one_line`.
    """

    kind: Kind
    # Append time; of a check request and a real record the time that the daemon wrote; None: not
    # known.
    at_ms: int | None
    topic: str
    partition: int
    offset: int
    resume_count: int | None = None
    producer_group: str | None = None
    message_index: int | None = None
    real_topic: str | None = None
    real_partition: int | None = None
    bytes: int | None = None  # of key, value and the user's headers
    check_times: int | None = None
    origin_offset: int | None = None
    op: str | None = None
    source: str | None = None
    actor: str | None = None
    reason: str | None = None
    message_count: int | None = None
    half_offset: int | None = None
    check_number: int | None = None
    attempt: int | None = None
    # verdict, why: an op's effect, and why.
    verdict: Verdict | None = None
    why: str | None = None
    # Whether the daemon's committed offsets have passed it; None: unknown.
    is_applied: bool | None = None
    payload: Payload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The life of one transaction."""

    id: str
    state: str  # PREPARED, COMMITTED, ROLLED_BACK, DISCARDED or NOT_FOUND
    resume_count: int = 0  # the life that `state` is of: the last one found
    producer_group: str | None = None  # that of the first half message, or of the first op
    partition: int | None = None
    decided_by: Event | None = None
    # Whether the daemon has applied the decision; None: undecided, or not known.
    is_applied: bool | None = None
    events: tuple[Event, ...] = ()  # the records, in the order of time
    undecided: Undecided | None = None
    is_deferred: bool = False  # a worker has applied the COMMIT, and the delivery waits
    # Why a decided transaction has no end yet; None: undecided, or it is ended.
    delivery_wait: DeliveryWait | None = None
    # What its messages cannot be written to now, as long as some are not delivered.
    lacks: tuple[Lack, ...] = ()
    # For how long a delivery waits for a topic, by the daemon's settings record.
    topic_gone_ms: int = 0
    # read_from_ms, read_until_ms: the range of time that was read; None: to the end of the logs.
    read_from_ms: int | None = None
    read_until_ms: int | None = None
    at_ms: int = 0  # when this was found, by the operator's clock
    delivery: Delivery | None = None
    notes: tuple[str, ...] = ()  # what else an operator should know, one sentence each


class Ruling(NamedTuple):
    """What became of an op, and why."""

    verdict: Verdict
    why: str


class Judged(NamedTuple):
    """The ledger's judgement of the records of one transaction id."""

    group: str  # the producer group that the id belongs to; empty without records
    resume_count: int  # the last life found of that group
    state: State
    winner: int | None  # op offset of the decision of that life; None while undecided
    entry: Entry | None  # the ledger's entry of that life while it is undecided
    rulings: dict[int, Ruling]  # op offset -> what became of the op
    # (resume count, message index) of the messages that the daemon delivers.
    deliver: set[tuple[int, int]]
    dead: dict[tuple[int, int], DeadReason]  # the same of what becomes a dead letter -> the reason


def judge(
    halves: Sequence[HalfRead], ops: Sequence[OpRead], settings: LedgerSettings
) -> Judged | None:
    """Return what becomes of a transaction; None where no record of it was found.

    The half records and the ops are all of one id and one pair.
    """
    if not halves and not ops:
        return None
    book = Book(settings)
    apply = Ops(book).apply
    left = deque(sorted(halves, key=lambda half: half.offset))
    group = left[0].metadata.producer_group if left else ops[0].op.producer_group
    winners: dict[tuple[int, str], int] = {}
    rulings: dict[int, Ruling] = {}
    plans: list[Plan] = []
    for read in sorted(ops, key=lambda each: each.offset):
        while left and left[0].offset <= read.op.half_offset:
            book.half(left.popleft())
        op = read.op
        entry = book.entries.find(op.transaction_id, op.resume_count, op.producer_group)
        before = None if entry is None else entry.state
        is_others = entry is None and book.entries.is_other_groups(
            op.transaction_id, op.resume_count
        )
        apply(read, read.append_ms)
        plan = book.draft.pop()
        plans.append(plan)
        entry = book.entries.find(op.transaction_id, op.resume_count, op.producer_group)
        after = None if entry is None else entry.state
        rulings[read.offset] = _ruling(op, before, after, plan, is_others=is_others)
        if rulings[read.offset].verdict is Verdict.WON:
            winners[op.resume_count, op.producer_group] = read.offset
    for half in left:
        book.half(half)
    book.draft.add_letters(records_max=_PLAN_MAX, size_bytes_max=_PLAN_MAX)
    plans.append(book.draft.pop())
    return _judged(book, group, winners, rulings, plans)


def _judged(
    book: Book,
    group: str,
    winners: dict[tuple[int, str], int],
    rulings: dict[int, Ruling],
    plans: list[Plan],
) -> Judged:
    lives = {_resume_count(entry): entry for entry in book.entries if entry.group == group}
    last = max(lives, default=0)
    entry = lives.get(last)
    is_open = entry is not None and entry.state is State.UNDECIDED
    return Judged(
        group,
        last,
        State.UNDECIDED if entry is None else entry.state,
        winners.get((last, group)),
        entry if is_open else None,
        rulings,
        {
            (half.metadata.resume_count, half.metadata.message_index)
            for plan in plans
            for delivery in plan.deliveries
            for half in delivery.messages
            if half.metadata.producer_group == group
        },
        {
            (one.half.metadata.resume_count, one.half.metadata.message_index): one.reason
            for plan in plans
            for one in plan.dead
            if one.half.metadata.producer_group == group
        },
    )


def _resume_count(entry: Entry) -> int:
    count = entry.key[1]
    return count if isinstance(count, int) else 0


def _ruling(  # noqa: PLR0911 (one line for each case)
    op: Op, before: State | None, after: State | None, plan: Plan, *, is_others: bool
) -> Ruling:
    """Return what became of `op`, which brought its transaction from `before` to `after`."""
    if is_others:
        return Ruling(Verdict.INVALID, "it is of another producer group than the id")
    if before is None and decision_of(op) is not None:
        return Ruling(Verdict.WON, "the first decision; no half message was found before it")
    effect = effect_of(op, before or State.UNDECIDED)
    if effect is Effect.INVALID:
        return Ruling(Verdict.INVALID, f"{op.source.value} may not write a {op.kind.value}")
    if effect is Effect.ANSWER:
        return _answer(op, plan)
    if before in (None, State.UNDECIDED):
        if after is State.UNDECIDED:
            text = f"its append time does not prove the age of {op.age_ms} ms"
            return Ruling(Verdict.INVALID, text)
        return Ruling(Verdict.WON, "the first decision in op order")
    state = STATES[before] if before else ""
    if effect is Effect.DUPLICATE:
        return Ruling(Verdict.DUPLICATE, f"the transaction was {state} already")
    if effect is Effect.CONFLICT:
        return Ruling(Verdict.CONFLICT, f"it contradicts: the transaction was {state}")
    return Ruling(Verdict.TOO_LATE, f"the transaction was {state} already")


def _answer(op: Op, plan: Plan) -> Ruling:
    if plan.counts[Count.ANSWER_COUNTED]:
        return Ruling(Verdict.COUNTED, f"it answers check {op.check_number}")
    if not op.check_number:
        return Ruling(Verdict.NOT_COUNTED, "the checker gave no resolution")
    return Ruling(Verdict.NOT_COUNTED, "it does not answer the pending check")


# The order of events of one moment, as they happen.
_ORDER = {kind: number for number, kind in enumerate(Kind)}


def half_event(record: StoredRecord, half: HalfRead) -> Event:
    """Return an original or a copy."""
    metadata = half.metadata
    is_copy = metadata.origin_offset >= 0
    return _event(
        Kind.COPY if is_copy else Kind.HALF,
        record,
        half.append_ms,
        resume_count=metadata.resume_count,
        producer_group=metadata.producer_group,
        message_index=metadata.message_index,
        real_topic=metadata.real_topic,
        real_partition=_known(metadata.real_partition),
        bytes=half.user_bytes,
        check_times=metadata.check_times if is_copy else None,
        origin_offset=_known(metadata.origin_offset),
        reason=half.flaw or None,
    )


def op_event(
    record: StoredRecord, read: OpRead, ruling: Ruling | None, progress: Progress | None
) -> Event:
    """Return an answer or a decision."""
    op = read.op
    is_answer = decision_of(op) is None and op.kind.value == "UNKNOWN"
    return _event(
        Kind.ANSWER if is_answer else Kind.DECISION,
        record,
        read.append_ms,
        resume_count=op.resume_count,
        producer_group=op.producer_group,
        op=op.kind.value,
        source=op.source.value,
        actor=op.actor,
        reason=op.reason or None,
        message_count=_known(op.message_count),
        half_offset=op.half_offset,
        check_number=op.check_number or None,
        verdict=None if ruling is None else ruling.verdict,
        why=None if ruling is None else ruling.why,
        is_applied=None if progress is None else progress.has_applied(read.offset),
    )


def check_event(found: Request) -> Event:
    """Return a check request."""
    request = found.request
    return Event(
        kind=Kind.CHECK,
        at_ms=_known(request.sent_timestamp),
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        resume_count=request.resume_count,
        producer_group=request.producer_group,
        message_index=request.message_index,
        check_number=request.check_number,
        attempt=request.attempt,
    )


def delivery_event(record: StoredRecord) -> Event:
    """Return a record of a real topic; without a message index where the record has a wrong one."""
    headers = headers_or_none(record)
    try:
        identity = real_identity(headers)
    except DecodeError:
        identity = None
    return _event(
        Kind.DELIVERY,
        record,
        record.timestamp()[1],
        message_index=None if identity is None else identity[1],
        bytes=len(record.key() or b"")
        + len(record.value() or b"")
        + sum(
            len(name.encode()) + len(value or b"")
            for name, value in headers
            if name not in RESERVED
        ),
    )


def dead_letter_event(record: StoredRecord) -> Event:
    """Return a dead letter. What cannot be read of it is None."""
    headers = headers_or_none(record)
    half = _decoded(headers, HALF, HALF_METADATA)
    letter = _decoded(reversed(headers), DEAD, DEAD_LETTER)
    known: dict[str, Any] = {}  # fields of an Event, each of its own type
    if half is not None:
        same = ("resume_count", "producer_group", "message_index", "real_topic")
        known |= {name: getattr(half, name) for name in same}
    if letter is not None:
        known |= {
            "op": letter.decision.value,
            "reason": letter.reason.value,
            "why": letter.detail or None,
            "check_times": _known(letter.check_times),
            "origin_offset": _known(letter.source_offset),
        }
    appended_ms = append_ms(record)
    at_ms = appended_ms if appended_ms > 0 else record.timestamp()[1]
    return _event(Kind.DEAD_LETTER, record, at_ms, **known)


def _event(kind: Kind, record: StoredRecord, at_ms: int, **fields: Any) -> Event:
    return Event(
        kind=kind,
        at_ms=_known(at_ms),
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        **fields,
    )


def with_payload(event: Event, record: StoredRecord) -> Event:
    """Return `event` with the record's own bytes."""
    headers = tuple(headers_or_none(record))
    return replace(event, payload=Payload(record.key(), record.value(), headers))


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return events in the order of time, those of one moment as they happen.

    Events whose time is not known come first.
    """
    return tuple(sorted(events, key=lambda each: (each.at_ms or 0, _ORDER[each.kind], each.offset)))


def _decoded(headers: Iterable[tuple[str, bytes | None]], name: str, codec: Codec[R]) -> R | None:
    """Return the content of the first header called `name`; None: there is none to be read."""
    value = next((value or b"" for key, value in headers if key == name), None)
    try:
        return None if value is None else codec.decode(value)
    except DecodeError:
        return None


def _known(number: int) -> int | None:
    return None if number < 0 else number
