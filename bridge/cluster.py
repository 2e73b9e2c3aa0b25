"""What the client knows of the cluster: topic shapes, looked up at start and on demand."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.bridge.client_settings import admin_properties
from halfbridge.bridge.errors import BridgeError, InvalidMessageError, TopicSetupError
from halfbridge.bridge.failure import Code, KafkaFailure, bridge_error
from halfbridge.bridge.held import held
from halfbridge.bridge.ports import NewTopic
from halfbridge.serde.topic_shapes import (
    CHECK_PARTITIONS,
    MESSAGE_BYTES_MAX,
    HalfShape,
    check_topic_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.bridge.message import Message
    from halfbridge.bridge.ports import Admin, Ports, SeenTopic, Writer

_LOG = logging.getLogger("halfbridge.kafka")
_ADMIN_TIMEOUT_S = 10.0
_VISIBLE_WAIT_S = 10.0
# A topic made a moment ago is not in every broker's metadata yet (1.3 s seen on a busy one), and
# a broker that has just started lacks others.
_GRACE_S = 3.0
_LOOK_AGAIN_S = 0.05


def check_installation(config: BridgeConfig, ports: Ports) -> HalfShape:
    """Return the half topic's shape once half, op and check topics are as they must be.

    Creates the group's check topic where it is missing and that is permitted.

    Raises:
        TopicSetupError: an operator runs the command in its text.
        BridgeError: the brokers do not answer.
    """
    admin = ports.kafka.admin(admin_properties(config, ports.clock))
    half, op = config.names.half, config.names.op
    topics = _topics_with(admin, ports, {half: 1, op: 1}, patience_s=_GRACE_S)
    missing = [name for name in (half, op) if name not in topics]
    if missing:
        raise TopicSetupError(f"no topic {' and no topic '.join(missing)}; {_remedy(config)}")
    partitions, op_partitions = topics[half].partitions, topics[op].partitions
    if partitions != op_partitions:
        raise TopicSetupError(
            f"{half} has {partitions} partitions and {op} has {op_partitions}; they must "
            f"have the same number; {_remedy(config)} (it names the topic to grow)"
        )
    shape = HalfShape(partitions, _message_bytes_max(admin, half), replicas=topics[half].replicas)
    if config.names.check(config.producer_group) not in topics:
        _create_check_topic(config, admin, ports, shape)
    return shape


class RealTopics:
    """Real topics: which exist, which are bound, how many partitions. Thread-safe.

    Args:
        config: The producer's.
        client: Asks for topics.
        ports: Its clock, and its wakers.
        bound: Topics that the producer is bound to; none: it may send to any.
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
        """Look the bound topics up, before anything is sent.

        Raises:
            InvalidMessageError: one is internal.
            TopicSetupError: one does not exist; whoever owns it creates it.
        """
        for topic in self._bound:
            self._refuse_internal(topic)
        self._look_up(dict.fromkeys(self._bound, 1))
        for topic in sorted(self._bound - self._partitions.keys()):
            raise _no_topic(topic)

    def check(self, message: Message) -> None:
        """Check that `message` has somewhere to go.

        Raises:
            InvalidMessageError: topic internal or not bound, or no such partition.
            TopicSetupError: the topic does not exist.
        """
        partitions = self._partitions.get(message.topic)
        if partitions is None or (message.partition or 0) >= partitions:
            self._check_slowly(message)

    def knows(self, topic: str) -> bool:
        """Tell whether checks about `topic` are this producer's to answer."""
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
        """Look topics up, until `wanted` are there with so many partitions or patience is over.

        What another thread has found while this one waited for it, or that it failed, is enough.

        Raises:
            BridgeError: no broker answered.
        """
        now = self._ports.clock.monotonic
        began = now()
        with held(self._asking):
            if _are_in(self._partitions, wanted):
                return
            if self._failure is not None and self._failed_at > began:
                raise self._failure
            try:
                topics = _topics_with(
                    self._client, self._ports, wanted, patience_s=began + _GRACE_S - now()
                )
            except BridgeError as error:
                self._failure, self._failed_at = error, now()
                raise
            # Beside what is known: a broker that has just started does not tell of every topic.
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


def _message_bytes_max(admin: Admin, topic: str) -> int:
    """Return a topic's max.message.bytes; Kafka's default where it may not be read."""
    try:
        settings = admin.ask_settings([topic], _ADMIN_TIMEOUT_S)[topic].result()
        return int(settings["max.message.bytes"])
    except (KafkaFailure, KeyError, ValueError) as error:
        _LOG.info("max.message.bytes of %s not readable, default taken: %r", topic, error)
        return MESSAGE_BYTES_MAX


def _create_check_topic(config: BridgeConfig, admin: Admin, ports: Ports, half: HalfShape) -> None:
    topic = config.names.check(config.producer_group)
    new = NewTopic(topic, CHECK_PARTITIONS, half.replicas, check_topic_settings(half))
    try:
        admin.create_topics([new], _ADMIN_TIMEOUT_S)[topic].result()
    except KafkaFailure as failure:
        if failure.code != Code.TOPIC_ALREADY_EXISTS:
            raise TopicSetupError(
                f"no topic {topic}, and it could not be created ({failure}); {_remedy(config)}"
            ) from failure
    if topic not in _topics_with(admin, ports, {topic: 1}, patience_s=_VISIBLE_WAIT_S):
        raise TopicSetupError(f"topic {topic} was created but does not appear; start again")


def _topics_with(
    client: Admin | Writer, ports: Ports, wanted: Mapping[str, int], *, patience_s: float
) -> dict[str, SeenTopic]:
    """Return the topics there are, once `wanted` are among them or patience is over.

    Args:
        client: Asks for them.
        ports: The clock, and who waits.
        wanted: Topic to its least number of partitions.
        patience_s: How long to look again; 0 or less: once.

    Raises:
        BridgeError: no broker answered.
    """
    now = ports.clock.monotonic
    deadline = now() + patience_s
    while True:
        try:
            topics = client.topics(_ADMIN_TIMEOUT_S)
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        partitions = {name: seen.partitions for name, seen in topics.items()}
        if _are_in(partitions, wanted) or now() > deadline:
            return topics
        ports.run.pause(_LOOK_AGAIN_S)  # metadata spreads between brokers without a signal


def _are_in(partitions: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    return all(partitions.get(name, 0) >= least for name, least in wanted.items())


def _remedy(config: BridgeConfig) -> str:
    prefix = f" --topic-prefix {config.topic_prefix}" if config.topic_prefix else ""
    return f"run: halfbridge topics create{prefix} --producer-group {config.producer_group}"


def _no_topic(topic: str) -> TopicSetupError:
    return TopicSetupError(f"no real topic {topic} (or no right to see it); create it first")
