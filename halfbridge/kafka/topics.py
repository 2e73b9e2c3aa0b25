"""Looks up topics and checks their shapes, for the client and the Spark sink."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import (
    NO_RIGHT,
    BridgeError,
    Code,
    InvalidMessageError,
    KafkaFailure,
    TopicSetupError,
    again,
    bridge_error,
)
from halfbridge.kafka.threads import locked
from halfbridge.serde.topics import MESSAGE_BYTES_MAX, HalfShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import Admin, NewTopic, Ports, SeenTopic, Writer
    from halfbridge.serde.topics import TopicNames

_LOG = logging.getLogger("halfbridge.kafka")
# A new topic is not in every broker's metadata at once (1.3 s seen on a busy broker), and a broker
# that has just started lacks other topics.
GRACE_S = 3.0
_POLL_S = 0.05  # a request of some 2 ms, twenty times a second at most
# One answer may wait for a busy broker or thread; three hardly ever do.
_ROUND_TRIPS = 3
_NOTHING: Mapping[str, int] = {}


def topics_with(
    client: Admin | Writer,
    ports: Ports,
    wanted: Mapping[str, int],
    *,
    patience_s: float,
    timeout_s: float,
) -> dict[str, SeenTopic]:
    """Return the existing topics, once `wanted` (topic -> least partitions) are among them.

    After `patience_s` without them, what exists is returned; 0: look up once. Raises BridgeError:
    no broker answered; try again later.
    """
    now = ports.clock.monotonic
    deadline = now() + patience_s
    while True:
        try:
            topics = client.topics(timeout_s)
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        partitions = {name: seen.partitions for name, seen in topics.items()}
        if are_in(partitions, wanted) or now() >= deadline:
            return topics
        ports.run.pause(_POLL_S)  # metadata spread between brokers without a signal


def are_in(partitions: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Return whether each wanted topic has at least the wanted number of partitions."""
    return all(partitions.get(name, 0) >= least for name, least in wanted.items())


class Topics:
    """The topics of one installation; `remedy` is the command in errors about missing topics."""

    def __init__(
        self, admin: Admin, ports: Ports, names: TopicNames, *, remedy: str, timeout_s: float
    ) -> None:
        self._admin = admin
        self._ports = ports
        self._names = names
        self._remedy = remedy
        self._timeout_s = timeout_s
        self._last: dict[str, SeenTopic] = {}

    def seen(
        self, wanted: Mapping[str, int] = _NOTHING, *, patience_s: float = 0.0
    ) -> dict[str, SeenTopic]:
        """Return the existing topics, as `topics_with`."""
        self._last = topics_with(
            self._admin, self._ports, wanted, patience_s=patience_s, timeout_s=self._timeout_s
        )
        return self._last

    def half_shape(self) -> HalfShape:
        """Check half and op topic, and return the half topic's shape.

        Raises:
            TopicSetupError: a topic is missing, or the two differ; an operator runs the command
                that the text names.
            BridgeError: no broker answered; try again later.
        """
        half, op = self._names.half, self._names.op
        topics = self.seen({half: 1, op: 1}, patience_s=GRACE_S)
        missing = [name for name in (half, op) if name not in topics]
        if missing:
            text = f"no topic {' and no topic '.join(missing)}; {self._remedy}"
            raise TopicSetupError(text, topics=missing)
        partitions, op_partitions = topics[half].partitions, topics[op].partitions
        if partitions != op_partitions:
            raise TopicSetupError(
                f"{half} has {partitions} partitions and {op} has {op_partitions}; they must"
                f" have the same number; {self._remedy} (it names the topic to grow)",
                topics=(half, op),
            )
        return HalfShape(partitions, self._record_bytes_max(half), replicas=topics[half].replicas)

    def settings(self, topic: str) -> dict[str, str]:
        """Return a topic's settings; empty without a right.

        Raises BridgeError: no broker answered; try again later.
        """
        try:
            return self._admin.ask_settings([topic], self._timeout_s)[topic].result()
        except KafkaFailure as failure:
            if failure.code not in NO_RIGHT:
                raise bridge_error(failure) from failure
            _LOG.info("no right to read the settings of %s, defaults taken", topic)
            return {}

    def round_trip_s(self) -> float:
        """Return the quickest of three answers of a broker: its distance, and little of its work.

        Raises BridgeError: no broker answered; try again later.
        """
        now = self._ports.clock.monotonic
        took_s = []
        for _ in range(_ROUND_TRIPS):
            began = now()
            try:
                self._admin.partitions([self._names.half], self._timeout_s)
            except KafkaFailure as failure:
                raise bridge_error(failure) from failure
            took_s.append(now() - began)
        return min(took_s)

    def make_missing(self, wanted: Iterable[NewTopic]) -> None:
        """Create the topics that were missing in the last look-up; return once they appear.

        Raises:
            TopicSetupError: a topic could not be made, or does not appear; an operator acts on the
                text, which says which.
            BridgeError: no broker answered; try again later.
        """
        missing = [one for one in wanted if one.name not in self._last]
        if not missing:
            return
        for name, answer in self._admin.create_topics(missing, self._timeout_s).items():
            try:
                answer.result()
            except KafkaFailure as failure:  # noqa: PERF203  (two topics)
                if failure.code != Code.TOPIC_ALREADY_EXISTS:
                    raise TopicSetupError(
                        f"no topic {name}, and it could not be created ({failure}); {self._remedy}",
                        topics=(name,),
                    ) from failure
        names = dict.fromkeys((one.name for one in missing), 1)
        hidden = names.keys() - self.seen(names, patience_s=self._timeout_s).keys()
        if hidden:
            text = "created, but not in the brokers' metadata; start again"
            raise TopicSetupError(f"{', '.join(sorted(hidden))}: {text}", topics=sorted(hidden))

    def _record_bytes_max(self, topic: str) -> int:
        """Return a topic's max.message.bytes, or Kafka's default if it cannot be read."""
        try:
            return int(self.settings(topic).get("max.message.bytes", MESSAGE_BYTES_MAX))
        except BridgeError as error:
            _LOG.info("max.message.bytes of %s not readable, default taken: %s", topic, error)
            return MESSAGE_BYTES_MAX


class RealTopics:
    """Real topics: which exist, which are bound (empty: all), how many partitions. Thread-safe."""

    def __init__(
        self,
        names: TopicNames,
        client: Admin | Writer,
        ports: Ports,
        *,
        bound: Iterable[str] = (),
        timeout_s: float,
    ) -> None:
        self._names = names
        self._client = client
        self._ports = ports
        self._bound = frozenset(bound)
        self._timeout_s = timeout_s
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

    def check(self, topic: str, partition: int) -> None:
        """Check that a topic and its partition (0 or less: by key) exist and may be sent to.

        Raises:
            InvalidMessageError: topic internal or not bound, or no such partition; the caller
                changes the message.
            TopicSetupError: the topic does not exist; its owner creates it.
        """
        if not self.has_seen(topic, partition):
            self._check_slowly(topic, partition)

    def has_seen(self, topic: str, partition: int) -> bool:
        """Return whether `check` asks no broker."""
        partitions = self._partitions.get(topic)
        return partitions is not None and partition < partitions

    def knows(self, topic: str) -> bool:
        """Tell whether this producer answers checks about `topic`."""
        return not self._bound or topic in self._bound

    def _check_slowly(self, topic: str, partition: int) -> None:
        self._refuse_internal(topic)
        if not self.knows(topic):
            raise InvalidMessageError(
                f"topic {topic} is not bound; add it to topics=[...] of the producer",
                field="topic",
            )
        self._look_up({topic: max(partition, 0) + 1})
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise _no_topic(topic)
        if partition >= partitions:
            raise InvalidMessageError(
                f"topic {topic} has no partition {partition}; it has {partitions}",
                field="partition",
            )

    def _look_up(self, wanted: Mapping[str, int]) -> None:
        """Look up topics until `wanted` exist or patience ends; one thread asks for all others."""
        now = self._ports.clock.monotonic
        began = now()
        with locked(self._asking):
            if are_in(self._partitions, wanted):
                return
            if self._failure is not None and self._failed_at > began:
                raise again(self._failure)
            try:
                topics = topics_with(
                    self._client,
                    self._ports,
                    wanted,
                    patience_s=began + GRACE_S - now(),
                    timeout_s=self._timeout_s,
                )
            except BridgeError as error:
                self._failure, self._failed_at = again(error), now()
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


def _no_topic(topic: str) -> TopicSetupError:
    text = f"no real topic {topic} (or no right to see it); create it first"
    return TopicSetupError(text, topics=(topic,))
