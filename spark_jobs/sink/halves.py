"""The sender of half messages, with what it knows of the real topics that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.spark_jobs.sink.errors import RowError, SinkSetupError, failing_as
from halfbridge.spark_jobs.sink.real_topic import ANY_BYTES, RealTopic
from halfbridge.spark_jobs.sink.sender import Sender
from halfbridge.spark_jobs.sink.topics import NO_ANSWER

if TYPE_CHECKING:
    from halfbridge.bridge.ports import Ports
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.rows import Row

# A task sends on meanwhile, and so a broker is sent larger batches.
_LINGER_MS = 20


class HalfSender(Sender):
    """Sends half messages of task attempts, one attempt after the other.

    Attributes:
        is_outdated: A row was refused by the half topic's shape as it was when this was made: the
            next attempt is to read the shape anew.
    """

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        super().__init__(options, ports, defaults={"linger.ms": _LINGER_MS})
        self._real_topics: dict[str, RealTopic] = {}
        self.is_outdated = False

    def real_topic(self, topic: str, partition: int) -> RealTopic:
        """Return what a real topic is like; asked once, also for later attempts.

        Raises:
            RowError: the topic is internal, or has no such partition.
            SinkSetupError: the topic does not exist.
        """
        known = self._real_topics.get(topic)
        if known is None or partition >= known.partitions:
            known = self._ask_about(topic)
            if partition >= known.partitions:
                raise RowError(
                    f"topic {topic} has no partition {partition}; it has {known.partitions}"
                )
        return known

    def check_row(self, row: Row) -> None:
        """Check that a row's real topic takes it.

        Raises:
            RowError: it would not, as the topic is now.
        """
        topic, partition, *_ = row
        # An operator may have done what an earlier refusal advised.
        if self.real_topic(topic, partition).refusal(row) and (
            refused := self._ask_about(topic).refusal(row)
        ):
            raise RowError(refused)

    def _ask_about(self, topic: str) -> RealTopic:
        if self.names.is_internal(topic):
            raise RowError(f"topic {topic} is internal and can never be a real topic")
        with failing_as(SinkSetupError, NO_ANSWER):
            seen = self._topics.seen().get(topic)
            settings = self._topics.settings(topic) if seen else {}
        if seen is None:
            raise SinkSetupError(f"no topic {topic} (or no right to see it); create it first")
        known = self._real_topics[topic] = RealTopic(
            seen.partitions,
            int(settings.get("max.message.bytes", ANY_BYTES)),
            "compact" in settings.get("cleanup.policy", ""),
        )
        return known
