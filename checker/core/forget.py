"""Decided transactions: how long each must stay known, and what T follows from them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from checker.core.settings import RECENT_MAX, RECENT_MS

if TYPE_CHECKING:
    from checker.core.entry import Entry, Key


class Decided:
    """Decided entries, in op order.

    An entry is *needed* while a rebuild from the committed H would meet one of its records (or
    a copy of it that was not read back); T is the lowest op of those. After that it is *recent*
    for a while, so that a late duplicate half is known for what it is (rule 7).

    Args:
        entries: The ledger's entries by key; forgotten ones are removed from it.
    """

    def __init__(self, entries: dict[Key, Entry]) -> None:
        self._entries = entries
        self._needed: deque[Entry] = deque()
        self._recent: deque[Entry] = deque()
        self._revived: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Add an entry that was just decided; op offsets ascend."""
        entry.needed = True
        self._needed.append(entry)

    def mentioned(self, entry: Entry) -> None:
        """Take that one more record mentions a decided entry: a rebuild must know its op again."""
        if not entry.needed:
            entry.needed = True
            self._revived.append(entry)

    def lowest_needed(self, half: int, op: int) -> int:
        """Return T for H = `half`: the lowest decision op that a rebuild needs, else O = `op`."""
        needed = self._needed
        while needed and _is_passed(needed[0], half):
            self._retire(needed.popleft())
        if self._revived:
            self._drop_revived(half)
        offsets = [entry.op_offset for entry in self._revived]
        if needed:
            offsets.append(needed[0].op_offset)
        return min(offsets, default=op)

    def forget(self, now_ms: int) -> None:
        """Forget recent entries that are old enough, or too many."""
        recent = self._recent
        while recent and (now_ms - recent[0].decided_ms > RECENT_MS or len(recent) > RECENT_MAX):
            entry = recent.popleft()
            if not entry.needed and self._entries.get(entry.key) is entry:
                del self._entries[entry.key]

    def _drop_revived(self, half: int) -> None:
        for entry in [entry for entry in self._revived if _is_passed(entry, half)]:
            self._revived.remove(entry)
            self._retire(entry)

    def _retire(self, entry: Entry) -> None:
        entry.needed = False
        self._recent.append(entry)


def _is_passed(entry: Entry, half: int) -> bool:
    return entry.last_record < half and not entry.pending
