"""When which producer group is asked. Due times, back-off, and whose turn it is; pure."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from checker.core.protocol import State

if TYPE_CHECKING:
    from checker.core.entry import Entry

# Due entries sorted out by group at a time: enough for fair turns, and a bound on one call when
# a million fall due at once.
READY_MAX = 20_000


def first_due_ms(append_ms: int, immunity_ms: int, timeout_ms: int, immunity_ms_max: int) -> int:
    """Return when a transaction is first asked about.

    Source: RocketMQ transactionTimeOut and CHECK_IMMUNITY_TIME_IN_SECONDS; differs: the broker's
    append time counts, the timeout is a floor, and one long immunity delays nobody else.
    """
    return append_ms + max(min(immunity_ms, immunity_ms_max), timeout_ms)


def backoff_ms(attempt: int, interval_ms: int, backoff_ms_max: int) -> int:
    """Return how long to wait after unanswered request number `attempt` (from 1)."""
    doublings = min(attempt - 1, 32)  # 2**32 intervals is past any maximum
    return min(interval_ms << doublings, max(interval_ms, backoff_ms_max))


class CheckSchedule:
    """Undecided transactions by due time.

    First checks with the common timeout fall due in the order of their append times, so a queue
    holds them; all others go through a heap. Decided ones are skipped when they come up.
    """

    def __init__(self) -> None:
        self._in_turn: deque[tuple[int, Entry]] = deque()
        self._heap: list[tuple[int, int, Entry]] = []
        self._pushes = 0
        self._ready_count = 0
        self._ready_first: dict[str, deque[Entry]] = {}
        self._ready_repeat: dict[str, deque[Entry]] = {}

    def add_in_turn(self, entry: Entry) -> None:
        """Add an entry whose `due_ms` is not below that of the one added in turn before."""
        self._in_turn.append((entry.due_ms, entry))

    def add(self, entry: Entry, due_ms: int) -> None:
        """Add an entry, or move it: an earlier due time of it no longer counts."""
        entry.due_ms = due_ms
        self._pushes += 1
        heapq.heappush(self._heap, (due_ms, self._pushes, entry))

    def trim(self) -> None:
        """Let go of entries at the head of the queue that were decided or moved."""
        queue = self._in_turn
        while queue and not _stands(queue[0][1], queue[0][0]):
            queue.popleft()

    def next_due_ms(self) -> int | None:
        """Return when the next entry falls due; None when there is none."""
        if self._ready_count:
            return 0
        self.trim()
        heap = self._heap
        while heap and not _stands(heap[0][2], heap[0][0]):
            heapq.heappop(heap)
        heads = [heap[0][0]] if heap else []
        if self._in_turn:
            heads.append(self._in_turn[0][0])
        return min(heads, default=None)

    def take(self, confirmed_ms: int, limit: int) -> list[Entry]:
        """Return at most `limit` undecided entries that were due at `confirmed_ms`.

        First checks before repeats; groups in turn. The caller adds each again.
        """
        self._sort_out(confirmed_ms)
        taken: list[Entry] = []
        for ready in (self._ready_first, self._ready_repeat):
            while ready and len(taken) < limit:
                group = next(iter(ready))
                queue = ready.pop(group)
                entry = queue.popleft()
                self._ready_count -= 1
                if queue:
                    ready[group] = queue  # behind the others: its next turn comes last
                if entry.state is State.UNDECIDED and entry.due_ms <= confirmed_ms:
                    taken.append(entry)
        return taken

    def _sort_out(self, confirmed_ms: int) -> None:
        queue, heap = self._in_turn, self._heap
        while queue and self._ready_count < READY_MAX and queue[0][0] <= confirmed_ms:
            due_ms, entry = queue.popleft()
            if _stands(entry, due_ms):
                self._make_ready(entry)
        while heap and self._ready_count < READY_MAX and heap[0][0] <= confirmed_ms:
            due_ms, _, entry = heapq.heappop(heap)
            if _stands(entry, due_ms):
                self._make_ready(entry)

    def _make_ready(self, entry: Entry) -> None:
        first = entry.attempt == 0 and entry.check_times == 0
        ready = self._ready_first if first else self._ready_repeat
        ready.setdefault(entry.group, deque()).append(entry)
        self._ready_count += 1


def _stands(entry: Entry, due_ms: int) -> bool:
    return entry.state is State.UNDECIDED and entry.due_ms == due_ms
