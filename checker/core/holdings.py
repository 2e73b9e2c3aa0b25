"""The undecided transactions: where they stand in the log, and what they weigh."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from checker.core.entry import IN_FLIGHT, Entry
from checker.core.protocol import State

if TYPE_CHECKING:
    from checker.core.events import HalfRead

# Queues keep what was decided behind an undecided head until more than half of a queue, and more
# than this, is such rest; then they are swept. Small enough to be no burden, large enough that a
# sweep costs next to nothing per record.
REST_MAX = 10_000
# Looked up once: an Enum's member costs more than the comparison.
_UNDECIDED = State.UNDECIDED


class Holdings:
    """Undecided transactions in the order of their offsets, with totals.

    Attributes:
        halves, size_bytes: Undecided half messages, and their bytes.
        held_bytes: Bytes of the bodies that are in memory.
        read_bytes: Bytes of all undecided halves ever taken; differences measure the window.
        by_topic: Real topic -> undecided half messages.
    """

    def __init__(self) -> None:
        self._by_offset: deque[tuple[int, Entry]] = deque()
        self._bodies: deque[tuple[Entry, int]] = deque()
        self.halves = 0
        self.size_bytes = 0
        self.held_bytes = 0
        self.read_bytes = 0
        self.by_topic: Counter[str] = Counter()

    def hold(self, entry: Entry) -> None:
        """Take a new undecided entry with its messages; its offset is above all held so far."""
        entry.bytes_at = self.read_bytes
        self._by_offset.append((entry.offset, entry))
        for half in entry.messages.values():
            self._count_in(entry, half)

    def add(self, entry: Entry, half: HalfRead) -> None:
        """Take one more message of a held entry."""
        entry.messages[half.metadata.message_index] = half
        self._count_in(entry, half)
        self._locate(entry, half.offset)

    def replace(self, entry: Entry, half: HalfRead) -> None:
        """Take a copy that stands for its message from now on."""
        index = half.metadata.message_index
        before = entry.messages[index]
        self.size_bytes += half.size_bytes - before.size_bytes
        self.held_bytes += half.size_bytes
        self.read_bytes += half.size_bytes
        if before.body is None:
            self._bodies.append((entry, index))
        else:
            self.held_bytes -= before.size_bytes
        entry.messages[index] = half
        self._locate(entry, half.offset)

    def release(self, entry: Entry) -> None:
        """Let an entry go that is about to be decided."""
        for half in entry.messages.values():
            size_bytes = half.size_bytes
            self.halves -= 1
            self.size_bytes -= size_bytes
            self.by_topic[half.metadata.real_topic] -= 1
            if half.body is not None:
                self.held_bytes -= size_bytes

    def lowest(self) -> Entry | None:
        """Return the entry with the lowest offset; those in flight have none."""
        queue = self._by_offset
        while queue:
            offset, entry = queue[0]
            if entry.state is _UNDECIDED and entry.offset == offset:
                return entry
            queue.popleft()
        return None

    def keep_budget(self, budget_bytes: int) -> None:
        """Let go of the oldest bodies beyond the budget; they are read again by offset."""
        queue = self._bodies
        while queue and (queue[0][0].state is not _UNDECIDED or self.held_bytes > budget_bytes):
            entry, index = queue.popleft()
            half = entry.messages.get(index)
            if half is not None and half.body is not None:
                entry.messages[index] = half._replace(body=None)
                self.held_bytes -= half.size_bytes
        if len(queue) > 2 * self.halves + REST_MAX:
            self._bodies = deque(each for each in queue if each[0].state is _UNDECIDED)
        if len(self._by_offset) > 2 * self.halves + REST_MAX:
            self._by_offset = deque(
                each
                for each in self._by_offset
                if each[1].state is _UNDECIDED and each[1].offset == each[0]
            )

    def _count_in(self, entry: Entry, half: HalfRead) -> None:
        size_bytes = half.size_bytes
        self.read_bytes += size_bytes
        self.halves += 1
        self.size_bytes += size_bytes
        self.held_bytes += size_bytes
        self.by_topic[half.metadata.real_topic] += 1
        self._bodies.append((entry, half.metadata.message_index))

    def _locate(self, entry: Entry, offset: int) -> None:
        """Give an entry in flight its offset: what is still to be read back stands above it."""
        if entry.offset == IN_FLIGHT:
            entry.offset = offset
            entry.bytes_at = self.read_bytes
            self._by_offset.append((offset, entry))
