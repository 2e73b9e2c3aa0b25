"""Keeps a ledger's memory below two budgets: one for bodies, one for everything else. Pure.

Bodies beyond their budget are released, and read again by offset. Everything else is called
entries: transactions, decisions that a rebuild needs, waiting ops, waiting dead letters. They
cannot be released, so the worker must stop reading in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.events import op_bytes
from halfbridge.checker.core.settings import RECENT_MAX

if TYPE_CHECKING:
    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.events import JunkRead
    from halfbridge.checker.core.rebuild import Rebuild

# Waiting unreadable ops may take a quarter of the budget of bodies, besides the half for waiting
# dead letters (`LETTERS_SHARE`). The last quarter is for the unreadable ops of a plan that is not
# committed yet. The body of an op cannot be released.
JUNK_OPS_SHARE = 4
# Percentages of the budget of entries. From PRESSED_PERCENT on, fewer decisions are kept
# (`Book.keep_window`). From ALARM_PERCENT on, the operator is warned. From HALVES_PERCENT on, half
# records are read only if they are needed, and from NEEDED_HALVES_PERCENT on, not at all. From
# OPS_PERCENT on, ops are not read either. Ops are read longest because decisions make room.
# The first measure costs only more put backs, so it comes early: what still reaches the alarm is
# mostly undecided. The alarm leaves 15 % to act in. Above HALVES_PERCENT is room for the eighth
# that waiting ops may take (OPS_SHARE), and for some of the half messages that they wait for. The
# last 5 % are for ops alone. Lower limits stop reading too early, higher ones leave no room.
PRESSED_PERCENT = 50
ALARM_PERCENT = 70
HALVES_PERCENT = 85
NEEDED_HALVES_PERCENT = 95
OPS_PERCENT = 100
# Decisions that are kept besides the RECENT_MAX recent ones: from PRESSED_PERCENT on, one for each
# undecided half message; from HALVES_PERCENT on, one for every 4. Ops are not read only where put
# backs could not keep the decisions below that number.
FULL_SHARE = 4
# Reading resumes this far below its limit, so that it does not stop and resume with each record.
RESUME_PERCENT = 5
# Waiting ops take at most an eighth of the budget of entries, and at most the memory of about
# 50,000 usual ops: as many as a worker applies in a second.
OPS_SHARE = 8
OPS_BYTES_MAX = 24_000_000


class Memory:
    """Counts the memory of one ledger, and says when the worker must stop reading.

    Attributes:
        rebuild: The rebuild; None once it has filled the book.
        ops_bytes: Bytes of waiting ops, without the bodies of unreadable ops. The ledger itself
            adds and subtracts the bytes of each readable op.
        junk_op_bytes: Bytes of the bodies of unreadable ops.
    """

    def __init__(self, book: Book, rebuild: Rebuild, *, bodies_max: int, entries_max: int) -> None:
        self.rebuild: Rebuild | None = rebuild
        self.ops_bytes = 0
        self.junk_op_bytes = 0
        self._book = book
        self._bodies_max = bodies_max
        self._entries_max = entries_max

    def junk_op(self, record: JunkRead) -> None:
        """Record that an unreadable op waits."""
        self.ops_bytes += op_bytes(record)
        self.junk_op_bytes += record.body_bytes

    def junk_op_is_gone(self, record: JunkRead) -> None:
        """Record that an unreadable op no longer waits."""
        self.ops_bytes -= op_bytes(record)
        self.junk_op_bytes -= record.body_bytes

    @property
    def bodies_bytes(self) -> int:
        """Bytes of the bodies in memory, without the bodies of returned plans."""
        if self.rebuild is not None:
            return self.rebuild.held_bytes + self.junk_op_bytes
        return self._book.held.held_bytes + self._other_bodies_bytes

    @property
    def messages_bytes(self) -> int:
        """Bytes of undecided half messages and waiting dead letters, without bodies."""
        return self._book.held.metadata_bytes + self._book.draft.letters.metadata_bytes

    @property
    def entries_bytes(self) -> int:
        """Bytes of entries, without returned plans: an estimate."""
        if self.rebuild is not None:
            return self.rebuild.entries_bytes + self.ops_bytes
        return self._book.entries.size_bytes + self.messages_bytes + self.ops_bytes

    @property
    def needs_copies(self) -> bool:
        """Whether decided transactions are kept until a copy of the first one is read back."""
        first = self._book.decided.first()
        return first is not None and bool(first.unread_copies)

    def takes_halves(self, plan_bytes: int, *, are_needed: bool, is_paused: bool) -> bool:
        """Tell whether more half records may be read; `are_needed`: an op waits for one.

        A rebuild always reads more. Paused reading resumes only RESUME_PERCENT below the limit.
        """
        if self.rebuild is not None:
            return True
        if are_needed or self.needs_copies:
            return self.fill_percent(plan_bytes) < NEEDED_HALVES_PERCENT
        return self.fill_percent(plan_bytes) < HALVES_PERCENT - RESUME_PERCENT * is_paused

    def takes_ops(self, plan_bytes: int, *, wait: bool, is_paused: bool) -> bool:
        """Tell whether more ops may be read; not if those read `wait` for half records."""
        if self.junk_op_bytes > self._bodies_max // JUNK_OPS_SHARE:
            return False
        if self.ops_bytes > min(OPS_BYTES_MAX, self._entries_max // OPS_SHARE):
            return False
        if self.rebuild is not None:
            return True
        if wait and self.fill_percent(plan_bytes) >= PRESSED_PERCENT:
            return False
        if self.fill_percent(plan_bytes) < OPS_PERCENT - RESUME_PERCENT * is_paused:
            return True
        # Most ops make room: an undecided transaction takes more memory than a decided one.
        return len(self._book.decided) <= RECENT_MAX + self._book.held.halves // FULL_SHARE

    def fill_percent(self, plan_bytes: int) -> int:
        """Return the used percentage of the entries' budget; `plan_bytes` as in `takes_halves`."""
        return 100 * (self.entries_bytes + plan_bytes) // self._entries_max

    @property
    def ops_window_max(self) -> int | None:
        """Most ops from T to O where memory is scarce; None where memory is not scarce."""
        percent = self.fill_percent(0)
        if percent < PRESSED_PERCENT:
            return None
        halves = self._book.held.halves
        return RECENT_MAX + (halves if percent < HALVES_PERCENT else halves // FULL_SHARE)

    def keep_bodies(self, plan_bytes: int) -> None:
        """Release the oldest undecided bodies over the budget; a plan still holds `plan_bytes`."""
        if self.rebuild is None:
            left = self._bodies_max - self._other_bodies_bytes - plan_bytes
            self._book.held.keep_budget(max(0, left))

    def is_too_large(self, plan_bytes: int) -> bool:
        """Tell whether a returned plan's bodies and the bodies that must stay exceed the budget."""
        return plan_bytes + self._other_bodies_bytes > self._bodies_max

    @property
    def _other_bodies_bytes(self) -> int:
        return self._book.draft.letters.held_bytes + self.junk_op_bytes
