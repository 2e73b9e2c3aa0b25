"""The client's view of the cluster: topic shapes, looked up at start and on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.config import admin_properties
from halfbridge.kafka.errors import BridgeError, InvalidMessageError, TopicSetupError
from halfbridge.kafka.ports import NewTopic
from halfbridge.kafka.threads import locked
from halfbridge.kafka.topics import GRACE_S, Topics, are_in, topics_with
from halfbridge.serde.topics import CHECK_PARTITIONS, check_topic_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.bridge.message import Message
    from halfbridge.kafka.ports import Admin, Ports, Writer
    from halfbridge.serde.topics import HalfShape

_ADMIN_TIMEOUT_S = 10.0  # start() and send() wait so long at most for one answer


def check_installation(config: BridgeConfig, ports: Ports) -> HalfShape:
    """Check half, op and check topic, and return the half topic's shape.

    Creates the group's check topic if it is missing and the client may create it.

    Raises:
        TopicSetupError: an operator runs the command in its text.
        BridgeError: the brokers do not answer; try again later.
    """
    admin = ports.kafka.admin(admin_properties(config, ports.clock))
    topics = Topics(admin, ports, config.names, remedy=_remedy(config), timeout_s=_ADMIN_TIMEOUT_S)
    half = topics.half_shape()
    check = config.names.check(config.producer_group)
    settings = check_topic_settings(half)
    topics.make_missing([NewTopic(check, CHECK_PARTITIONS, half.replicas, settings)])
    return half


class RealTopics:
    """Real topics: which exist, which are bound, how many partitions. Thread-safe.

    Args:
        config: The producer's settings.
        client: Lists topics.
        ports: The clock and the wakers are used.
        bound: Topics that the producer is bound to; empty: the producer may send to any topic.
    """

    def __init__(
        self, config: BridgeConfig, client: Admin | Writer, ports: Ports, *, bound: tuple[str, ...]
    ) -> None:
        self._names = config.names
        self._client = client
        self._ports = ports
        self._bound = frozenset(bound)
        self._asking = ports.run.waker()  # one thread asks at a time
        self._partitions: dict[str, int] = {}
        self._failure: BridgeError | None = None  # of the last question that failed
        self._failed_at = 0.0

    def check_bound(self) -> None:
        """Look up the bound topics, before anything is sent.

        Raises:
            InvalidMessageError: one is internal; the caller removes it.
            TopicSetupError: one does not exist; the owner of the topic creates it.
        """
        for topic in self._bound:
            self._refuse_internal(topic)
        self._look_up(dict.fromkeys(self._bound, 1))
        for topic in sorted(self._bound - self._partitions.keys()):
            raise _no_topic(topic)

    def check(self, message: Message) -> None:
        """Check that the topic and partition of `message` exist and may be sent to.

        Raises:
            InvalidMessageError: topic internal or not bound, or no such partition; the caller
                changes the message.
            TopicSetupError: the topic does not exist; its owner creates it.
        """
        partitions = self._partitions.get(message.topic)
        if partitions is None or (message.partition or 0) >= partitions:
            self._check_slowly(message)

    def knows(self, topic: str) -> bool:
        """Return whether this producer answers checks about `topic`."""
        return not self._bound or topic in self._bound

    def _check_slowly(self, message: Message) -> None:
        topic = message.topic
        self._refuse_internal(topic)
        if not self.knows(topic):
            raise InvalidMessageError(
                f"topic {topic} is not bound; add it to topics=[...] of the producer",
                field="topic",
            )
        self._look_up({topic: (message.partition or 0) + 1})
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise _no_topic(topic)
        if (message.partition or 0) >= partitions:
            raise InvalidMessageError(
                f"topic {topic} has no partition {message.partition}; it has {partitions}",
                field="partition",
            )

    def _look_up(self, wanted: Mapping[str, int]) -> None:
        """Look up topics until the topics `wanted` have that many partitions or patience ends.

        One thread asks at a time. A thread that waited uses the result of the thread that asked,
        or its failure.

        Raises:
            BridgeError: no broker answered; try again later.
        """
        now = self._ports.clock.monotonic
        began = now()
        with locked(self._asking):
            if are_in(self._partitions, wanted):
                return
            if self._failure is not None and self._failed_at > began:
                raise self._failure
            try:
                topics = topics_with(
                    self._client,
                    self._ports,
                    wanted,
                    patience_s=began + GRACE_S - now(),
                    timeout_s=_ADMIN_TIMEOUT_S,
                )
            except BridgeError as error:
                self._failure, self._failed_at = error, now()
                raise
            # Added to the known topics: a broker that has just started does not report every topic.
            self._partitions = self._partitions | {
                name: seen.partitions
                for name, seen in topics.items()
                if self.knows(name) and not self._names.is_internal(name)
            }

    def _refuse_internal(self, topic: str) -> None:
        if self._names.is_internal(topic):
            raise InvalidMessageError(
                f"topic {topic} is internal and can never be a real topic", field="topic"
            )


def _remedy(config: BridgeConfig) -> str:
    prefix = f" --topic-prefix {config.topic_prefix}" if config.topic_prefix else ""
    return f"run: halfbridge topics create{prefix} --producer-group {config.producer_group}"


def _no_topic(topic: str) -> TopicSetupError:
    text = f"no real topic {topic} (or no right to see it); create it first"
    return TopicSetupError(text, topics=(topic,))
