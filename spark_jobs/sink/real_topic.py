"""What a real topic takes of a row, as the daemon will write it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.serde.headers import real_headers
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX

if TYPE_CHECKING:
    from halfbridge.spark_jobs.sink.rows import Row

# Where a topic's settings may not be read: the greatest max.message.bytes that Kafka allows.
ANY_BYTES = (1 << 31) - 1
_BATCH_BYTES = 61  # header of a record batch, to which max.message.bytes applies
_FIXED_BYTES = 3  # attributes, and two deltas that are 0 in the first record of a batch
_VARINT_BYTES_MAX = 5
# A transaction id, a birth in milliseconds and the largest index, as the daemon adds them to a
# record: which index a row will have is not known when it is weighed.
_ADDED = real_headers([], "0" * 32, 10**12, TRANSACTION_MESSAGES_MAX - 1)
_ADDED_BYTES = sum(2 + len(name) + len(value or b"") for name, value in _ADDED)
# Most that the record has besides key, value and the user's headers: its length, those of key and
# value, and the number of headers come in up to five bytes each.
FRAME_BYTES_MAX = _BATCH_BYTES + _FIXED_BYTES + 4 * _VARINT_BYTES_MAX + _ADDED_BYTES


@dataclass(frozen=True, slots=True)
class RealTopic:
    """A real topic.

    Attributes:
        partitions: How many it has.
        record_bytes_max: Its max.message.bytes; ANY_BYTES where that may not be read.
        is_compacted: It refuses null keys.
    """

    partitions: int
    record_bytes_max: int
    is_compacted: bool

    def refusal(self, row: Row) -> str:
        """Return why the topic would refuse a row; empty when it would not."""
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
    """Return the size of a row as a record batch of its own, not compressed, at most.

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
    """Return how many bytes a number from 0 takes: seven bits each, the lowest for the sign."""
    return max(1, -(-(2 * number).bit_length() // 7))
