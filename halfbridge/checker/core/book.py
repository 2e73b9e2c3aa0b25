"""The transactions of one partition pair, and the structures that must agree about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.deferred import Deferred
from halfbridge.checker.core.entries import IN_FLIGHT, Decided, Entries, Entry, Holdings
from halfbridge.checker.core.events import is_excess, is_too_large
from halfbridge.checker.core.plan import LETTERS_SHARE, Count, Draft, PutBackRule
from halfbridge.checker.core.schedule import NOT_SCHEDULED, STALE_MAX, CheckSchedule, first_due_ms
from halfbridge.checker.core.settings import WINDOW_PER_UNDECIDED, LedgerSettings
from halfbridge.serde.protocol import REASON_TOO_LARGE, State, decision_of

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead, OpRead


class Book:
    """All known transactions of a pair, and the draft of the next plan.

    Attributes:
        held: The transactions whose messages are still held: undecided or deferred.
        deferred: Decided transactions whose delivery waits.
        unaged: Undecided transactions that are not scheduled, because their append time is unknown.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        self.entries = Entries()
        self.held = Holdings()
        self.decided = Decided(self.entries)
        self.deferred = Deferred()
        self.schedule = CheckSchedule()
        self.draft = Draft(settings.ledger_bytes_max // LETTERS_SHARE)
        self.unaged: list[Entry] = []

    def half(self, half: HalfRead) -> None:
        """Add a readable half record; offsets ascend from call to call."""
        metadata = half.metadata
        transaction_id, resume_count = metadata.transaction_id, metadata.resume_count
        entry = self.entries.find(transaction_id, resume_count, metadata.producer_group)
        if entry is None:
            entry = Entry(half)
            self.entries.put(entry, transaction_id, resume_count)
            self.held.hold(entry)
            self._schedule_first(entry, metadata.immunity_ms)
        elif metadata.origin_offset < 0:
            self._another(entry, half)
        else:
            self._copy_back(entry, half)

    def restore(self, entry: Entry) -> None:
        """Add a transaction from a rebuild, undecided or deferred; offsets ascend."""
        self.held.hold(entry)
        if entry.deferred is not None:
            return
        halves = entry.messages.values()
        last_ms = max(half.append_ms for half in halves)
        if entry.check_times and last_ms >= 0:
            self.schedule.add(entry, last_ms + self.settings.check_interval_ms)
        else:
            immunity_ms = max(half.metadata.immunity_ms for half in halves)
            self._schedule_first(entry, immunity_ms)

    def schedule_unaged(self, now_ms: int) -> None:
        """Schedule transactions of unknown append time as if appended at `now_ms`; 0: do nothing.

        An earlier time could bring a check before the local transaction ends, and so a wrong
        answer.
        """
        if now_ms or len(self.unaged) > 2 * self.held.halves + STALE_MAX:
            self.unaged = [each for each in self.unaged if each.decided is State.UNDECIDED]
        if not self.unaged or not now_ms:
            return
        for entry in self.unaged:
            immunity_ms = max(half.metadata.immunity_ms for half in entry.messages.values())
            self.schedule.add(entry, self._first_due_ms(now_ms, immunity_ms))
        self.unaged = []

    def decide(self, entry: Entry, state: State, op_offset: int, now_ms: int) -> None:
        """Mark an undecided or deferred transaction as decided, and release its messages."""
        was_deferred = entry.deferred is not None
        self.held.release(entry)
        entry.decide(state, op_offset, now_ms)
        if was_deferred:
            self.decided.settled(entry)
        else:
            self.decided.add(entry)

    def defer(self, entry: Entry, read: OpRead) -> None:
        """Let the delivery that `read` commits wait; the messages stay held. No check is sent."""
        entry.deferred = read
        entry.op_offset = read.offset
        entry.due_ms = NOT_SCHEDULED
        self.decided.add(entry)
        self.deferred.add(entry, read)

    def remember(self, entry: Entry | None, read: OpRead, now_ms: int) -> None:
        """Remember a deciding op whose transaction (`entry`) is unknown or already decided.

        A rebuild that begins at this op cannot tell it from a first decision whose half message
        came late, so the ledger keeps the op as well. An op that does not decide is ignored.
        """
        op = read.op
        state = decision_of(op)
        if state is None:
            return
        unseen = Entry.decided_unseen(op, state, read.offset, now_ms)
        if entry is None:
            self.entries.put(unseen, op.transaction_id, op.resume_count)
            self.decided.add(unseen)
        else:
            self.decided.add_again(entry, unseen)

    def put_back(self, entry: Entry, rule: PutBackRule, now_ms: int) -> bool:
        """Put back all messages of an undecided transaction; return False where that cannot be.

        That is: the transaction is too large, or the half topic does not accept a copy of a
        message. A DISCARD is written for it, and H does not pass its messages until the DISCARD is
        read back.
        """
        if not self._can_be_put_back(entry):
            if not entry.discarding and entry.deferred is None:
                entry.discarding = True
                self.draft.discard(entry, REASON_TOO_LARGE, self.settings.actor, now_ms)
            return False
        self.draft.put_back(entry, rule)
        before = entry.unread_copies
        entry.unread_copies = {index: before.get(index, 0) + 1 for index in entry.messages}
        entry.offset = IN_FLIGHT
        return True

    def keep_window(
        self,
        position: int,
        op: int,
        now_ms: int,
        *,
        records_max: int,
        size_bytes_max: int,
        ops_max: int | None,
    ) -> None:
        """Put back the oldest undecided transactions while a rebuild would read too large a window.

        Half records below `position` were read, ops below `op` applied. `ops_max`: most ops from T
        to `op` where memory is scarce, else None.
        """
        plan = self.draft.plan
        while plan.records < records_max and plan.size_bytes < size_bytes_max:
            entry = self.held.lowest()
            if entry is None or entry.unread_copies:
                return
            holds_too_much = self._holds_halves(entry, position) or self._holds_ops(
                entry, op, ops_max
            )
            if not holds_too_much:
                return
            if not self.put_back(entry, PutBackRule.WINDOW, now_ms):
                return

    def _can_be_put_back(self, entry: Entry) -> bool:
        halves = entry.messages.values()
        return not is_too_large(halves) and all(map(self.settings.copy_fits, halves))

    def _holds_halves(self, entry: Entry, position: int) -> bool:
        """Tell whether `entry`, the lowest, makes a rebuild read too many half records."""
        settings, held = self.settings, self.held
        records = position - entry.offset
        size_bytes = held.read_bytes - entry.bytes_at
        return (
            records > settings.republish_window_records + WINDOW_PER_UNDECIDED * held.halves
            or size_bytes > settings.republish_window_bytes + WINDOW_PER_UNDECIDED * held.size_bytes
        )

    def _holds_ops(self, entry: Entry, op: int, ops_max: int | None) -> bool:
        """Tell whether `entry`, the lowest, holds T and so makes a rebuild read too many ops."""
        first = self.decided.first()
        if first is None or first.last_record < entry.offset or first.deferred is not None:
            return False  # T is held for another reason, which a put back would not change
        window = self.settings.republish_window_records + WINDOW_PER_UNDECIDED * self.held.halves
        return op - first.op_offset > (window if ops_max is None else min(window, ops_max))

    def _another(self, entry: Entry, half: HalfRead) -> None:
        index = half.metadata.message_index
        entry.last_record = half.offset
        if entry.state is State.UNDECIDED:
            if index in entry.messages:
                self.draft.count(Count.DUPLICATE)  # rule 7: first wins
                return
            if is_excess(half):
                if entry.has_excess:
                    self.draft.dead_letter_excess(entry, half)
                    return
                entry.has_excess = True
            self.held.add(entry, half)
            immunity_ms = half.metadata.immunity_ms
            asked = entry.attempt or entry.check_times
            is_checked = entry.deferred is None and not asked
            if immunity_ms > self.settings.transaction_timeout_ms and is_checked:
                if entry.first_append_ms < 0:
                    self.unaged.append(entry)
                    return
                due_ms = self._first_due_ms(entry.first_append_ms, immunity_ms)
                self.schedule.add(entry, max(due_ms, entry.due_ms))
        elif index in entry.known or entry.state is State.ROLLED_BACK:
            self.draft.count(Count.DUPLICATE)
        else:
            self.draft.dead_letter_late(entry, half)

    def _copy_back(self, entry: Entry, half: HalfRead) -> None:
        """Add a copy. If this ledger wrote the copy, it replaces the message's earlier record."""
        index = half.metadata.message_index
        entry.last_record = half.offset
        left = entry.unread_copies.get(index, 0)
        if left == 0:
            self.draft.count(Count.DUPLICATE)  # a copy that this ledger did not write
            return
        if left == 1:
            del entry.unread_copies[index]
        else:
            entry.unread_copies[index] = left - 1
        if entry.state is State.UNDECIDED:
            self.held.replace(entry, half)

    def _schedule_first(self, entry: Entry, immunity_ms: int) -> None:
        timeout_ms = self.settings.transaction_timeout_ms
        if entry.first_append_ms < 0:
            self.unaged.append(entry)
        elif immunity_ms <= timeout_ms:
            self.schedule.add_in_turn(entry, entry.first_append_ms + timeout_ms)
        else:
            self.schedule.add(entry, self._first_due_ms(entry.first_append_ms, immunity_ms))

    def _first_due_ms(self, append_ms: int, immunity_ms: int) -> int:
        settings = self.settings
        return first_due_ms(
            append_ms,
            immunity_ms,
            settings.transaction_timeout_ms,
            settings.transaction_age_ms_max // 2,
        )
