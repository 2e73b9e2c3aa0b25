"""Decided transactions: how long each must stay known, and what T follows from them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from checker.core.settings import RECENT_MAX, RECENT_MS

if TYPE_CHECKING:
    from checker.core.entries import Entries
    from checker.core.entry import Entry


class Decided:
    """Decided transactions, in op order, forgotten from the front only.

    So what is known here is what was decided from T on, neither more nor less, and a rebuild,
    which reads those ops, comes to know the same. A transaction at the front stays while a
    rebuild would meet one of its records at or above the committed H (or a copy of it that was
    not read back), and after that for a while yet, so that a late duplicate half is known for
    what it is (rule 7).

    Args:
        entries: All transactions; forgotten ones are removed from it.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._queue: deque[Entry] = deque()

    def add(self, entry: Entry) -> None:
        """Add an entry that was just decided; op offsets ascend."""
        self._queue.append(entry)

    def lowest_op(self, op: int) -> int:
        """Return T: the lowest decision op that a rebuild needs, else O = `op`."""
        return self._queue[0].op_offset if self._queue else op

    def forget(self, half: int, now_ms: int) -> None:
        """Forget from the front what neither a rebuild from H = `half` nor rule 7 needs."""
        queue = self._queue
        while queue:
            entry = queue[0]
            if entry.last_record >= half or entry.pending:
                return
            if now_ms - entry.decided_ms <= RECENT_MS and len(queue) <= RECENT_MAX:
                return
            queue.popleft()
            self._entries.remove(entry)
