"""The draft of the next plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.letters import Letters
from halfbridge.checker.core.plan import (
    Count,
    DeadHalf,
    DeadJunk,
    Delivery,
    Plan,
    PutBack,
    PutBackRule,
)
from halfbridge.checker.core.settings import NOTES_MAX
from halfbridge.serde.limits import STUB_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.protocol import State
from halfbridge.serde.records import COUNT_UNKNOWN, DeadDecision, DeadReason, Op, OpKind, OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.core.entry import Entry
    from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead


_DECISIONS = {
    State.UNDECIDED: DeadDecision.NONE,
    State.COMMITTED: DeadDecision.COMMIT,
    State.ROLLED_BACK: DeadDecision.ROLLBACK,
    State.DISCARDED: DeadDecision.DISCARD,
}


class Draft:
    """Collects what the next kafka_txn must write.

    Args:
        body_bytes_max: Most bytes of bodies that waiting dead letters may hold.

    Attributes:
        letters: Dead letters that wait until a plan has room for them.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self.plan = Plan()
        self.letters = Letters(body_bytes_max)

    def take(self) -> Plan:
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

    def bury(
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

    def bury_late(self, entry: Entry, half: HalfRead) -> None:
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

    def bury_excess(self, entry: Entry, half: HalfRead) -> None:
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

    def bury_junk_half(self, record: JunkRead) -> None:
        """Add the waiting dead letter of a half record that cannot be read."""
        self.letters.add(DeadJunk(record, is_op=False))

    def bury_junk_op(self, record: JunkRead) -> None:
        """Dead-letter an op that cannot be read."""
        self.plan.counts[Count.INVALID_OP] += 1
        self.plan.junk.append(DeadJunk(record, is_op=True))
        self._grow((record,))

    def take_letters(self, *, records_max: int, size_bytes_max: int) -> None:
        """Move waiting dead letters into the plan while the plan is within its limits."""
        plan, letters = self.plan, self.letters
        while letters and plan.records < records_max and plan.size_bytes < size_bytes_max:
            letter = letters.take()
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
        """Write a DISCARD of the daemon. Its check_number is the number of counted answers.

        Args:
            entry: The undecided transaction.
            reason: CHECK_TIMES, AGE or TOO_LARGE.
            actor: Name of the worker.
            now_ms: Partition time.
            age_ms: For AGE, the age that the DISCARD's append time must prove; else 0.
        """
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
