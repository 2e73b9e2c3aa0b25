"""The undecided transactions: where they stand in the log, and what they weigh."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from halfbridge.checker.core.entry import IN_FLIGHT, Entry
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead

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
        metadata_bytes: What they take in memory besides: an estimate.
        read_bytes: Bytes of all undecided halves ever taken; differences measure the window.
        by_topic: Real topic -> undecided half messages; none without any.
    """

    def __init__(self) -> None:
        # Pairs of queues, not queues of pairs: a tuple costs 56 bytes, and there may be millions.
        self._offsets: deque[int] = deque()
        self._at_offsets: deque[Entry] = deque()
        self._with_body: deque[Entry] = deque()
        self._body_indices: deque[int] = deque()
        self.halves = 0
        self.size_bytes = 0
        self.held_bytes = 0
        self.metadata_bytes = 0
        self.read_bytes = 0
        self.by_topic: Counter[str] = Counter()

    def hold(self, entry: Entry) -> None:
        """Take a new undecided entry with its messages; its offset is above all held so far."""
        entry.bytes_at = self.read_bytes
        self._offsets.append(entry.offset)
        self._at_offsets.append(entry)
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
        self.held_bytes += half.body_bytes
        self.read_bytes += half.size_bytes
        if before.body is None:
            self._with_body.append(entry)
            self._body_indices.append(index)
        else:
            self.held_bytes -= before.body_bytes
        self.metadata_bytes += half.metadata_bytes - before.metadata_bytes
        self._leave_topic(before.metadata.real_topic)
        self.by_topic[half.metadata.real_topic] += 1
        entry.messages[index] = half
        self._locate(entry, half.offset)

    def release(self, entry: Entry) -> None:
        """Let an entry go that is about to be decided."""
        for half in entry.messages.values():
            self.halves -= 1
            self.size_bytes -= half.size_bytes
            self.metadata_bytes -= half.metadata_bytes
            self._leave_topic(half.metadata.real_topic)
            if half.body is not None:
                self.held_bytes -= half.body_bytes

    def lowest(self) -> Entry | None:
        """Return the entry with the lowest offset; those in flight have none."""
        offsets, entries = self._offsets, self._at_offsets
        while offsets:
            entry = entries[0]
            if entry.state is _UNDECIDED and entry.offset == offsets[0]:
                return entry
            offsets.popleft()
            entries.popleft()
        return None

    def keep_budget(self, budget_bytes: int) -> None:
        """Let go of the oldest bodies beyond the budget; they are read again by offset."""
        entries, indices = self._with_body, self._body_indices
        while entries and (entries[0].state is not _UNDECIDED or self.held_bytes > budget_bytes):
            entry, index = entries.popleft(), indices.popleft()
            half = entry.messages.get(index)
            if half is not None and half.body is not None:
                entry.messages[index] = half._replace(body=None)
                self.held_bytes -= half.body_bytes
        self._sweep()

    def _sweep(self) -> None:
        if len(self._with_body) > 2 * self.halves + REST_MAX:
            bodies = zip(self._with_body, self._body_indices, strict=True)
            left = [each for each in bodies if each[0].state is _UNDECIDED]
            self._with_body = deque(entry for entry, _ in left)
            self._body_indices = deque(index for _, index in left)
        if len(self._offsets) > 2 * self.halves + REST_MAX:
            places = zip(self._offsets, self._at_offsets, strict=True)
            stand = [
                (offset, entry)
                for offset, entry in places
                if entry.state is _UNDECIDED and entry.offset == offset
            ]
            self._offsets = deque(offset for offset, _ in stand)
            self._at_offsets = deque(entry for _, entry in stand)

    def _count_in(self, entry: Entry, half: HalfRead) -> None:
        size_bytes = half.size_bytes
        self.read_bytes += size_bytes
        self.halves += 1
        self.size_bytes += size_bytes
        metadata = half.metadata
        self.metadata_bytes += half.metadata_bytes
        self.by_topic[metadata.real_topic] += 1
        if half.body is not None:
            self.held_bytes += half.body_bytes
            self._with_body.append(entry)
            self._body_indices.append(metadata.message_index)

    def _leave_topic(self, topic: str) -> None:
        """Count one message less; names come from half messages, so none is kept without any."""
        count = self.by_topic[topic] - 1
        if count:
            self.by_topic[topic] = count
        else:
            del self.by_topic[topic]

    def _locate(self, entry: Entry, offset: int) -> None:
        """Give an entry in flight its offset: what is still to be read back stands above it."""
        if entry.offset == IN_FLIGHT:
            entry.offset = offset
            entry.bytes_at = self.read_bytes
            self._offsets.append(offset)
            self._at_offsets.append(entry)
