"""The ledger's output: what one kafka_txn must write, and the checks to send outside it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.core.events import CHAR_BYTES, record_bytes
from halfbridge.checker.core.settings import NOTES_MAX
from halfbridge.serde.limits import STUB_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.protocol import State
from halfbridge.serde.records import COUNT_UNKNOWN, DeadDecision, DeadReason, Op, OpKind, OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.core.entries import Entry
    from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead
    from halfbridge.serde.records import HalfMetadata


class Count(Enum):
    """What a plan counts; each member becomes a metric."""

    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    INVALID_OP = "invalid op"
    ORPHAN_OP = "orphan op"
    ANSWER_COUNTED = "answer counted"
    ANSWER_NOT_COUNTED = "answer not counted"
    ATTEMPT_FAILED = "attempt failed"
    CHECK_EXPIRED = "check expired"
    ROLLED_BACK = "rolled back"
    DEFERRED = "deferred"
    WAIT_CUT_SHORT = "wait cut short"


class PutBackRule(Enum):
    """Why an undecided transaction is put back."""

    ANSWER = "answer"
    WINDOW = "window"


class Delivery(NamedTuple):
    """Messages of one committed transaction, in the order sent. All are delivered, or none."""

    transaction_id: str
    producer_group: str
    messages: tuple[HalfRead, ...]
    check_times: int
    first_append_ms: int
    op_offset: int
    op_append_ms: int


@dataclass(frozen=True, slots=True)
class DeadHalf:
    """A half message for the dead-letter topic; `by_reference`: without any part of the body."""

    half: HalfRead
    reason: DeadReason
    detail: str
    check_times: int
    op_offset: int
    op_append_ms: int
    decision: DeadDecision = DeadDecision.NONE
    by_reference: bool = False


@dataclass(frozen=True, slots=True)
class DeadJunk:
    """An unreadable record for the dead-letter topic, reason INVALID."""

    record: JunkRead
    is_op: bool


Letter = DeadHalf | DeadJunk


@dataclass(frozen=True, slots=True)
class PutBack:
    """Append a copy of `half`, with `metadata`, at the end of the half partition."""

    half: HalfRead
    metadata: HalfMetadata
    rule: PutBackRule


@dataclass(frozen=True, slots=True)
class Check:
    """Ask the producer group about the transaction of `half`, its first message.

    Attributes:
        check_number: Counted answers so far, plus one.
        attempt: How many requests carried this check number, this request included.
        last_offset: Highest offset of a message of the transaction. The answer must cover it.
    """

    half: HalfRead
    check_number: int
    attempt: int
    last_offset: int


@dataclass(slots=True)
class Plan:
    """What one kafka_txn must write for one partition pair, in order.

    Attributes:
        records, size_bytes: How many records the kafka_txn has, and their size.
        notes: Conflicts and refused ops, for the log.
        rolled_back: Real topic -> messages rolled back.
        metadata_bytes: Most bytes that the plan takes in memory, without bodies: an estimate.
        body_bytes: Bytes of the bodies in memory. The ledger counts the bodies of put-backs.
    """

    deliveries: list[Delivery] = field(default_factory=list)
    dead: list[DeadHalf] = field(default_factory=list)
    junk: list[DeadJunk] = field(default_factory=list)
    put_backs: list[PutBack] = field(default_factory=list)
    discards: list[Op] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    counts: Counter[Count] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    rolled_back: Counter[str] = field(default_factory=Counter)
    metadata_bytes: int = 0
    body_bytes: int = 0


_DECISIONS = {
    State.UNDECIDED: DeadDecision.NONE,
    State.COMMITTED: DeadDecision.COMMIT,
    State.ROLLED_BACK: DeadDecision.ROLLBACK,
    State.DISCARDED: DeadDecision.DISCARD,
}


class Draft:
    """Collects what the next kafka_txn must write; waiting dead letters hold `body_bytes_max`."""

    def __init__(self, body_bytes_max: int) -> None:
        self.plan = Plan()
        self.letters = Letters(body_bytes_max)

    def pop(self) -> Plan:
        """Return the plan, and begin an empty one."""
        plan, self.plan = self.plan, Plan()
        return plan

    def count(self, count: Count) -> None:
        """Count an event."""
        self.plan.counts[count] += 1

    def note(self, count: Count, text: str) -> None:
        """Count an event, and describe it for the log."""
        self.plan.counts[count] += 1
        if len(self.plan.notes) < NOTES_MAX:
            self.plan.notes.append(text)

    def deliver(self, entry: Entry, messages: tuple[HalfRead, ...], read: OpRead) -> None:
        """Deliver `messages` of a transaction that `read` commits."""
        plan = self.plan
        plan.deliveries.append(
            Delivery(
                read.op.transaction_id,
                entry.group,
                messages,
                entry.check_times,
                entry.first_append_ms,
                read.offset,
                read.append_ms,
            )
        )
        plan.records += len(messages)
        for half in messages:
            plan.size_bytes += half.size_bytes

    def roll_back(self, entry: Entry) -> None:
        """Count a transaction that was rolled back, and its messages by real topic."""
        self.plan.counts[Count.ROLLED_BACK] += 1
        for half in entry.messages.values():
            self.plan.rolled_back[half.metadata.real_topic] += 1

    def dead_letter(
        self,
        entry: Entry,
        half: HalfRead,
        reason: DeadReason,
        detail: str,
        read: OpRead,
        *,
        by_reference: bool,
    ) -> None:
        """Dead-letter a message whose transaction `read` decides."""
        dead = DeadHalf(
            half=half._replace(body=None) if by_reference else half,
            reason=reason,
            detail=detail,
            check_times=entry.check_times,
            op_offset=read.offset,
            op_append_ms=read.append_ms,
            decision=DeadDecision(read.op.kind.value),
            by_reference=by_reference,
        )
        self.plan.dead.append(dead)
        self._grow_by(dead)

    def dead_letter_late(self, entry: Entry, half: HalfRead) -> None:
        """Add the waiting dead letter of a message that came after its transaction's decision."""
        detail = f"the transaction was {entry.state.value} before"
        if not entry.known:
            # The message may be a duplicate of a delivered one: the known indices are lost.
            detail += ", and its messages are no longer known"
        self.letters.add(
            DeadHalf(
                half,
                DeadReason.LATE,
                detail,
                entry.check_times,
                entry.op_offset,
                -1,
                _DECISIONS[entry.state],
            )
        )

    def dead_letter_excess(self, entry: Entry, half: HalfRead) -> None:
        """Add the waiting dead letter, by reference, of a message whose index is too high."""
        index = half.metadata.message_index
        detail = f"message index {index}; a transaction has {TRANSACTION_MESSAGES_MAX} at most"
        self.letters.add(
            DeadHalf(
                half._replace(body=None),
                DeadReason.TOO_LARGE,
                detail,
                entry.check_times,
                -1,
                -1,
                by_reference=True,
            )
        )

    def dead_letter_junk_half(self, record: JunkRead) -> None:
        """Add the waiting dead letter of a half record that cannot be read."""
        self.letters.add(DeadJunk(record, is_op=False))

    def dead_letter_junk_op(self, record: JunkRead) -> None:
        """Dead-letter an op that cannot be read."""
        self.plan.counts[Count.INVALID_OP] += 1
        self.plan.junk.append(DeadJunk(record, is_op=True))
        self._grow((record,))

    def add_letters(self, *, records_max: int, size_bytes_max: int) -> None:
        """Move waiting dead letters into the plan while the plan is within its limits."""
        plan, letters = self.plan, self.letters
        while letters and plan.records < records_max and plan.size_bytes < size_bytes_max:
            letter = letters.pop()
            if isinstance(letter, DeadHalf):
                plan.dead.append(letter)
                self._grow_by(letter)
            else:
                plan.junk.append(letter)
                self._grow((letter.record,))

    def put_back(self, entry: Entry, rule: PutBackRule) -> None:
        """Append copies of all messages of an undecided transaction."""
        messages = entry.in_order()
        for half in messages:
            metadata = half.metadata._replace(
                check_times=entry.check_times,
                first_append_timestamp=entry.first_append_ms,
                origin_offset=half.origin,
            )
            self.plan.put_backs.append(PutBack(half, metadata, rule))
        self._grow(messages)

    def discard(
        self, entry: Entry, reason: str, actor: str, now_ms: int, *, age_ms: int = 0
    ) -> None:
        """Write a DISCARD; one for AGE has an `age_ms` that its append time must prove."""
        half = max(entry.messages.values(), key=lambda half: half.offset)
        metadata = half.metadata
        self.plan.discards.append(
            Op(
                transaction_id=metadata.transaction_id,
                timestamp=now_ms,
                half_offset=half.offset,
                resume_count=metadata.resume_count,
                producer_group=entry.group,
                kind=OpKind.DISCARD,
                message_count=COUNT_UNKNOWN,
                check_number=entry.check_times,
                source=OpSource.CHECKER,
                actor=actor,
                reason=reason,
                age_ms=age_ms,
            )
        )
        self.plan.records += 1

    def _grow_by(self, dead: DeadHalf) -> None:
        self.plan.records += 1
        self.plan.size_bytes += STUB_BYTES_MAX if dead.by_reference else dead.half.size_bytes

    def _grow(self, records: Iterable[HalfRead | JunkRead]) -> None:
        plan = self.plan
        for record in records:
            plan.records += 1
            plan.size_bytes += record.size_bytes


# Waiting dead letters may take half of the budget of bodies; `memory.JUNK_OPS_SHARE` describes the
# other half.
LETTERS_SHARE = 2
# A dead letter without its text; tests compare it with what CPython allocates.
LETTER_BYTES = 160


class Letters:
    """Waiting dead letters, in the order of their half offsets.

    One fetch may bring more dead letters than a plan has room for. They are written before any
    further op is applied, and P stays at the first one. Example: half records are read to 900, and
    the dead letter of 870 does not fit into the plan. P is 870, so a rebuild still dead-letters
    870. Bodies over `body_bytes_max` are released and read again by offset.

    Attributes:
        held_bytes: Bytes of the bodies in memory.
        metadata_bytes: Bytes of the dead letters without bodies: an estimate.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self._waiting: deque[Letter] = deque()
        self._body_bytes_max = body_bytes_max
        self.held_bytes = 0
        self.metadata_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, letter: Letter) -> None:
        """Add a dead letter, without its body if there is no room; offsets ascend."""
        record = record_of(letter)
        if record.body is not None:
            if self.held_bytes + record.body_bytes <= self._body_bytes_max:
                self.held_bytes += record.body_bytes
            else:
                letter = _without_body(letter)
        self.metadata_bytes += letter_bytes(letter)
        self._waiting.append(letter)

    def pop(self) -> Letter:
        """Remove and return the first dead letter."""
        letter = self._waiting.popleft()
        self.metadata_bytes -= letter_bytes(letter)
        record = record_of(letter)
        if record.body is not None:
            self.held_bytes -= record.body_bytes
        return letter

    def first(self) -> int | None:
        """Return the half offset of the first dead letter, if any."""
        return record_of(self._waiting[0]).offset if self._waiting else None


def record_of(letter: Letter) -> HalfRead | JunkRead:
    """Return the record that the dead letter is about."""
    return letter.half if isinstance(letter, DeadHalf) else letter.record


def letter_bytes(letter: Letter) -> int:
    """Return the bytes of a waiting dead letter without its body."""
    if isinstance(letter, DeadHalf):
        return LETTER_BYTES + letter.half.metadata_bytes + CHAR_BYTES * len(letter.detail)
    return LETTER_BYTES + record_bytes(letter.record)


def _without_body(letter: Letter) -> Letter:
    if isinstance(letter, DeadHalf):
        return replace(letter, half=letter.half._replace(body=None))
    return replace(letter, record=letter.record._replace(body=None))
