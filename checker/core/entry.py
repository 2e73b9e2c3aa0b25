"""One transaction as the ledger holds it. The only mutable records of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checker.core.protocol import State

if TYPE_CHECKING:
    from checker.core.events import HalfRead

Key = tuple[object, ...]

# Offset of an undecided transaction whose copies are written but not read back: it holds
# nothing at any offset known yet.
IN_FLIGHT = 1 << 62


class Entry:
    """A transaction, undecided or decided and not yet forgotten.

    Attributes:
        key: (transaction id, resume count), with the group behind it when another group's half
            took that key first.
        messages: Message index -> the half record that stands for it now; empty once decided.
        known: Indices there were when it was decided.
        offset: Lowest half offset still needed while undecided; IN_FLIGHT while only copies
            that were not read back hold it.
        bytes_at: Bytes of half records read before `offset`.
        pending: Message index -> copies written and not read back.
        last_record: Highest half offset of any record that mentions it.
        first_append_ms: The broker's append time of its first half record.
        due_ms: When the next check is due.
        attempt: Requests sent for the current check number.
        requests, first_request_ms: Requests sent by this ledger in all, and when it began.
        discarding: A DISCARD was written and has not been read back.
        op_offset, decided_ms: Where and when it was decided.
        needed: Decided, and a rebuild would have to know it (checker.core.forget).
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
        "key",
        "known",
        "last_record",
        "messages",
        "needed",
        "offset",
        "op_offset",
        "pending",
        "requests",
        "state",
    )

    def __init__(self, key: Key, half: HalfRead) -> None:
        metadata = half.metadata
        copy = metadata.origin_offset >= 0
        self.key = key
        self.group = metadata.producer_group
        self.messages: dict[int, HalfRead] = {metadata.message_index: half}
        self.known: frozenset[int] | range = range(0)
        self.state = State.UNDECIDED
        self.offset = half.offset
        self.bytes_at = 0
        self.pending: dict[int, int] = {}
        self.last_record = half.offset
        self.first_append_ms = metadata.first_append_timestamp if copy else half.append_ms
        # An original that claims to have been checked is forged or broken: it was not.
        self.check_times = metadata.check_times if copy else 0
        self.due_ms = 0
        self.attempt = 0
        self.requests = 0
        self.first_request_ms = 0
        self.discarding = False
        self.op_offset = -1
        self.decided_ms = 0
        self.needed = False

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
        contiguous = count == 0 or max(indices) == count - 1
        self.known = range(count) if contiguous else frozenset(indices)
        self.messages = {}
        self.state = state
        self.op_offset = op_offset
        self.decided_ms = now_ms
