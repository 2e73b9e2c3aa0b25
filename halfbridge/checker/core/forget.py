"""Decided transactions: how long each must stay known, and the offset T that follows from them."""

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
    """Decided transactions in op order. Only the transaction at the front is ever forgotten.

    T is the offset of the op at the front. So this class knows exactly the decisions from T on. A
    rebuild reads the ops from T on, and so knows the same decisions. The transaction at the front
    is kept as long as one of these holds:

    - A rebuild from the committed H would read one of its half records.
    - One of its copies has not been read back. For one of these two reasons a deferred
      transaction is always kept: its messages are still held, so H does not pass them.
    - Its decision is at most RECENT_MS old, and at most RECENT_MAX transactions are in the queue:
      so a late duplicate half is recognised (rule 7).

    A transaction has one place in the queue for each op that decides it, repeats it or contradicts
    it. Example: op 10 commits a transaction, and op 15 rolls it back, a conflict. While op 10 is
    in the queue the transaction is committed. When op 10 is forgotten, T is above 10: a rebuild
    reads op 15 only, and finds the transaction rolled back. So the entry of op 15 replaces the
    entry of op 10 at that moment.

    Args:
        entries: All transactions. Forgotten transactions are removed from `entries`.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._queue: deque[Entry] = deque()
        self._again: defaultdict[Key, deque[Entry]] = defaultdict(deque)
        self._discarded: list[tuple[int, int]] = []

    def add(self, entry: Entry) -> None:
        """Add an entry that was just decided or deferred; op offsets ascend from call to call."""
        self._queue.append(entry)
        self.settled(entry)

    def settled(self, entry: Entry) -> None:
        """Record that an entry of the queue has released its messages: it is no longer deferred."""
        if type(entry.known) is frozenset:
            self._entries.size_bytes += INDEX_BYTES * len(entry.known)
        if entry.state is State.DISCARDED and entry.offset < entry.last_record:
            self._keep_whole(entry.offset, entry.last_record)

    def add_again(self, stands: Entry, unseen: Entry) -> None:
        """Add `unseen`, the entry of a further op, which replaces `stands` when that is forgotten.

        Args:
            stands: The decided entry that the transaction is known by.
            unseen: An entry of the same transaction, made from the further op alone.
        """
        unseen.key = stands.key
        self._entries.waits(unseen)
        self._queue.append(unseen)
        self._again[stands.key].append(unseen)

    def lowest_op(self, op: int) -> int:
        """Return T: the lowest decision op that a rebuild needs; O = `op` where it needs none."""
        return self._queue[0].op_offset if self._queue else op

    def __len__(self) -> int:
        return len(self._queue)

    def first(self) -> Entry | None:
        """Return the entry that will be forgotten next; None when the queue is empty."""
        return self._queue[0] if self._queue else None

    def whole(self, half: int) -> int:
        """Return H = `half`, lowered so that H does not divide a discarded transaction.

        A discard for age is proven by the append time of the transaction's first message. Example:
        the messages of a discarded transaction are at offsets 100 to 140, and `half` is 120. A
        rebuild from 120 would not read the message at 100, would find that the discard came too
        early, and would take the transaction for undecided. So this method returns 100.
        """
        for first, last in reversed(self._discarded):
            if first < half <= last:
                half = first
        return half

    def forget(self, half: int, half_ms: int) -> None:
        """Forget, from the front, the transactions that neither a rebuild nor rule 7 needs.

        Args:
            half: H, where a rebuild begins.
            half_ms: The newest append time of a half record that was read. The age of a decision
                is measured by `half_ms`, not by the current time: a worker that was suspended for
                5 minutes reads a duplicate 5 minutes late, although the duplicate was appended
                1 s after the decision.
        """
        queue = self._queue
        while self._discarded and self._discarded[0][1] < half:
            del self._discarded[0]
        while queue:
            entry = queue[0]
            if entry.last_record >= half or entry.unread_copies:
                return
            if half_ms - entry.decided_ms <= RECENT_MS and len(queue) <= RECENT_MAX:
                return
            self.let_go()

    def let_go(self) -> None:
        """Forget the entry at the front; the entry of a further op, if any, replaces it."""
        entry = self._queue.popleft()
        again = self._again.get(entry.key)
        if again is None:
            self._entries.remove(entry)
            return
        self._entries.replace(entry, again.popleft())
        if not again:
            del self._again[entry.key]

    def _keep_whole(self, first: int, last: int) -> None:
        """Add the span of half offsets of a discarded transaction.

        A span that begins at or below the end of the last span is merged with the last span. So
        the spans ascend and do not overlap.
        """
        spans = self._discarded
        while spans and first <= spans[-1][1]:
            before = spans.pop()
            first, last = min(first, before[0]), max(last, before[1])
        spans.append((first, last))
