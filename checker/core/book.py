"""The transactions of one partition pair, in the parts that must never disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checker.core.draft import Draft
from checker.core.entries import Entries
from checker.core.entry import IN_FLIGHT, Entry
from checker.core.forget import Decided
from checker.core.holdings import Holdings
from checker.core.plan import Count, PutBackRule
from checker.core.protocol import State, decision_of
from checker.core.schedule import CheckSchedule, first_due_ms
from checker.core.settings import WINDOW_PER_UNDECIDED, LedgerSettings

if TYPE_CHECKING:
    from checker.core.events import HalfRead, OpRead


class Book:
    """What is known of all transactions, and the draft of what follows from it.

    Attributes:
        entries: Every transaction, until it is forgotten.
        held: The undecided ones.
        decided: The others.
        schedule: When undecided ones are asked about.
        draft: The plan that is being drawn up.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self.settings = settings
        self.entries = Entries()
        self.held = Holdings()
        self.decided = Decided(self.entries)
        self.schedule = CheckSchedule()
        self.draft = Draft(settings.ledger_bytes_max)

    def half(self, half: HalfRead) -> None:
        """Take a readable half record; offsets ascend."""
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
        """Take an undecided transaction from a rebuild; offsets ascend."""
        self.held.hold(entry)
        halves = entry.messages.values()
        if entry.check_times:
            last_ms = max(half.append_ms for half in halves)
            self.schedule.add(entry, last_ms + self.settings.check_interval_ms)
        else:
            immunity_ms = max(half.metadata.immunity_ms for half in halves)
            self._schedule_first(entry, immunity_ms)

    def decide(self, entry: Entry, state: State, op_offset: int, now_ms: int) -> None:
        """Take the decision of an undecided transaction; its messages are gone from here then."""
        self.held.release(entry)
        entry.decide(state, op_offset, now_ms)
        self.decided.add(entry)

    def remember(self, entry: Entry | None, read: OpRead, now_ms: int) -> None:
        """Keep an op that would decide, were its transaction not unknown, or decided before.

        A rebuild that begins at this op can tell neither from a decision whose half came late.
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

    def put_back(self, entry: Entry, rule: PutBackRule) -> None:
        """Have all messages of an undecided transaction put back together."""
        self.draft.put_back(entry, rule)
        before = entry.pending
        entry.pending = {index: before.get(index, 0) + 1 for index in entry.messages}
        entry.offset = IN_FLIGHT

    def keep_window(self, position: int, *, records_max: int, size_bytes_max: int) -> None:
        """Put the oldest undecided back while the window that a rebuild reads is too large."""
        settings, held, draft = self.settings, self.held, self.draft
        while draft.plan.records < records_max and draft.plan.size_bytes < size_bytes_max:
            entry = held.lowest()
            if entry is None or entry.pending:
                return
            records = position - entry.offset
            size_bytes = held.read_bytes - entry.bytes_at
            if (
                records <= settings.republish_window_records + WINDOW_PER_UNDECIDED * held.halves
                and size_bytes
                <= settings.republish_window_bytes + WINDOW_PER_UNDECIDED * held.size_bytes
            ):
                return
            self.put_back(entry, PutBackRule.WINDOW)

    def _another(self, entry: Entry, half: HalfRead) -> None:
        """Take an original of a known transaction."""
        index = half.metadata.message_index
        entry.last_record = half.offset
        if entry.state is State.UNDECIDED:
            if index in entry.messages:
                self.draft.count(Count.DUPLICATE)  # rule 7: first wins
                return
            self.held.add(entry, half)
            immunity_ms = half.metadata.immunity_ms
            asked = entry.attempt or entry.check_times
            if immunity_ms > self.settings.transaction_timeout_ms and not asked:
                due_ms = self._first_due_ms(entry, immunity_ms)
                self.schedule.add(entry, max(due_ms, entry.due_ms))
        elif index in entry.known or entry.state is State.ROLLED_BACK:
            self.draft.count(Count.DUPLICATE)
        else:
            self.draft.bury_late(entry, half)

    def _copy_back(self, entry: Entry, half: HalfRead) -> None:
        """Take a copy; it stands for its message from now on when this ledger wrote it."""
        index = half.metadata.message_index
        entry.last_record = half.offset
        left = entry.pending.get(index, 0)
        if left == 0:
            self.draft.count(Count.DUPLICATE)  # a copy that nobody here wrote
            return
        if left == 1:
            del entry.pending[index]
        else:
            entry.pending[index] = left - 1
        if entry.state is State.UNDECIDED:
            self.held.replace(entry, half)

    def _schedule_first(self, entry: Entry, immunity_ms: int) -> None:
        timeout_ms = self.settings.transaction_timeout_ms
        if immunity_ms <= timeout_ms:
            self.schedule.add_in_turn(entry, entry.first_append_ms + timeout_ms)
        else:
            self.schedule.add(entry, self._first_due_ms(entry, immunity_ms))

    def _first_due_ms(self, entry: Entry, immunity_ms: int) -> int:
        settings = self.settings
        return first_due_ms(
            entry.first_append_ms,
            immunity_ms,
            settings.transaction_timeout_ms,
            settings.transaction_age_ms_max // 2,
        )
