"""How far the daemon of an installation has come, read off the offsets that its group commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Self

    from halfbridge.serde.topics import TopicNames

_CALL_S_MAX = 20.0


class DaemonProgress:
    """Asks the brokers, never the daemon: it tells the truth while the daemon is dead, too.

    A context manager. Not thread-safe.

    Args:
        bootstrap_servers: Where the installation is.
        names: Of its topics; they exist.
    """

    def __init__(self, bootstrap_servers: str, names: TopicNames) -> None:
        self._topics = (names.half, names.op)
        self._asker = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": names.daemon_group,  # asked about, never joined
                "isolation.level": "read_uncommitted",  # an open kafka_txn is not over
            }
        )

    def left(self) -> list[str]:
        """Return one line for each partition with something undecided, or not yet visible.

        Brokers that cannot be asked at this moment are a line too.
        """
        try:
            known = self._asker.list_topics(timeout=_CALL_S_MAX).topics
            # A broker that is just coming back may not know them yet: that is no sign of an end.
            unknown = [
                each for each in self._topics if each not in known or known[each].error is not None
            ]
            if unknown:
                return [f"{topic} is not there" for topic in unknown]
            places = [
                TopicPartition(topic, partition)
                for topic in self._topics
                for partition in known[topic].partitions
            ]
            # In this order: H moves past what was put back in the kafka_txn that writes the copies.
            committed = self._asker.committed(places, timeout=_CALL_S_MAX)
            ends = [
                self._asker.get_watermark_offsets(place, timeout=_CALL_S_MAX)[1] for place in places
            ]
        except KafkaException as error:
            return [str(error)]
        return [
            f"{one.topic}[{one.partition}] is done up to {one.offset} of {end} {one.metadata}"
            for one, end in zip(committed, ends, strict=True)
            if one.offset < end
        ]

    def close(self) -> None:
        """Leave the cluster."""
        self._asker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
