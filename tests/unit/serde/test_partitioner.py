"""The partition of a key: as Kafka's Java client places it, or as librdkafka does."""

from zlib import crc32

import pytest

from halfbridge.serde.partitioner import murmur2, partition_by_crc, partition_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_golden_values_of_kafka(data: bytes, expected: int) -> None:
    """The values of Kafka's own UtilsTest.testMurmur2, which are signed."""
    assert murmur2(data) == expected % 2**32


def test_partition_of_golden_key() -> None:
    """The sign bit is dropped before the remainder, as in Java's toPositive."""
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_librdkafka_places_keys_otherwise() -> None:
    """Its default (docs/how-to/send.md) takes zlib's CRC32 modulo the partitions."""
    keys = [b"customer-%d" % number for number in range(1_000)]
    assert sum(partition_of(key, 6) == crc32(key) % 6 for key in keys) == 159


def test_the_other_hash_is_crc_32() -> None:
    """Unsigned, by the check value of its definition; what librdkafka does with it is tested."""
    assert partition_by_crc(b"123456789", 1_000) == 0xCBF43926 % 1_000
    assert {partition_by_crc(bytes([n]), 3) for n in range(100)} == {0, 1, 2}
