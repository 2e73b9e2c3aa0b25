"""When each transaction is checked: due times, back-off, and turns of producer groups. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.core.entries import Entry

    Room = Callable[[str], int]  # producer group -> most checks that may be sent to the group now

# One call sorts at most this many due entries of each queue by group, so that a call stays short
# when a million entries fall due at once. Later calls sort the other entries. So the entries of a
# group that may not be asked at present (`pop_due`) do not hold up the entries of other groups. As
# many as the default of check_rate_max, the checks of a second.
SORTED_MAX = 20_000
# While both kinds are due, one check in 4 is a repeat. First checks come first because most of them
# are answered. Repeats have a share because a client that never decides could make first checks due
# without end.
REPEAT_SHARE = 4
# Decided and rescheduled entries are swept out of a queue that is longer than twice the undecided
# half messages plus this number: as `entries.STALE_MAX`.
STALE_MAX = 10_000
# Due time of an entry that `pop_due` returned and that was not added again.
NOT_SCHEDULED = 1 << 62
# Looked up once, because looking up a member of an Enum costs more than the comparison.
_UNDECIDED = State.UNDECIDED


def first_due_ms(append_ms: int, immunity_ms: int, timeout_ms: int, immunity_ms_max: int) -> int:
    """Return when the first check of a transaction is due.

    Source: RocketMQ transactionTimeOut and CHECK_IMMUNITY_TIME_IN_SECONDS. Differences: the time
    is counted from the broker's append time, the timeout is a minimum, and the long immunity of
    one transaction does not delay another transaction.
    """
    return append_ms + max(min(immunity_ms, immunity_ms_max), timeout_ms)


def backoff_ms(attempt: int, interval_ms: int, backoff_ms_max: int) -> int:
    """Return how long to wait for an answer to request number `attempt` (from 1)."""
    doublings = min(attempt - 1, 32)  # 2**32 intervals is past any maximum
    return min(interval_ms << doublings, max(interval_ms, backoff_ms_max))


class CheckSchedule:
    """Undecided transactions by due time; those decided meanwhile are skipped.

    First checks with the default timeout fall due in the order of their append times: a queue has
    them. All other first checks are in a heap, repeats in another.
    """

    def __init__(self) -> None:
        # Two queues, not one queue of tuples: a tuple costs 56 bytes, times millions.
        self._in_turn: deque[Entry] = deque()
        self._in_turn_due: deque[int] = deque()
        self._first = _Due()
        self._repeats = _Due()
        self._firsts_in_a_row = 0  # taken while repeats were due as well
        self._sorted_out_ms = 0

    def add_in_turn(self, entry: Entry, due_ms: int) -> None:
        """Add an entry that usually falls due no sooner than the entry added before."""
        dues = self._in_turn_due
        if dues and due_ms < dues[-1]:
            self.add(entry, due_ms)  # a broker's clock was set back: the heap keeps the order
        else:
            entry.due_ms = due_ms
            dues.append(due_ms)
            self._in_turn.append(entry)

    def add(self, entry: Entry, due_ms: int) -> None:
        """Add an entry, or reschedule it: its due time before no longer counts."""
        entry.due_ms = due_ms
        due = self._repeats if entry.attempt or entry.check_times else self._first
        due.push(entry, due_ms)

    def trim(self, undecided: int) -> None:
        """Remove decided or rescheduled entries; at most `undecided` entries remain."""
        self._skip_moved()
        if len(self._in_turn) > 2 * undecided + STALE_MAX:
            pairs = zip(self._in_turn, self._in_turn_due, strict=True)
            current = [(entry, due_ms) for entry, due_ms in pairs if _is_current(entry, due_ms)]
            self._in_turn = deque(entry for entry, _ in current)
            self._in_turn_due = deque(due_ms for _, due_ms in current)
        self._first.trim(undecided, self._sorted_out_ms)
        self._repeats.trim(undecided, self._sorted_out_ms)

    def next_due_ms(self) -> int | None:
        """Return when the next entry falls due; 0: some wait for their turn; None: no entry."""
        if self._first.count or self._repeats.count:
            return 0
        return self.next_unsorted_ms()

    def next_unsorted_ms(self) -> int | None:
        """Return the lowest due time of the entries not queued by group yet; None: none."""
        self._skip_moved()
        dues = [*self._first.next_due_ms(), *self._repeats.next_due_ms()]
        if self._in_turn_due:
            dues.append(self._in_turn_due[0])
        return min(dues, default=None)

    def pop_due(self, confirmed_ms: int, limit: int, room: Room | None = None) -> list[Entry]:
        """Return at most `limit` undecided entries that were due at `confirmed_ms`.

        First checks come before repeats, but one in REPEAT_SHARE is a repeat while any is due.
        Producer groups take turns; a group without `room` (most entries of a group) keeps its
        turns, and delays no other. The caller adds each returned entry again. `confirmed_ms` may go
        back between calls, by the difference of two brokers' clocks: an entry that was due before
        keeps its turn.
        """
        self._sort_out(confirmed_ms)
        self._sorted_out_ms = max(self._sorted_out_ms, confirmed_ms)
        shares = _Shares(room)
        firsts, repeats = self._first, self._repeats
        has_first, has_repeat = bool(firsts.count), bool(repeats.count)
        taken: list[Entry] = []
        while (has_first or has_repeat) and len(taken) < limit:
            is_turn = not has_first or self._firsts_in_a_row >= REPEAT_SHARE - 1
            is_repeat = has_repeat and is_turn
            entry = (repeats if is_repeat else firsts).next(self._sorted_out_ms, shares)
            if entry is None:
                has_first, has_repeat = has_first and is_repeat, has_repeat and not is_repeat
                continue
            entry.due_ms = NOT_SCHEDULED  # the entry may be queued twice
            taken.append(entry)
            waits = has_repeat and repeats.count and not is_repeat
            self._firsts_in_a_row = self._firsts_in_a_row + 1 if waits else 0
        return taken

    def _skip_moved(self) -> None:
        dues, entries = self._in_turn_due, self._in_turn
        while dues and not _is_current(entries[0], dues[0]):
            dues.popleft()
            entries.popleft()

    def _sort_out(self, confirmed_ms: int) -> None:
        dues, first = self._in_turn_due, self._first
        left = SORTED_MAX
        while dues and left and dues[0] <= confirmed_ms:
            due_ms, entry = dues.popleft(), self._in_turn.popleft()
            if _is_current(entry, due_ms):
                first.add(entry)
                left -= 1
        first.sort_out(confirmed_ms)
        self._repeats.sort_out(confirmed_ms)


class _Shares:
    """How many more entries of each group one call of `pop_due` may return."""

    def __init__(self, room: Room | None) -> None:
        self._room = room
        self._left: dict[str, int] = {}

    def has_room(self, group: str) -> bool:
        """Tell whether an entry of the group may be returned, and count it."""
        if self._room is None:
            return True
        left = self._left.get(group)
        if left is None:
            left = self._room(group)
        self._left[group] = left - 1
        return left > 0


class _Due:
    """Entries in a heap by due time, and due entries in a queue for each producer group."""

    def __init__(self) -> None:
        self.count = 0
        self._by_group: dict[str, deque[Entry]] = {}
        self._heap: list[tuple[int, int, Entry]] = []
        self._pushes = 0

    def push(self, entry: Entry, due_ms: int) -> None:
        self._pushes += 1
        heapq.heappush(self._heap, (due_ms, self._pushes, entry))

    def trim(self, undecided: int, until_ms: int) -> None:
        """Remove entries that were decided or rescheduled; queued ones were due at `until_ms`."""
        most = 2 * undecided + STALE_MAX
        if len(self._heap) > most:
            self._heap = [each for each in self._heap if _is_current(each[2], each[0])]
            heapq.heapify(self._heap)
        if self.count > most:
            for group, queue in [*self._by_group.items()]:
                self._by_group[group] = deque(each for each in queue if _is_waiting(each, until_ms))
            self._by_group = {group: queue for group, queue in self._by_group.items() if queue}
            self.count = sum(map(len, self._by_group.values()))

    def next_due_ms(self) -> list[int]:
        """Return the lowest due time in the heap, as a list of at most one."""
        heap = self._heap
        while heap and not _is_current(heap[0][2], heap[0][0]):
            heapq.heappop(heap)
        return [heap[0][0]] if heap else []

    def sort_out(self, confirmed_ms: int) -> None:
        """Queue the entries that were due at `confirmed_ms`, SORTED_MAX at most."""
        heap = self._heap
        left = SORTED_MAX
        while heap and left and heap[0][0] <= confirmed_ms:
            due_ms, _, entry = heapq.heappop(heap)
            if _is_current(entry, due_ms):
                self.add(entry)
                left -= 1

    def add(self, entry: Entry) -> None:
        """Queue a due entry for its group's turn."""
        self._by_group.setdefault(entry.group, deque()).append(entry)
        self.count += 1

    def next(self, until_ms: int, shares: _Shares) -> Entry | None:
        """Return the entry whose turn it is, of the groups with room, and count it in `shares`."""
        for _ in range(len(self._by_group)):
            group = next(iter(self._by_group))
            queue = self._by_group.pop(group)
            while queue and not _is_waiting(queue[0], until_ms):
                queue.popleft()
                self.count -= 1
            if not queue:
                continue
            if not shares.has_room(group):
                self._by_group[group] = queue
                continue
            entry = queue.popleft()
            self.count -= 1
            if queue:
                self._by_group[group] = queue  # the last of the groups: its next turn comes last
            return entry
        return None


def _is_waiting(entry: Entry, until_ms: int) -> bool:
    return entry.state is _UNDECIDED and entry.due_ms <= until_ms


def _is_current(entry: Entry, due_ms: int) -> bool:
    return entry.state is _UNDECIDED and entry.due_ms == due_ms
