"""The ledger's input: the records of one half partition and its op partition.

This module also has the protocol's limits on a transaction's messages, and estimates of the memory
that records and transactions take without bodies. The estimates were measured with tracemalloc,
with 200,000 transactions, ids of 32 characters and short names:

- An undecided transaction of one message takes 1,052 bytes, or up to 1,252 while it is in the heap
  of due times. The estimate is 1,180.
- A decided transaction takes 506 bytes. The estimate is 712.
- Each further message takes 468 bytes, and a waiting op 441.

`tests/unit/checker/core/test_weights.py` repeats the measurements, and proves that no estimate is
too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.limits import TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.protocol import NO_APPEND_MS

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.serde.records import HalfMetadata, Op

# Number of a null key.
NO_KEY = -1
# Kafka's word for a timestamp that the broker wrote when it appended the record.
LOG_APPEND_TIME = 2


def append_ms_of(kind: int, timestamp_ms: int) -> int:
    """Return the broker's append time of a record; NO_APPEND_MS where the writer set the time."""
    return timestamp_ms if kind == LOG_APPEND_TIME else NO_APPEND_MS


class HalfRead(NamedTuple):
    """A half record was read.

    Attributes:
        append_ms: The broker's append time, or NO_APPEND_MS.
        flaw: Why the message must never be delivered; empty without a flaw (serde.headers).
        size_bytes: Size of the record in the log, when it is alone in its batch.
        body: The Kafka record, opaque here. None after the ledger has released the body to keep its
            budget: then the record is read again by offset.
        user_bytes: Bytes that count towards TRANSACTION_BYTES_MAX (serde.headers.user_bytes).
        metadata_bytes: Bytes in memory without the body (`message_bytes`); 0 where not counted.
        key_number: A number of the key, NO_KEY for a null key. Different keys may share a number.
    """

    offset: int
    append_ms: int
    metadata: HalfMetadata
    flaw: str
    size_bytes: int
    body: object | None
    user_bytes: int = 0
    metadata_bytes: int = 0
    body_bytes: int = 0
    key_number: int = NO_KEY

    @property
    def origin(self) -> int:
        """Offset of the original; the record's own offset unless the record is a copy."""
        origin = self.metadata.origin_offset
        return self.offset if origin < 0 else origin

    @property
    def first_append_ms(self) -> int:
        """Append time of the original, or NO_APPEND_MS. A copy carries the time of its original."""
        metadata = self.metadata
        if metadata.origin_offset < 0:
            return self.append_ms
        claimed_ms = metadata.first_append_timestamp
        if self.append_ms < 0 or claimed_ms < 0:
            return max(claimed_ms, NO_APPEND_MS)
        # A time later than the copy's own is wrong, and might delay the first check for ever.
        return min(claimed_ms, self.append_ms)


class OpRead(NamedTuple):
    """An op record was read; `size_bytes` is its value's, or 0 where memory is not counted."""

    offset: int
    append_ms: int
    op: Op
    size_bytes: int = 0


class JunkRead(NamedTuple):
    """A half or op record that is unreadable, or whose signature is missing or wrong."""

    offset: int
    append_ms: int
    detail: str
    size_bytes: int
    body: object | None
    is_not_believed: bool = False

    @property
    def body_bytes(self) -> int:
        """Bytes of the body in memory."""
        return self.size_bytes


def half_offset_of(read: OpRead | JunkRead) -> int:
    """Return the half offset that `read` waits for; -1 for an unreadable op, which never waits."""
    return -1 if isinstance(read, JunkRead) else read.op.half_offset


def is_excess(half: HalfRead) -> bool:
    """Tell whether a message's index is above the highest index that a transaction may have."""
    return half.metadata.message_index >= TRANSACTION_MESSAGES_MAX


def is_too_large(messages: Collection[HalfRead]) -> bool:
    """Tell whether `messages` exceed a limit of a transaction: index or bytes."""
    if any(map(is_excess, messages)):
        return True
    return sum(half.user_bytes for half in messages) > TRANSACTION_BYTES_MAX


# Tests compare these sizes with what CPython allocates. Lower estimates would let a worker exceed
# its memory, much higher ones would stop its reading early.
# An entry, its key, and its references in dicts and queues.
ENTRY_BYTES = 560
# A half record without its body: its metadata, and its references in dicts and queues.
MESSAGE_BYTES = 420
# One message index of a decided transaction whose indices have a gap.
INDEX_BYTES = 100
# An op without its text. The text is no longer than the record's value.
OP_BYTES = 320
# Python stores 4 bytes for each character of a text that contains one character above U+FFFF, and
# fewer for other texts. So the estimate for long names is too high rather than too low.
CHAR_BYTES = 4


def entry_bytes(transaction_id: str, group: str) -> int:
    """Return the bytes of a transaction without its messages."""
    return ENTRY_BYTES + CHAR_BYTES * (len(transaction_id) + len(group))


def message_bytes(metadata: HalfMetadata) -> int:
    """Return the bytes of a readable half record without its body."""
    chars = len(metadata.transaction_id) + len(metadata.producer_group) + len(metadata.real_topic)
    return MESSAGE_BYTES + CHAR_BYTES * chars


def op_bytes(read: OpRead | JunkRead) -> int:
    """Return the bytes of a waiting op, without the body of an unreadable op."""
    if isinstance(read, JunkRead):
        return OP_BYTES + CHAR_BYTES * len(read.detail)
    return OP_BYTES + CHAR_BYTES * read.size_bytes


def record_bytes(record: HalfRead | JunkRead) -> int:
    """Return the bytes of a half record, readable or not, without its body."""
    if isinstance(record, JunkRead):
        return MESSAGE_BYTES + CHAR_BYTES * len(record.detail)
    return record.metadata_bytes
