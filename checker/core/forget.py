"""Decided transactions: how long each must stay known, and what T follows from them."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from halfbridge.checker.core.settings import RECENT_MAX, RECENT_MS
from halfbridge.checker.core.weights import INDEX_BYTES
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from halfbridge.checker.core.entries import Entries
    from halfbridge.checker.core.entry import Entry, Key


class Decided:
    """Decided transactions, in op order, forgotten from the front only.

    So what is known here is what was decided from T on, neither more nor less, and a rebuild,
    which reads those ops, comes to know the same. A transaction at the front stays while a
    rebuild would meet one of its records at or above the committed H (or a copy of it that was
    not read back), and after that for a while yet, so that a late duplicate half is known for
    what it is (rule 7).

    What was said again has a place here for each op that would have decided: once T has passed
    the first of them, a rebuild takes the next for the decision. So that one stands here too then.

    Args:
        entries: All transactions; forgotten ones are removed from it.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._queue: deque[Entry] = deque()
        self._again: defaultdict[Key, deque[Entry]] = defaultdict(deque)
        self._discarded: list[tuple[int, int]] = []

    def add(self, entry: Entry) -> None:
        """Add an entry that was just decided; op offsets ascend."""
        self._queue.append(entry)
        if type(entry.known) is frozenset:
            self._entries.size_bytes += INDEX_BYTES * len(entry.known)
        if entry.state is State.DISCARDED and entry.offset < entry.last_record:
            self._keep_whole(entry.offset, entry.last_record)

    def add_again(self, stands: Entry, unseen: Entry) -> None:
        """Add what takes the place of `stands`, a decided entry, when that is forgotten."""
        unseen.key = stands.key
        self._entries.waits(unseen)
        self._queue.append(unseen)
        self._again[stands.key].append(unseen)

    def lowest_op(self, op: int) -> int:
        """Return T: the lowest decision op that a rebuild needs, else O = `op`."""
        return self._queue[0].op_offset if self._queue else op

    def __len__(self) -> int:
        return len(self._queue)

    def first(self) -> Entry | None:
        """Return what would be forgotten next."""
        return self._queue[0] if self._queue else None

    def whole(self, half: int) -> int:
        """Return H = `half`, lowered where it would part the messages of a discarded transaction.

        A discard for age proves itself by the first message: a rebuild that saw only later ones
        would take it for one that came too early, and the transaction for undecided.
        """
        for first, last in reversed(self._discarded):
            if first < half <= last:
                half = first
        return half

    def forget(self, half: int, half_ms: int) -> None:
        """Forget from the front what neither a rebuild from H = `half` nor rule 7 needs.

        Time is `half_ms`, the newest append time of a half record read: a duplicate that was
        appended soon after its decision may be read long after it, by a worker that stood still.
        """
        queue = self._queue
        while self._discarded and self._discarded[0][1] < half:
            del self._discarded[0]
        while queue:
            entry = queue[0]
            if entry.last_record >= half or entry.pending:
                return
            if half_ms - entry.decided_ms <= RECENT_MS and len(queue) <= RECENT_MAX:
                return
            self.let_go()

    def let_go(self) -> None:
        """Forget what is at the front; if it was said again, it is known by the next op then."""
        entry = self._queue.popleft()
        again = self._again.get(entry.key)
        if again is None:
            self._entries.remove(entry)
            return
        self._entries.replace(entry, again.popleft())
        if not again:
            del self._again[entry.key]

    def _keep_whole(self, first: int, last: int) -> None:
        """Add a span of half offsets.

        One that does not begin above the last becomes one with it: so they ascend, and are few.
        """
        spans = self._discarded
        while spans and first <= spans[-1][1]:
            before = spans.pop()
            first, last = min(first, before[0]), max(last, before[1])
        spans.append((first, last))
