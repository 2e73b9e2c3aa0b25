"""One transaction as the ledger holds it. The only mutable records of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.too_large import is_excess
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.serde.records import Op

Key = tuple[object, ...]

# What most decided transactions knew: one message. Shared, for there are many of them.
_NONE_KNOWN = range(0)
_ONE = range(1)
_NOTHING_PENDING: dict[int, int] = {}
_NO_MESSAGES: dict[int, HalfRead] = {}

# Offset of an undecided transaction whose copies are written but not read back: it holds
# nothing at any offset known yet.
IN_FLIGHT = 1 << 62


class Entry:
    """A transaction, undecided or decided and not yet forgotten.

    Attributes:
        key: Under which halfbridge.checker.core.entries knows it.
        group: Its producer group.
        messages: Message index -> the half record that stands for it now; empty once decided.
        known: Indices there were when it was decided.
        offset: Lowest half offset still needed while undecided; IN_FLIGHT while only copies
            that were not read back hold it.
        bytes_at: Bytes of half records read before `offset`.
        pending: Message index -> copies written and not read back.
        last_record: Highest half offset of any record that mentions it; -1: none was read.
        first_append_ms: The broker's append time of its first half record, or NO_APPEND_MS: then
            nobody knows its age, and it is never given up for it.
        check_times: Counted UNKNOWN answers.
        due_ms: When the next check is due.
        attempt: Unanswered requests for the current check number, of this ledger.
        first_request_ms: When the first of those was sent.
        discarding: A DISCARD was written and has not been read back.
        has_excess: One of its messages has an index that no transaction may have; only the first
            such message is kept.
        op_offset, decided_ms: Where and when it was decided.
    """

    __slots__ = (
        "attempt",
        "bytes_at",
        "check_times",
        "decided_ms",
        "discarding",
        "due_ms",
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
        "pending",
        "state",
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
        self.pending = _NOTHING_PENDING
        self.last_record = half.offset
        if metadata.origin_offset < 0:
            # An original that claims to have been checked is forged or broken: it was not.
            self.check_times = 0
        else:
            self.check_times = metadata.check_times
        self.first_append_ms = half.first_append_ms
        self.due_ms = 0
        self.attempt = 0
        self.first_request_ms = 0
        self.discarding = False
        self.has_excess = is_excess(half)
        self.op_offset = -1
        self.decided_ms = 0

    @classmethod
    def decided_unseen(cls, op: Op, state: State, op_offset: int, now_ms: int) -> Entry:
        """Return a transaction of which only the decision is known: what comes now is late."""
        entry = cls.__new__(cls)
        entry.key = ()
        entry.group = op.producer_group
        entry.offset = entry.last_record = entry.first_append_ms = -1
        entry.pending = _NOTHING_PENDING
        entry.messages = {}
        entry.bytes_at = entry.check_times = entry.due_ms = 0
        entry.attempt = entry.first_request_ms = 0
        entry.discarding = entry.has_excess = False
        entry.decide(state, op_offset, now_ms)
        return entry

    def in_order(self) -> list[HalfRead]:
        """Return its messages by index."""
        messages = self.messages
        if len(messages) == 1:
            return list(messages.values())
        return [messages[index] for index in sorted(messages)]

    def decide(self, state: State, op_offset: int, now_ms: int) -> None:
        """Mark it decided and let its messages go; who delivers them holds them by now."""
        indices = self.messages.keys()
        count = len(indices)
        if count == 1 and 0 in indices:
            self.known = _ONE
        else:
            contiguous = count == 0 or max(indices) == count - 1
            self.known = range(count) if contiguous else frozenset(indices)
        self.messages = _NO_MESSAGES
        self.state = state
        self.op_offset = op_offset
        self.decided_ms = now_ms
