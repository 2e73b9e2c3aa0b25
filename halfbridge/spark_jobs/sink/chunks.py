"""Cuts the rows of a task attempt into transactions of bounded size. Pure.

All messages of a transaction go to one half partition, which is chosen by the key. So messages of
one key are delivered in the order of the rows. All messages of a transaction have one real topic,
because the daemon gives up a whole transaction when a topic refuses one message. Each half
partition has one open chunk for each topic. When a chunk is full, the next one begins, and
decisions are written in this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.manifest_records import ManifestTransaction
from halfbridge.serde.records import NO_OFFSET, NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Chunk:
    """One transaction that is being sent."""

    __slots__ = (
        "bytes",
        "count",
        "encoders",
        "first_timestamp",
        "half_offset",
        "half_partition",
        "transaction_id",
        "unacknowledged",
    )

    def __init__(self, transaction_id: str, half_partition: int) -> None:
        self.transaction_id = transaction_id
        self.half_partition = half_partition
        self.count = 0
        self.bytes = 0
        self.unacknowledged = 0
        self.half_offset = NO_OFFSET
        self.first_timestamp = NO_TIMESTAMP
        # (real topic, real partition) -> message index -> RMQ_HALF.
        self.encoders: dict[tuple[str, int], Callable[[int], bytes]] = {}

    def acknowledged(self, offset: int, timestamp: int) -> None:
        """Note that one message of the chunk is stored."""
        self.unacknowledged -= 1
        self.half_offset = max(self.half_offset, offset)
        if self.first_timestamp == NO_TIMESTAMP or timestamp < self.first_timestamp:
            self.first_timestamp = timestamp

    def as_transaction(self) -> ManifestTransaction:
        """Return the manifest's entry for the chunk, once all its messages are acknowledged."""
        return ManifestTransaction(
            self.transaction_id, self.half_partition, self.count, self.half_offset
        )


class Chunks:
    """All chunks of one task attempt.

    Args:
        messages_max: Most messages of a chunk.
        bytes_max: Most bytes of key, value and headers of a chunk; a single message may exceed it.
        new_id: Makes transaction ids.
    """

    def __init__(self, *, messages_max: int, bytes_max: int, new_id: Callable[[], str]) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._new_id = new_id
        self._open: dict[tuple[int, str], Chunk] = {}
        self.all: list[Chunk] = []

    def place(self, half_partition: int, topic: str, size_bytes: int) -> Chunk:
        """Return the chunk for a topic's next message of that size, and count the message."""
        where = (half_partition, topic)
        chunk = self._open.get(where)
        if (
            chunk is None
            or chunk.count >= self._messages_max
            or chunk.bytes + size_bytes > self._bytes_max
        ):
            chunk = Chunk(self._new_id(), half_partition)
            self._open[where] = chunk
            self.all.append(chunk)
        chunk.count += 1
        chunk.bytes += size_bytes
        chunk.unacknowledged += 1
        return chunk

    def transactions(self) -> tuple[ManifestTransaction, ...]:
        """Return all transactions, in the order in which their chunks were begun."""
        return tuple(chunk.as_transaction() for chunk in self.all)

    def first_append_timestamp(self) -> int:
        """Return the append time of the attempt's oldest half message; -1 without any."""
        stamps = [chunk.first_timestamp for chunk in self.all]
        return min(stamps, default=NO_TIMESTAMP)


def merge_timestamps(stamps: Iterable[int]) -> int:
    """Return the earliest time, ignoring -1 (none); -1 without any."""
    return min((stamp for stamp in stamps if stamp != NO_TIMESTAMP), default=NO_TIMESTAMP)
