"""How far the daemon of an installation has come, read off the offsets that its group commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import KafkaFailure

if TYPE_CHECKING:
    from typing_extensions import Self

    from halfbridge.serde.topics import TopicNames

_CALL_S_MAX = 20.0  # a broker that has just started may need seconds


class DaemonProgress:
    """Asks the brokers, never the daemon: it tells the truth while the daemon is dead, too.

    A context manager. Not thread-safe.

    Args:
        bootstrap_servers: Where the installation is.
        names: Of its topics; they exist.
    """

    def __init__(self, bootstrap_servers: str, names: TopicNames) -> None:
        self._topics = (names.half, names.op)
        kafka, servers = system_ports().kafka, {"bootstrap.servers": bootstrap_servers}
        self._admin = kafka.admin(servers)
        self._reader = kafka.reader(
            {
                **servers,
                "group.id": names.daemon_group,  # asked about, never joined
                "isolation.level": "read_uncommitted",  # an open kafka_txn is not over
            }
        )

    def left(self) -> list[str]:
        """Return one line for each partition with something undecided, or not yet visible.

        Brokers that cannot be asked at this moment are a line too.
        """
        try:
            known = self._admin.topics(_CALL_S_MAX)
            # A broker that is just coming back may not know them yet: that is no sign of an end.
            unknown = [each for each in self._topics if each not in known]
            if unknown:
                return [f"{topic} is not there" for topic in unknown]
            places = [
                (topic, partition)
                for topic in self._topics
                for partition in range(known[topic].partitions)
            ]
            # In this order: H moves past what was put back in the kafka_txn that writes the copies.
            committed = self._reader.committed(places, _CALL_S_MAX)
            ends = {place: self._reader.ends(place, _CALL_S_MAX)[1] for place in places}
        except KafkaFailure as failure:
            return [str(failure)]
        return [
            f"{topic}[{number}] is done up to {done.offset} of {end} {done.metadata}"
            for (topic, number), end in ends.items()
            if (done := committed[topic, number]).offset < end
        ]

    def close(self) -> None:
        """Leave the cluster."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
