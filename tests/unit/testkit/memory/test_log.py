"""How partitions know a repetition of a batch."""

from __future__ import annotations

import pytest

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.testkit.memory.log import BatchNumber, OutOfRangeError, Partition, Row

_ROW = Row(None, b"v", None, 0)


def _store(partition: Partition, epoch: int, first: int, count: int = 1) -> int:
    number = BatchNumber(1, epoch, first)
    stands = partition.repeated(number)
    if stands is not None:
        return stands
    offset = partition.append([_ROW] * count, 0)
    partition.note_batch(number, count, offset)
    return offset


def test_a_repeated_batch_is_stored_once() -> None:
    """A broker knows each of a producer's last five batches, and where it stands."""
    partition = Partition("topic", 0)
    offsets = [_store(partition, 0, first, 2) for first in range(0, 12, 2)]
    assert [_store(partition, 0, first, 2) for first in range(2, 12, 2)] == offsets[1:]
    assert partition.end == 12
    with pytest.raises(KafkaFailure, match="DUPLICATE_SEQUENCE_NUMBER"):
        _store(partition, 0, 0, 2)


def test_a_gap_is_refused() -> None:
    """So that no record overtakes another one; a new epoch begins at 0."""
    partition = Partition("topic", 0)
    _store(partition, 0, 0)
    with pytest.raises(KafkaFailure, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        _store(partition, 0, 2)
    with pytest.raises(KafkaFailure, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        _store(partition, 1, 1)
    assert _store(partition, 1, 0) == 1
    with pytest.raises(KafkaFailure) as refused:
        _store(partition, 0, 1)
    assert refused.value.code == Code.INVALID_PRODUCER_EPOCH


def test_a_read_stops_where_it_must() -> None:
    """At the count that is asked for, and at the first record of an open kafka_txn."""
    partition = Partition("topic", 0)
    partition.append([_ROW] * 3, 0)
    fate = partition.begin()
    partition.append([_ROW], 0, fate=fate)
    records, then = partition.read(0, 2)
    assert ([record.offset() for record in records], then) == ([0, 1], 2)
    assert partition.read(2, 10)[1] == 3
    assert partition.read(2, 10, is_committed=False)[1] == 4
    partition.mark(fate, is_aborted=True)
    assert partition.read(3, 10) == ([], 5)
    with pytest.raises(OutOfRangeError):
        partition.read(6, 1)
