"""Where deliveries can go: which real topics exist, and what brokers refuse. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.serde.partitioner import Partitioner, partition_by_crc
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.checker.core.plan import Delivery
    from halfbridge.serde.records import HalfMetadata

# For this time deliveries to a topic without a right are dead-lettered without a try, if no broker
# can tell the rights. After it the right may be back.
REFUSED_TOPIC_MS = 10_000
# Refused transactions are remembered until their ops apply again after the rebuild. If there are
# more, the oldest applied long ago.
REFUSED_TRANSACTIONS_MAX = 1_000
# For this time a partition number that is too high may be right: the topic may have grown since it
# was looked up, and brokers learn of new partitions one after the other.
PARTITION_NEW_MS = 2_000
# After this time a number that is too high may be right again, because the topic may have grown
# since. A client that always sends such numbers makes its pair wait 2 s in 60 s.
PARTITION_DOUBT_MS = 60_000
# A topic that existed a moment ago must be missing for this time before its deliveries are given
# up: a broker that was down may not know the topic, and learns of it within a heartbeat (2 s).
LOST_MS = 3_000


class Lack(NamedTuple):
    """A delivery whose real topic is missing, and how long it is worth waiting for.

    Attributes:
        topics: Those that are missing, or that have too few partitions.
    """

    delivery: Delivery
    limit_ms: int
    topics: frozenset[str] = frozenset()


class Routes:
    """The known real topics. Times are monotonic milliseconds.

    Args:
        gone_ms: The longest wait for a missing topic.
        partitioner: Real topic -> partitioner.
    """

    def __init__(
        self,
        gone_ms: int,
        partitioner: Callable[[str], Partitioner] = lambda _: Partitioner.MURMUR2,
    ) -> None:
        self._gone_ms = gone_ms
        self._partitioner = partitioner
        self._by_crc: frozenset[str] = frozenset()  # of the topics that exist
        self._partitions: dict[str, int] = {}
        # Topic -> partitions, for topics whose rights were asked for: nothing is left to look up.
        self._tried: dict[str, int] = {}
        self._lost_since: dict[str, int] = {}
        self._too_few_since: dict[str, int] = {}
        self._refused_topics: dict[str, tuple[int, str]] = {}
        self._refused: dict[tuple[str, int], str] = {}

    def update(self, partitions: Mapping[str, int], now_ms: int) -> None:
        """Replace the known topics by the cluster's topics and their partition counts."""
        grown = {name for name, count in partitions.items() if count != self._partitions.get(name)}
        self._too_few_since = {
            topic: since
            for topic, since in self._too_few_since.items()
            if topic in partitions and topic not in grown and now_ms - since < PARTITION_DOUBT_MS
        }
        lost = dict.fromkeys(self._partitions.keys() - partitions.keys(), now_ms)
        self._lost_since = {
            topic: since
            for topic, since in {**lost, **self._lost_since}.items()
            if topic not in partitions and now_ms - since < LOST_MS
        }
        self._partitions = dict(partitions)
        by_crc = Partitioner.CONSISTENT_RANDOM
        self._by_crc = frozenset(name for name in partitions if self._partitioner(name) is by_crc)
        self._tried = {name: partitions[name] for name in self._tried if name in partitions}
        self._refused_topics = {
            topic: (until, why)
            for topic, (until, why) in self._refused_topics.items()
            if until > now_ms and topic in partitions
        }

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic that exists."""
        return self._partitions[topic]

    def exists(self, topic: str) -> bool:
        """Tell whether the topic existed at the last look-up."""
        return topic in self._partitions

    def is_clear(self, deliveries: Iterable[Delivery]) -> bool:
        """Tell whether topics, partitions and rights of all `deliveries` are known to be there."""
        tried = self._tried
        for one in deliveries:
            for half in one.messages:
                count = tried.get(half.metadata.real_topic)
                if count is None or half.metadata.real_partition >= count:
                    return False
        return True

    def lacks(self, deliveries: Iterable[Delivery], now_ms: int) -> list[Lack]:
        """Return the deliveries whose topic or partition was missing at the last look-up.

        The longest wait is `gone_ms` for a missing topic. It is PARTITION_NEW_MS for a missing
        partition, once a minute for each topic.
        """
        found = []
        for one in deliveries:
            lacking: dict[str, int] = {}
            for half in one.messages:
                topic, number = half.metadata.real_topic, half.metadata.real_partition
                limit_ms = self._limit_ms(topic, number, now_ms)
                if limit_ms is not None:
                    lacking[topic] = max(limit_ms, lacking.get(topic, 0))
            if lacking:
                found.append(Lack(one, max(lacking.values()), frozenset(lacking)))
        return found

    def was_lost(self, deliveries: Iterable[Delivery]) -> bool:
        """Tell whether a delivery goes to a topic that existed less than LOST_MS ago.

        Either the topic was deleted, or the broker that was asked was down and does not know it
        yet. Nobody deletes topics to delay others, so budgets of waiting do not pay for this wait.
        """
        lost = self._lost_since
        return bool(lost) and any(
            half.metadata.real_topic in lost for one in deliveries for half in one.messages
        )

    def untried(self, deliveries: Iterable[Delivery]) -> set[str]:
        """Return the existing topics of `deliveries` whose rights were not asked for yet."""
        named = {half.metadata.real_topic for one in deliveries for half in one.messages}
        return {topic for topic in named if topic in self._partitions and topic not in self._tried}

    def tried(self, topics: Iterable[str]) -> None:
        """Record that the rights of `topics` were asked for, whether or not a broker could tell."""
        self._tried.update(
            {name: self._partitions[name] for name in topics if name in self._partitions}
        )

    def refuse(self, delivery: Delivery, why: str) -> None:
        """Remember that the broker permanently refuses a record of this transaction.

        The key includes the deciding op's offset, because another group may have a transaction of
        the same id.
        """
        if len(self._refused) >= REFUSED_TRANSACTIONS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[delivery.transaction_id, delivery.op_offset] = why

    @property
    def refused_topics(self) -> list[str]:
        """Topics to which deliveries are dead-lettered without a try."""
        return list(self._refused_topics)

    def refuse_topic(self, topic: str, why: str, now_ms: int) -> None:
        """Remember for a while that this daemon may not write to `topic`."""
        self._refused_topics[topic] = (now_ms + REFUSED_TOPIC_MS, why)

    def allow_topic(self, topic: str) -> None:
        """Record that this daemon may write to `topic` again."""
        self._refused_topics.pop(topic, None)

    def refusal(self, delivery: Delivery) -> str:
        """Return why `delivery` cannot be written; empty if no reason is known."""
        why = self._refused.get((delivery.transaction_id, delivery.op_offset))
        if why is not None:
            return why
        for half in delivery.messages:
            topic, partition = half.metadata.real_topic, half.metadata.real_partition
            count = self._partitions.get(topic)
            if count is None:
                return f"topic {topic} does not exist"
            if not PARTITION_BY_KEY <= partition < count:
                return f"topic {topic} has no partition {partition}"
            if topic in self._refused_topics:
                return self._refused_topics[topic][1]
        return ""

    def place(self, metadata: HalfMetadata, key: bytes | None) -> int:
        """Return the partition of a message whose topic exists: its own, or by its key.

        PARTITION_BY_KEY if the Kafka client chooses: any partition for a null key, murmur2 for
        another key.
        """
        number, topic = metadata.real_partition, metadata.real_topic
        if number != PARTITION_BY_KEY or key is None or topic not in self._by_crc:
            return number
        if key:
            return partition_by_crc(key, self._partitions[topic])
        # librdkafka chooses at random for an empty key; the id ends with random digits.
        return crc32(metadata.transaction_id.encode()) % self._partitions[topic]

    def _limit_ms(self, topic: str, partition: int, now_ms: int) -> int | None:
        """Return the longest wait for a topic and partition; None if they exist."""
        count = self._partitions.get(topic)
        if count is None and len(topic) > TOPIC_CHARS_MAX:
            return 0  # no topic can have such a name
        if count is None:
            return self._gone_ms
        if partition < count:
            return None
        since = self._too_few_since.setdefault(topic, now_ms)
        return PARTITION_NEW_MS if now_ms - since < PARTITION_NEW_MS else 0
