"""How large a record may be: what it takes in a log, and what its topic takes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.serde.headers import Header

# A batch of one record in format v2 (KIP-98): 61 bytes of the batch, and at most 5 of the record's
# length, 3 of attributes and of deltas that are 0, 15 of the lengths of key, value and headers.
_FRAME_BYTES_MAX = 84
_BATCH_BYTES = 61
_FIXED_BYTES = 3
# Length of name and value, for names below 8 KiB and values below 128 MiB.
_HEADER_FRAME_BYTES_MAX = 6
_NULL_LENGTH = -1
# By how much a copy may be longer than what it is a copy of: 4 bytes of check times, 8 of each of
# time and offset, and one of each length around them.
COPY_GROWTH_BYTES = 32
# How long a size stays refused, whatever brokers say of the topic's limit: it may be raised.
LEARNED_MS = 600_000
# Topics for which that is remembered; the oldest goes for another one.
LEARNED_MAX = 1_000


class Sizes:
    """What topics take at most. Times are monotonic milliseconds.

    Args:
        configured: Topic -> its `max.message.bytes`; None: not known, so that all sizes are tried.
    """

    def __init__(self, configured: Callable[[str], int | None]) -> None:
        self._configured = configured
        self._learned: dict[str, tuple[int, int]] = {}
        self._limits: dict[str, int | None] = {}

    def limit(self, topic: str) -> int | None:
        """Return how many bytes a batch of one record may have; None: not known."""
        try:
            return self._limits[topic]
        except KeyError:
            limit = self._configured(topic)
            if topic in self._learned:
                learned = self._learned[topic][1]
                limit = learned if limit is None else min(limit, learned)
            self._limits[topic] = limit
            return limit

    def fits(self, topic: str, size_bytes: int) -> bool:
        """Tell whether a batch of one record of this size is not known to be too large."""
        limit = self.limit(topic)
        return limit is None or size_bytes <= limit

    def learn(self, topic: str, bytes_max: int, now_ms: int) -> None:
        """Record that a topic refused more than `bytes_max`; brokers do not say, or did not."""
        self._learned.pop(topic, None)
        if len(self._learned) >= LEARNED_MAX:
            del self._learned[next(iter(self._learned))]
        self._learned[topic] = (now_ms + LEARNED_MS, bytes_max)
        self._limits = {}

    def refresh(self, now_ms: int) -> None:
        """Look anew at what is configured, and forget what was learned long ago."""
        self._learned = {
            topic: (until_ms, bytes_max)
            for topic, (until_ms, bytes_max) in self._learned.items()
            if until_ms > now_ms
        }
        self._limits = {}


def bytes_at_most(key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> int:
    """Return what a record takes alone in a batch, at most; some 20 bytes too many at least."""
    size_bytes = _FRAME_BYTES_MAX + len(key or b"") + len(value or b"")
    for name, text in headers or ():
        size_bytes += len(name.encode()) + len(text or b"") + _HEADER_FRAME_BYTES_MAX
    return size_bytes


def bytes_alone(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Return what a record takes alone in a batch, uncompressed: what a topic's limit is on."""
    size_bytes = _FIXED_BYTES + _field_bytes(key) + _field_bytes(value) + _varint(len(headers))
    for name, text in headers:
        size_bytes += _field_bytes(name.encode()) + _field_bytes(text)
    return _BATCH_BYTES + _varint(size_bytes) + size_bytes


def _field_bytes(field: bytes | None) -> int:
    if field is None:
        return _varint(_NULL_LENGTH)
    return _varint(len(field)) + len(field)


def _varint(value: int) -> int:
    """Return how many bytes `value` takes: zigzag, 7 bits a byte."""
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    return max(1, -(-zigzag.bit_length() // 7))
