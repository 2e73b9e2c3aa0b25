"""The undecided transactions: their order in the log, and their totals of records and bytes."""

from __future__ import annotations

from collections import Counter, deque
from operator import attrgetter
from typing import TYPE_CHECKING

from halfbridge.checker.core.entry import IN_FLIGHT, Entry
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead

# A queue keeps decided transactions behind an undecided head. A sweep removes them when the queue
# is longer than twice the undecided half messages plus this number. 10,000 entries take little
# memory, and a sweep of so many costs next to nothing per record.
REST_MAX = 10_000
# Looked up once, because looking up a member of an Enum costs more than the comparison.
_UNDECIDED = State.UNDECIDED


class Holdings:
    """Undecided transactions in the order of their offsets, with totals.

    Attributes:
        halves, size_bytes: Undecided half messages, and their bytes in the log.
        held_bytes: Bytes of the bodies in memory.
        metadata_bytes: Bytes of the half messages in memory without bodies: an estimate.
        read_bytes: Bytes of all half messages ever added. The difference between two of its values
            is the size of the window between them.
        by_topic: Real topic -> undecided half messages; only topics with at least one.
    """

    def __init__(self) -> None:
        # Two queues each, not one queue of tuples: a tuple costs 56 bytes, times millions.
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
        """Add an undecided entry with its messages. Its offset must be above all others."""
        entry.bytes_at = self.read_bytes
        self._offsets.append(entry.offset)
        self._at_offsets.append(entry)
        for half in entry.messages.values():
            self._count_in(entry, half)

    def add(self, entry: Entry, half: HalfRead) -> None:
        """Add one more message to an undecided entry."""
        entry.messages[half.metadata.message_index] = half
        self._count_in(entry, half)
        self._locate(entry, half.offset)

    def replace(self, entry: Entry, half: HalfRead) -> None:
        """Replace the record of a message by its copy `half`."""
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
        """Subtract the messages of an entry that is about to be decided."""
        for half in entry.messages.values():
            self.halves -= 1
            self.size_bytes -= half.size_bytes
            self.metadata_bytes -= half.metadata_bytes
            self._leave_topic(half.metadata.real_topic)
            if half.body is not None:
                self.held_bytes -= half.body_bytes

    def lowest(self) -> Entry | None:
        """Return the entry with the lowest offset; entries in flight are left out."""
        offsets, entries = self._offsets, self._at_offsets
        while offsets:
            entry = entries[0]
            if entry.state is _UNDECIDED and entry.offset == offsets[0]:
                return entry
            offsets.popleft()
            entries.popleft()
        return None

    def oldest_append_ms(self) -> int:
        """Return when the lowest half record was appended; -1: none, or not known."""
        lowest = self.lowest()
        halves = () if lowest is None else lowest.messages.values()
        return min(halves, key=attrgetter("offset")).append_ms if halves else -1

    def keep_budget(self, budget_bytes: int) -> None:
        """Release the oldest bodies beyond the budget. Those are read again by offset."""
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
        """Count one message less. A topic without messages is removed: clients choose the names."""
        count = self.by_topic[topic] - 1
        if count:
            self.by_topic[topic] = count
        else:
            del self.by_topic[topic]

    def _locate(self, entry: Entry, offset: int) -> None:
        """Set the offset of an entry in flight to that of its first record after the put back."""
        if entry.offset == IN_FLIGHT:
            entry.offset = offset
            entry.bytes_at = self.read_bytes
            self._offsets.append(offset)
            self._at_offsets.append(entry)
