"""Transaction ids: time-ordered, unique, unguessable."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from time import time_ns
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbridge.serde.identity import TransactionIds
from halfbridge.serde.partitioner import murmur2, partition_by_crc, partition_of


def test_ids_are_uuid_version_7_of_now() -> None:
    """Any UUID library reads the version, the variant and the time."""
    before = time_ns() // 1_000_000
    text = TransactionIds().next()
    parsed = uuid.UUID(text)
    assert len(text) == 32
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert before <= parsed.int >> 80 <= time_ns() // 1_000_000


def test_ids_ascend_and_differ() -> None:
    """More ids than the counter holds in a millisecond stay in order."""
    ids = TransactionIds()
    made = [ids.next() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_threads_never_share_an_id() -> None:
    """Eight threads, one generator, no duplicate."""
    ids = TransactionIds()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [ids.next() for _ in range(2_000)], range(8)))
    assert len({each for batch in made for each in batch}) == 16_000


def test_a_forked_child_makes_other_ids() -> None:
    """Child and parent share no randomness, though they fork with the same pool."""
    ids = TransactionIds()
    ids.next()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.next().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 32).decode()
    os.close(reader)
    os.close(writer)
    assert theirs[16:] != ids.next()[16:]


# --- keys go to the partition that Kafka's Java client gives them, or librdkafka does ------


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


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_partition_in_range_and_stable(key: bytes, partitions: int) -> None:
    """Every key, short enough to be remembered or not, has one partition in range."""
    partition = partition_of(key, partitions)
    assert 0 <= partition < partitions
    assert partition == partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_the_other_hash_is_crc_32() -> None:
    """Unsigned, by the check value of its definition; what librdkafka does with it is tested."""
    assert partition_by_crc(b"123456789", 1_000) == 0xCBF43926 % 1_000
    assert {partition_by_crc(bytes([n]), 3) for n in range(100)} == {0, 1, 2}
