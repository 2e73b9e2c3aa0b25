"""One transaction in the ledger: the core's only mutable record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.too_large import is_excess
from halfbridge.serde.protocol import State

if TYPE_CHECKING:
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
        key: The transaction's key in halfbridge.checker.core.entries.
        group: The producer group.
        messages: Message index -> the half record in use, original or copy. Empty once decided.
        known: The message indices at the time of the decision.
        offset: While undecided, the lowest half offset that a rebuild needs; IN_FLIGHT while none
            of the copies of a put back has been read back.
        bytes_at: `Holdings.read_bytes` at `offset`.
        unread_copies: Message index -> copies that were written and not read back.
        last_record: Highest half offset of the transaction's records; -1: none was read.
        first_append_ms: The broker's append time of the first half record. NO_APPEND_MS: the age
            is not known, and the transaction is never discarded for its age.
        check_times: Counted UNKNOWN answers.
        due_ms: When the next check is due.
        attempt: Unanswered requests that this ledger sent with the current check number.
        failed_attempt: The last of these requests that a member answered and whose checker failed;
            0: there is none.
        first_request_ms: When the first of these requests was sent.
        discarding: A DISCARD was written and has not been read back.
        has_excess: One of the messages has an index that no transaction may have. Only the first
            such message is kept.
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
        """Mark the transaction as decided, and release its messages.

        Messages to be delivered must be in the plan before this call.
        """
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
