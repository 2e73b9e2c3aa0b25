"""What the ledger is told: records that were read. Past tense; offsets are of one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.protocol import NO_APPEND_MS

if TYPE_CHECKING:
    from halfbridge.serde.records import HalfMetadata, Op


# Kafka's word for a timestamp that the broker wrote when it appended the record.
LOG_APPEND_TIME = 2


def append_ms_of(kind: int, timestamp_ms: int) -> int:
    """Return the broker's append time of a record; NO_APPEND_MS where its writer said the time."""
    return timestamp_ms if kind == LOG_APPEND_TIME else NO_APPEND_MS


class HalfRead(NamedTuple):
    """A half record was read.

    Attributes:
        offset: Its half offset.
        append_ms: The broker's append time, or NO_APPEND_MS.
        metadata: What RMQ_HALF says.
        flaw: Why it must never be delivered; empty when all is well (halfbridge.serde.headers).
        size_bytes: What the record takes alone in a batch of a log.
        body: The record itself for whoever writes it on; opaque here. None after the ledger let
            it go to keep its budget: then it is read again by offset.
        user_bytes: What it counts towards TRANSACTION_BYTES_MAX (serde.headers.user_bytes).
        metadata_bytes: What it takes in memory without its body (`weights.message_bytes`), so
            that it is weighed once; 0 where no memory is watched.
        body_bytes: What its body takes in memory.
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

    @property
    def origin(self) -> int:
        """Offset of the original: its own unless this is a copy."""
        origin = self.metadata.origin_offset
        return self.offset if origin < 0 else origin

    @property
    def first_append_ms(self) -> int:
        """Append time of the original, or NO_APPEND_MS; what a copy says of it is believed."""
        metadata = self.metadata
        if metadata.origin_offset < 0:
            return self.append_ms
        claimed_ms = metadata.first_append_timestamp
        if self.append_ms < 0 or claimed_ms < 0:
            return max(claimed_ms, NO_APPEND_MS)
        # A copy that claims to be younger than it is itself would never fall due.
        return min(claimed_ms, self.append_ms)


class OpRead(NamedTuple):
    """An op record was read; `append_ms` as of HalfRead.

    Attributes:
        size_bytes: Of its value; 0 where no memory is watched.
    """

    offset: int
    append_ms: int
    op: Op
    size_bytes: int = 0


class JunkRead(NamedTuple):
    """A half or op record that cannot be read: no or broken metadata, unknown schema.

    Attributes:
        size_bytes, body: As of HalfRead; an op's body is never let go.
    """

    offset: int
    append_ms: int
    detail: str
    size_bytes: int
    body: object | None

    @property
    def body_bytes(self) -> int:
        """What its body takes in memory."""
        return self.size_bytes
