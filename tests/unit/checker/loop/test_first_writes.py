"""Where a batch is cut: behind a producer's first record in a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfbridge.checker.loop.at_least_once import FirstWrites
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.partitioner import partition_of

TOPICS = {"orders": SeenTopic(2, 1), "bills": SeenTopic(1, 1)}


class _Client:
    """A client that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        self.asked += 1
        return TOPICS


def _made() -> tuple[FirstWrites, _Client]:
    client: Any = _Client()
    return FirstWrites(client), client


def _record(
    name: str, topic: str = "orders", partition: int = -1, key: bytes | None = None
) -> Outgoing:
    return Outgoing(topic, partition, key, name.encode(), [], 0)


def _names(pieces: Any) -> list[str]:
    return ["".join((each.value or b"").decode() for each in piece) for piece in pieces]


def _written(writes: FirstWrites, batch: Sequence[Outgoing]) -> list[str]:
    return _names(writes.pieces(batch))


def test_each_first_record_ends_a_piece() -> None:
    """Later ones go together, in the order of the batch."""
    writes, client = _made()
    batch = [_record("a", partition=1), _record("b", partition=1), _record("c", partition=0)]
    assert _written(writes, [*batch, _record("d", partition=1)]) == ["a", "bc", "d"]
    assert _written(writes, batch) == ["abc"]
    assert client.asked == 1


def test_a_key_names_the_partition() -> None:
    """As the client places it."""
    writes, _ = _made()
    keys = [b"%d" % number for number in range(20)]
    one = next(key for key in keys if partition_of(key, 2) == 1)
    zero = next(key for key in keys if partition_of(key, 2) == 0)
    batch = [_record("a", key=one), _record("b", key=one), _record("c", key=zero), _record("d")]
    assert _written(writes, batch) == ["a", "bc", "d"]


def test_a_record_without_a_key_opens_the_next_partition() -> None:
    """So that all partitions are open after as many pieces; then the client places it."""
    writes, _ = _made()
    pieces = [*writes.pieces([_record(name) for name in "abcd"])]
    assert _names(pieces) == ["a", "b", "cd"]
    assert [each.partition for piece in pieces for each in piece] == [0, 1, -1, -1]


def test_each_topic_is_opened_for_itself() -> None:
    """Also a topic that comes later, and one that is not there any more."""
    writes, client = _made()
    assert _written(writes, [_record("a", "bills"), _record("b", "gone")]) == ["a", "b"]
    assert _written(writes, [_record("a", "bills"), _record("b", "gone")]) == ["ab"]
    assert _written(writes, [_record("a", "bills"), _record("b")]) == ["ab", ""]
    assert client.asked == 3
