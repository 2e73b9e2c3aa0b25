"""What a ledger holds in memory, kept below two budgets: one of bodies, one of all else. Pure.

Bodies can be read again by offset, so those beyond their budget are let go. The rest is called
entries: what is known of transactions, decisions that a rebuild needs, ops and dead letters that
wait. The ledger works with all of it and can let nothing go, so whoever reads for the ledger has to
stop in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.settings import RECENT_MAX
from halfbridge.checker.core.weights import op_bytes

if TYPE_CHECKING:
    from halfbridge.checker.core.book import Book
    from halfbridge.checker.core.events import JunkRead
    from halfbridge.checker.core.rebuild import Rebuild

# Of the budget of bodies at most a half is the letters', and at most a quarter that of unreadable
# ops that wait. An op's body cannot be let go, and as many bytes of unreadable ops may stand in a
# plan that waits besides.
LETTERS_SHARE = 2
JUNK_OPS_SHARE = 4
# Of the budget of entries, in percent: where fewer decisions are kept (`Book.keep_window`); where
# an operator is told; where halves are read no more unless they are needed; where not even then;
# and where ops are read no more. The last part is for ops because decisions are what makes room.
PRESSED_PERCENT = 50
ALARM_PERCENT = 70
HALVES_PERCENT = 85
NEEDED_HALVES_PERCENT = 95
OPS_PERCENT = 100
# Beside recent decisions one is kept for each undecided half message, when more than
# PRESSED_PERCENT is taken; and one for so many, when more than HALVES_PERCENT is. Ops are read no
# more only where put-backs did not help to keep that.
FULL_SHARE = 4
# What is not read at present is read again so far below its limit, and not with each record.
RESUME_PERCENT = 5
# Ops that wait take at most an eighth of the budget of entries, and no more than 50,000 of them
# take as a rule: what a loop applies in a second.
OPS_SHARE = 8
OPS_BYTES_MAX = 24_000_000


class Memory:
    """Counts what is in memory as the ledger takes it and lets it go.

    Args:
        book: The ledger's transactions.
        rebuild: What collects them before.
        bodies_max: The budget of bodies, bytes.
        entries_max: The budget of all else, bytes.

    Attributes:
        rebuild: None once the book is rebuilt.
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
        """Bytes of the bodies in memory, except the bodies of plans that were taken."""
        if self.rebuild is not None:
            return self.rebuild.held_bytes + self.junk_op_bytes
        return self._book.held.held_bytes + self._other_bodies_bytes

    @property
    def messages_bytes(self) -> int:
        """Bytes of half records without bodies: undecided half messages, and letters that wait."""
        return self._book.held.metadata_bytes + self._book.draft.letters.metadata_bytes

    @property
    def entries_bytes(self) -> int:
        """What all but bodies takes, without plans that were taken: an estimate."""
        if self.rebuild is not None:
            return self.rebuild.entries_bytes + self.ops_bytes
        return self._book.entries.size_bytes + self.messages_bytes + self.ops_bytes

    @property
    def needs_copies(self) -> bool:
        """Whether what was decided can be forgotten only after more half records are read.

        The first one's copies were not read back, and all that was decided later waits with it.
        """
        first = self._book.decided.first()
        return first is not None and bool(first.pending)

    def takes_halves(self, plan_bytes: int, *, are_needed: bool, is_paused: bool) -> bool:
        """Tell whether half records may be read on.

        A rebuild reads what was in memory before; nothing else would end it.

        Args:
            plan_bytes: What a plan takes that was taken, without bodies.
            are_needed: An op waits for one.
            is_paused: They are not read at present: then it takes a little more room, so that
                reading does not begin and end with each of them.
        """
        if self.rebuild is not None:
            return True
        if are_needed or self.needs_copies:
            return self.fill_percent(plan_bytes) < NEEDED_HALVES_PERCENT
        return self.fill_percent(plan_bytes) < HALVES_PERCENT - RESUME_PERCENT * is_paused

    def takes_ops(self, plan_bytes: int, *, wait: bool, is_paused: bool) -> bool:
        """Tell whether ops may be read on.

        Args:
            plan_bytes: As of `takes_halves`.
            wait: Those that were read wait for a half record: more of them would take the room
                that is left for it.
            is_paused: As of `takes_halves`.
        """
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
        # As a rule an op makes room: it decides an undecided transaction, which takes more.
        return len(self._book.decided) <= RECENT_MAX + self._book.held.halves // FULL_SHARE

    def fill_percent(self, plan_bytes: int) -> int:
        """Return how much of the budget of entries is taken.

        Args:
            plan_bytes: What a plan takes that was taken, without bodies.
        """
        return 100 * (self.entries_bytes + plan_bytes) // self._entries_max

    @property
    def ops_window_max(self) -> int | None:
        """How many ops from T to O there may be where memory is scarce; None where it is not."""
        percent = self.fill_percent(0)
        if percent < PRESSED_PERCENT:
            return None
        halves = self._book.held.halves
        return RECENT_MAX + (halves if percent < HALVES_PERCENT else halves // FULL_SHARE)

    def keep_bodies(self, plan_bytes: int) -> None:
        """Let the oldest bodies of undecided half messages go that are beyond the budget.

        Args:
            plan_bytes: Bytes of the bodies of a plan that was taken and is still in memory.
        """
        if self.rebuild is None:
            left = self._bodies_max - self._other_bodies_bytes - plan_bytes
            self._book.held.keep_budget(max(0, left))

    def is_too_large(self, plan_bytes: int) -> bool:
        """Tell whether the bodies of a plan that was taken do not fit beside what must stay.

        Args:
            plan_bytes: Their bytes.
        """
        return plan_bytes + self._other_bodies_bytes > self._bodies_max

    @property
    def _other_bodies_bytes(self) -> int:
        """Bytes of the bodies in memory that are not undecided half messages'."""
        return self._book.draft.letters.held_bytes + self.junk_op_bytes
