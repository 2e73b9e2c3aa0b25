"""The partition of a key, for whatever key."""

from halfbridge.serde.partitioner import murmur2, partition_of
from tests.kit.examples import given, st


@given(st.binary(max_size=200), st.integers(1, 1000))
def test_partition_in_range_and_stable(key: bytes, partitions: int) -> None:
    """Every key, short enough to be remembered or not, has one partition in range."""
    partition = partition_of(key, partitions)
    assert 0 <= partition < partitions
    assert partition == partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
