"""The bytes of a record, as a topic's `max.message.bytes` counts them.

The limit applies to a batch. A record that is sent alone is a batch of one, in format v2 (KIP-98).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.serde.headers import Header

_BATCH_BYTES = 61  # header of a batch
_FIXED_BYTES = 3  # attributes, and two deltas that are 0 in the first record of a batch
_VARINT_BYTES_MAX = 5  # of a length, which is an int32
# Most bytes of a record besides key, value and headers. Four varints: the lengths of the record, of
# its key and of its value, and the number of headers.
FRAME_BYTES_MAX = _BATCH_BYTES + _FIXED_BYTES + 4 * _VARINT_BYTES_MAX
# The two lengths in front of name and value, for names below 8 KiB and values below 128 MiB.
HEADER_FRAME_BYTES_MAX = 6
_NULL_LENGTH = -1  # length of a null key or value


def bytes_at_most(key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> int:
    """Return an upper bound of `bytes_alone`, at least some 20 bytes too high, but cheap."""
    size_bytes = FRAME_BYTES_MAX + len(key or b"") + len(value or b"")
    for name, text in headers or ():
        size_bytes += len(name.encode()) + len(text or b"") + HEADER_FRAME_BYTES_MAX
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
