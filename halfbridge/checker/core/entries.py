"""The transactions that a ledger knows.

`Entries` finds any of them by identity, `Holdings` keeps the undecided ones in the order of their
half offsets, and `Decided` keeps the decided ones in op order until they may be forgotten.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.events import INDEX_BYTES, entry_bytes, is_excess
from halfbridge.checker.core.settings import RECENT_MAX, RECENT_MS
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.core.events import HalfRead, OpRead
    from halfbridge.serde.records import Op

Key = tuple[object, ...]
# Shared values, because there are many entries: most transactions have one message.
_NONE_KNOWN = range(0)
_ONE = range(1)
_NO_COPIES: dict[int, int] = {}
_NO_MESSAGES: dict[int, HalfRead] = {}
# Offset of an undecided transaction whose copies are written but not read back. The offsets of the
# copies are not known yet, so the transaction does not hold H.
IN_FLIGHT = 1 << 62


class Entry:
    """A transaction that is undecided, or decided and not yet forgotten.

    Attributes:
        messages: Message index -> the half record in use, original or copy. Empty once decided.
        known: The message indices at the time of the decision.
        offset: While undecided, the lowest half offset that a rebuild needs; IN_FLIGHT while none
            of the copies of a put back has been read back.
        bytes_at: `Holdings.read_bytes` at `offset`.
        unread_copies: Message index -> copies that were written and not read back.
        last_record: Highest half offset of the transaction's records; -1: none was read.
        first_append_ms: The broker's append time of the first half record. NO_APPEND_MS: the age is
            not known, and the transaction is never discarded for its age.
        check_times: Counted UNKNOWN answers.
        attempt: Unanswered requests that this ledger sent with the current check number.
        failed_attempt: The last of these that a member answered and whose checker failed; 0: none.
        first_request_ms: When the first of these requests was sent.
        discarding: A DISCARD was written and has not been read back.
        has_excess: A message has an index that no transaction may have. Only the first is kept.
        op_offset, decided_ms: Offset of the deciding op, and partition time of the decision.
        deferred: The COMMIT whose delivery waits (`checker.core.deferred`); else None. The
            transaction is decided, but its messages are still held, and `state` is UNDECIDED.
    """

    __slots__ = (
        "attempt",
        "bytes_at",
        "check_times",
        "decided_ms",
        "deferred",
        "discarding",
        "due_ms",
        "failed_attempt",
        "first_append_ms",
        "first_request_ms",
        "group",
        "has_excess",
        "key",
        "known",
        "last_record",
        "messages",
        "offset",
        "op_offset",
        "state",
        "unread_copies",
    )

    def __init__(self, half: HalfRead) -> None:
        metadata = half.metadata
        self.key: Key = ()
        self.group = metadata.producer_group
        self.messages: dict[int, HalfRead] = {metadata.message_index: half}
        self.known: frozenset[int] | range = _NONE_KNOWN
        self.state = State.UNDECIDED
        self.offset = half.offset
        self.bytes_at = 0
        self.unread_copies = _NO_COPIES
        self.last_record = half.offset
        if metadata.origin_offset < 0:
            # No check was counted before the original was written, whatever the original says.
            self.check_times = 0
        else:
            self.check_times = metadata.check_times
        self.first_append_ms = half.first_append_ms
        self.due_ms = 0
        self.attempt = self.failed_attempt = 0
        self.first_request_ms = 0
        self.discarding = False
        self.has_excess = is_excess(half)
        self.op_offset = -1
        self.decided_ms = 0
        self.deferred: OpRead | None = None

    @classmethod
    def decided_unseen(cls, op: Op, state: State, op_offset: int, now_ms: int) -> Entry:
        """Return a transaction of which only the decision is known. Its half messages are late."""
        entry = cls.__new__(cls)
        entry.key = ()
        entry.group = op.producer_group
        entry.offset = entry.last_record = entry.first_append_ms = -1
        entry.unread_copies = _NO_COPIES
        entry.messages = {}
        entry.bytes_at = entry.check_times = entry.due_ms = 0
        entry.attempt = entry.failed_attempt = entry.first_request_ms = 0
        entry.discarding = entry.has_excess = False
        entry.deferred = None
        entry.decide(state, op_offset, now_ms)
        return entry

    @property
    def decided(self) -> State:
        """The state that the first decision led to: COMMITTED also while the delivery waits."""
        return self.state if self.deferred is None else State.COMMITTED

    def in_order(self) -> list[HalfRead]:
        """Return the messages in the order of their indices."""
        messages = self.messages
        if len(messages) == 1:
            return list(messages.values())
        return [messages[index] for index in sorted(messages)]

    def decide(self, state: State, op_offset: int, now_ms: int) -> None:
        """Mark as decided, and release the messages; the plan already has those to deliver."""
        indices = self.messages.keys()
        count = len(indices)
        if count == 1 and 0 in indices:
            self.known = _ONE
        else:
            contiguous = count == 0 or max(indices) == count - 1
            self.known = range(count) if contiguous else frozenset(indices)
        self.messages = _NO_MESSAGES
        self.deferred = None
        self.state = state
        self.op_offset = op_offset
        self.decided_ms = now_ms


_KEY_PARTS = 2  # transaction id and resume count; a forged id has the group as a third part


class Entries:
    """All known transactions, by (transaction id, resume count).

    A half message of another group under a known id is a separate transaction, with the group in
    its key: a group that forges an id is asked about its own, and cannot affect the first (rule 6).

    Attributes:
        size_bytes: Bytes in memory, without the messages of undecided transactions: an estimate.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._by_key: dict[Key, Entry] = {}
        self._apart = 0  # transactions with the group in their key; almost always 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, transaction_id: str, resume_count: int, group: str) -> Entry | None:
        """Return the transaction of this group, if it is known."""
        entry = self._by_key.get((transaction_id, resume_count))
        if entry is not None and entry.group == group:
            return entry
        if not self._apart:
            return None
        return self._by_key.get((transaction_id, resume_count, group))

    def is_other_groups(self, transaction_id: str, resume_count: int) -> bool:
        """Tell whether another group has this id, after `find` returned None."""
        return (transaction_id, resume_count) in self._by_key

    def put(self, entry: Entry, transaction_id: str, resume_count: int) -> None:
        """Add a transaction that `find` did not find."""
        self.size_bytes += entry_bytes(transaction_id, entry.group)
        key: Key = (transaction_id, resume_count)
        entry.key = key
        if self._by_key.setdefault(key, entry) is not entry:
            entry.key = (*key, entry.group)
            self._by_key[entry.key] = entry
            self._apart += 1

    def adopt(self, others: Entries) -> None:
        """Take over the content of `others`, unusable afterwards. This object must be empty."""
        self._by_key, self._apart = others._by_key, others._apart
        self.size_bytes = others.size_bytes

    def replace(self, entry: Entry, successor: Entry) -> None:
        """Forget `entry`, and use its key for `successor`, which `waits` has counted."""
        self._by_key[entry.key] = successor
        self.size_bytes -= _size_bytes(entry)

    def remove(self, entry: Entry) -> None:
        """Forget a decided transaction."""
        del self._by_key[entry.key]
        self._apart -= len(entry.key) > _KEY_PARTS
        self.size_bytes -= _size_bytes(entry)

    def waits(self, successor: Entry) -> None:
        """Count the memory of an entry that is kept for `replace`."""
        self.size_bytes += _size_bytes(successor)


def _size_bytes(entry: Entry) -> int:
    transaction_id: Any = entry.key[0]
    size_bytes = entry_bytes(transaction_id, entry.group)
    if type(entry.known) is frozenset:
        size_bytes += INDEX_BYTES * len(entry.known)
    return size_bytes


# A queue keeps decided transactions after an undecided first one. A sweep removes them when the
# queue is longer than twice the undecided half messages plus this number. 10,000 entries take
# little memory, and a sweep of them costs next to nothing per record.
STALE_MAX = 10_000
# Looked up once, because looking up a member of an Enum costs more than the comparison.
_UNDECIDED = State.UNDECIDED


class Holdings:
    """Undecided transactions in the order of their offsets, with totals.

    Attributes:
        halves, size_bytes: Undecided half messages, and their bytes in the log.
        held_bytes: Bytes of the bodies in memory.
        metadata_bytes: Bytes of the half messages in memory without bodies: an estimate.
        read_bytes: Bytes of all half messages ever added; differences of it are window sizes.
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
        if len(self._with_body) > 2 * self.halves + STALE_MAX:
            bodies = zip(self._with_body, self._body_indices, strict=True)
            left = [each for each in bodies if each[0].state is _UNDECIDED]
            self._with_body = deque(entry for entry, _ in left)
            self._body_indices = deque(index for _, index in left)
        if len(self._offsets) > 2 * self.halves + STALE_MAX:
            places = zip(self._offsets, self._at_offsets, strict=True)
            current = [
                (offset, entry)
                for offset, entry in places
                if entry.state is _UNDECIDED and entry.offset == offset
            ]
            self._offsets = deque(offset for offset, _ in current)
            self._at_offsets = deque(entry for _, entry in current)

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


class Decided:
    """Decided transactions in op order. Only the transaction at the front is ever forgotten.

    T is the offset of the op at the front, so this class and a rebuild, which reads the ops from T
    on, know the same decisions. The front is kept as long as one of these holds:

    - A rebuild from the committed H would read one of its half records.
    - One of its copies has not been read back. For one of these two reasons a deferred transaction
      is always kept: its messages are still held, so H does not pass them.
    - Its decision is at most RECENT_MS old, and the queue has at most RECENT_MAX transactions: so a
      late duplicate half is recognised (rule 7).

    A transaction has one place in the queue for each op that decides, repeats or contradicts it.
    Example: op 10 commits a transaction, and op 15 rolls it back, a conflict. When op 10 is
    forgotten, a rebuild reads op 15 only, and finds the transaction rolled back. So the entry of op
    15 replaces the entry of op 10 at that moment.
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

    def add_again(self, known: Entry, unseen: Entry) -> None:
        """Add the entry of a further op alone, which replaces `known` when that is forgotten."""
        unseen.key = known.key
        self._entries.waits(unseen)
        self._queue.append(unseen)
        self._again[known.key].append(unseen)

    def lowest_op(self, op: int) -> int:
        """Return T: the lowest decision op that a rebuild needs; O = `op` where it needs none."""
        return self._queue[0].op_offset if self._queue else op

    def __len__(self) -> int:
        return len(self._queue)

    def first(self) -> Entry | None:
        """Return the entry that will be forgotten next, if any."""
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

        A rebuild begins at `half`. `half_ms`, the newest append time read of a half record,
        measures the age of a decision, not the current time: a worker suspended for 5 minutes reads
        a duplicate 5 minutes late that was appended 1 s after the decision.
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
            self.forget_first()

    def forget_first(self) -> None:
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
        """Add a discarded transaction's span of half offsets, or merge it with the last span."""
        spans = self._discarded
        while spans and first <= spans[-1][1]:
            before = spans.pop()
            first, last = min(first, before[0]), max(last, before[1])
        spans.append((first, last))
