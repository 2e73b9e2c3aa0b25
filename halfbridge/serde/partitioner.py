"""Which partition a key goes to.

In half partitions by murmur2, always. In those of a real topic by murmur2 (Kafka's Java client) or
CRC-32 (librdkafka's default), whichever the topic's other producers use.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from struct import iter_unpack
from zlib import crc32

# Kafka's murmur2 (org.apache.kafka.common.utils.Utils): its seed, its factor, 32 bits, no sign.
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
# Keys repeat (an order, an account), and hashing one in Python costs microseconds.
_REMEMBERED_KEYS = 16_384
_REMEMBERED_KEY_BYTES = 64  # so the memory of keys stays below about 4 MiB


class Partitioner(Enum):
    """How a real topic's keys are placed, by librdkafka's names (its property `partitioner`)."""

    MURMUR2 = "murmur2"
    CONSISTENT_RANDOM = "consistent_random"


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, unsigned.

    Source: org.apache.kafka.common.utils.Utils.murmur2 (there as a signed int).
    """
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for (k,) in iter_unpack("<I", data[:whole]):
        mixed = k * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        h = h * _M & _MASK ^ mixed
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


_remembered = lru_cache(_REMEMBERED_KEYS)(murmur2)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, in [0, partitions), that Java's default partitioner gives `key`."""
    if partitions == 1:
        return 0
    return key_hash(key) % partitions


def key_hash(key: bytes) -> int:
    """Return the positive murmur2 hash of a key, 31 bits: modulo a count it names a partition."""
    hashed = _remembered(key) if len(key) <= _REMEMBERED_KEY_BYTES else murmur2(key)
    return hashed & _POSITIVE


def partition_by_crc(key: bytes, partitions: int) -> int:
    """Return the partition, in [0, partitions), that librdkafka's default partitioner gives `key`.

    Source: rd_kafka_msg_partitioner_consistent_random, which places an empty key anywhere.
    """
    return crc32(key) % partitions
