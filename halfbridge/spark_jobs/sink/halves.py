"""Sends half messages, and checks rows against their real topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.spark_jobs.sink.errors import RowError, SinkSetupError, failing_as
from halfbridge.spark_jobs.sink.real_topic import ANY_BYTES, RealTopic
from halfbridge.spark_jobs.sink.sender import Sender
from halfbridge.spark_jobs.sink.topics import NO_ANSWER

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Ports
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.rows import Row

# A task continues to send meanwhile, so that batches become larger.
_LINGER_MS = 20


class HalfSender(Sender):
    """Sends half messages of task attempts, one attempt after the other.

    Attributes:
        is_outdated: A row was refused by the topics' limits as this sender read them: the next
            attempt must read the limits again.
    """

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        super().__init__(options, ports, defaults={"linger.ms": _LINGER_MS})
        self._real_topics: dict[str, RealTopic] = {}
        self.is_outdated = False

    def real_topic(self, topic: str, partition: int) -> RealTopic:
        """Return a real topic's shape; looked up once, for later attempts too.

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
            RowError: the topic refuses the row, by its present settings.
        """
        topic, partition, *_ = row
        # Before a refusal, the topic is looked up again: an operator may have raised its limit.
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
            text = f"no topic {topic} (or no right to see it); create it first"
            raise SinkSetupError(text, topics=(topic,))
        known = self._real_topics[topic] = RealTopic(
            seen.partitions,
            int(settings.get("max.message.bytes", ANY_BYTES)),
            "compact" in settings.get("cleanup.policy", ""),
        )
        return known
