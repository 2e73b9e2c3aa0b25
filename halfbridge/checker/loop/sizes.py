"""The size of a record in a log, and the size limit of its topic. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.limits import SIGNATURE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.serde.headers import Header

# A batch of one record in format v2 (KIP-98): 61 bytes for the batch, at most 5 for the record's
# length, 3 for attributes and deltas that are 0, and 15 for the lengths of key, value and headers.
_FRAME_BYTES_MAX = 84
_BATCH_BYTES = 61
_FIXED_BYTES = 3
# The two lengths in front of name and value, for names below 8 KiB and values below 128 MiB.
_HEADER_FRAME_BYTES_MAX = 6
_NULL_LENGTH = -1
# By how much a copy may be longer than its original: 4 bytes for check times, 8 for the time, 8 for
# the offset, and one for each length around them.
COPY_GROWTH_BYTES = 32
# By how much a signature may make it longer: the name RMQ_SIGN, the value, and both lengths.
SIGNATURE_GROWTH_BYTES = 8 + SIGNATURE_BYTES_MAX + _HEADER_FRAME_BYTES_MAX
# How long a learned limit counts; an operator may have raised the topic's limit since.
LEARNED_MS = 600_000
# Topics whose limit is remembered; a new one replaces the oldest.
LEARNED_MAX = 1_000


class Sizes:
    """The size limits of topics. Times are monotonic milliseconds.

    Args:
        configured: Topic -> its `max.message.bytes`; None: not known, and every size is tried.
    """

    def __init__(self, configured: Callable[[str], int | None]) -> None:
        self._configured = configured
        self._learned: dict[str, tuple[int, int]] = {}
        self._limits: dict[str, int | None] = {}

    def limit(self, topic: str) -> int | None:
        """Return the most bytes of a batch of one record; None: not known."""
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
        """Tell whether a batch of one record may have this size, as far as is known."""
        limit = self.limit(topic)
        return limit is None or size_bytes <= limit

    def learn(self, topic: str, bytes_max: int, now_ms: int) -> None:
        """Record that a topic refuses more than `bytes_max`, found by a refused record."""
        self._learned.pop(topic, None)
        if len(self._learned) >= LEARNED_MAX:
            del self._learned[next(iter(self._learned))]
        self._learned[topic] = (now_ms + LEARNED_MS, bytes_max)
        self._limits = {}

    def refresh(self, now_ms: int) -> None:
        """Read the configured limits again, and forget limits learned more than LEARNED_MS ago."""
        self._learned = {
            topic: (until_ms, bytes_max)
            for topic, (until_ms, bytes_max) in self._learned.items()
            if until_ms > now_ms
        }
        self._limits = {}


def bytes_at_most(key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> int:
    """Return an upper bound of `bytes_alone`, at least some 20 bytes too high, but cheap."""
    size_bytes = _FRAME_BYTES_MAX + len(key or b"") + len(value or b"")
    for name, text in headers or ():
        size_bytes += len(name.encode()) + len(text or b"") + _HEADER_FRAME_BYTES_MAX
    return size_bytes


def bytes_alone(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Return the bytes of an uncompressed batch of one record, to which a topic's limit applies."""
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
