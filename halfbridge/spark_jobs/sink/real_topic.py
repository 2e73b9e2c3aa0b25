"""Checks whether a real topic will take a row, as the daemon will write it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.serde.headers import real_headers
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from halfbridge.spark_jobs.sink.rows import Row

# If a topic's settings cannot be read: the highest max.message.bytes that Kafka allows.
ANY_BYTES = (1 << 31) - 1
_BATCH_BYTES = 61  # header of a record batch, to which max.message.bytes applies
_FIXED_BYTES = 3  # attributes, and two deltas that are 0 in the first record of a batch
_VARINT_BYTES_MAX = 5
# The headers that the daemon adds: transaction id, birth and index. The largest index is taken,
# because a row's index is not known yet when its size is checked.
_ADDED = real_headers([], "0" * 32, 10**12, TRANSACTION_MESSAGES_MAX - 1)
_ADDED_BYTES = sum(2 + len(name) + len(value or b"") for name, value in _ADDED)
# Most bytes of a record besides key, value and the user's headers. The record's length, the lengths
# of key and value, and the number of headers take up to five bytes each.
FRAME_BYTES_MAX = _BATCH_BYTES + _FIXED_BYTES + 4 * _VARINT_BYTES_MAX + _ADDED_BYTES


@dataclass(frozen=True, slots=True)
class RealTopic:
    """A real topic.

    Attributes:
        partitions: Number of partitions.
        record_bytes_max: The topic's max.message.bytes; ANY_BYTES if that cannot be read.
        is_compacted: The topic is compacted, and refuses null keys.
    """

    partitions: int
    record_bytes_max: int
    is_compacted: bool

    def refusal(self, row: Row) -> str:
        """Return why the topic would refuse a row; empty if it would not."""
        topic, _, key, _, _ = row
        if key is None and self.is_compacted:
            return f"topic {topic} is compacted and takes no row without a key"
        size = delivered_bytes(row)
        if size > self.record_bytes_max:
            return (
                f"a row is {size} bytes as a record of topic {topic}, whose max.message.bytes is"
                f" {self.record_bytes_max}: make such rows smaller, or raise that setting"
            )
        return ""


def delivered_bytes(row: Row) -> int:
    """Return an upper bound of a row's size as an uncompressed batch of one record.

    Source: Kafka's record format v2.
    """
    _, _, key, value, headers = row
    count = len(headers) + len(_ADDED)
    size = _FIXED_BYTES + _field_bytes(key) + _field_bytes(value) + _varint_bytes(count)
    size += _ADDED_BYTES
    size += sum(_field_bytes(name.encode()) + _field_bytes(given) for name, given in headers)
    return _BATCH_BYTES + _varint_bytes(size) + size


def _field_bytes(field: bytes | None) -> int:
    return 1 if field is None else _varint_bytes(len(field)) + len(field)


def _varint_bytes(number: int) -> int:
    """Return the bytes of a number >= 0 as a varint: seven bits per byte, one bit for the sign."""
    return max(1, -(-(2 * number).bit_length() // 7))
