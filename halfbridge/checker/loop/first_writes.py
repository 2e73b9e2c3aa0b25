"""Cuts a batch where a producer writes to a partition for the first time.

A broker takes any first number of a producer that it does not know. Example: of two requests that
are under way to a partition, the broker refuses the first one for want of in-sync replicas, and
accepts the second one a moment later. So the first record of a producer in a partition is proven
alone, and the broker knows the producer from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.partitioner import partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.kafka.ports import SeenTopic, Writer

# For one question for the topics of the cluster, once for each real topic.
_QUESTION_S = 10.0


class FirstWrites:
    """The partitions that one producer has not written to yet.

    Args:
        writer: The producer's client, which is asked how many partitions a topic has.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._left: dict[str, set[int]] = {}  # topic -> partitions that were not written to
        self._counts: dict[str, int] = {}

    def pieces(self, batch: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
        """Yield the batch in order, in pieces: each must be proven before the next one is taken.

        Raises:
            KafkaFailure: no broker tells how many partitions a topic has.
        """
        topics = {record.topic for record in batch}
        if not [topic for topic in topics if not self._is_open(topic)]:
            yield [*batch]
            return
        piece: list[Outgoing] = []
        for record in batch:
            left = self._left.get(record.topic)
            number = self._place(record, left) if left else -1
            if left and number in left:
                left.discard(number)
                piece.append(
                    record if record.key is not None else record._replace(partition=number)
                )
                yield piece
                piece = []
            else:
                piece.append(record)
        yield piece

    def _is_open(self, topic: str) -> bool:
        """Tell whether all partitions of a topic were written to; ask for a new topic."""
        if topic not in self._left:
            seen: Mapping[str, SeenTopic] = self._writer.topics(_QUESTION_S)
            count = seen[topic].partitions if topic in seen else 0
            self._counts[topic], self._left[topic] = count, set(range(count))
        return not self._left[topic]

    def _place(self, record: Outgoing, left: set[int]) -> int:
        """Return the partition of a record; a record that may go anywhere opens another one."""
        if record.partition >= 0:
            return record.partition
        if record.key is None:
            return min(left)
        return partition_of(record.key, self._counts[record.topic])
