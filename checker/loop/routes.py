"""Where deliveries can go: which real topics exist, and what the broker refuses for good. Pure."""

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

# A right that was taken away may come back: so long, deliveries to that topic are dead-lettered
# without trying each, where no broker can tell what rights there are.
REFUSED_TOPIC_MS = 10_000
# Refused transactions stay known until they are decided again after the rebuild; more than that
# at once means that the oldest were decided long ago.
REFUSED_TRANSACTIONS_MAX = 1_000
# A partition may be newer than what is known of its topic, and brokers learn of it one after the
# other: so long, a number that is too high is not called wrong.
PARTITION_NEW_MS = 2_000
# After so long a number that is too high is doubted anew: the topic may have grown in between. One
# that names such numbers for good makes its pair wait 2 s of 60.
PARTITION_DOUBT_MS = 60_000
# A topic that was there a moment ago is missed for so long before anything is concluded from it:
# the broker that was asked may have been away, and learns within a heartbeat (2 s).
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
    """What is known of the real topics. Times are monotonic milliseconds.

    Args:
        gone_ms: How long a missing topic is worth waiting for.
        partitioner: Real topic -> how its keys are placed.
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
        # Of topics that may be written to, as far as is known, or that are refused: nothing else
        # has to be looked into.
        self._tried: dict[str, int] = {}
        self._lost_since: dict[str, int] = {}
        self._too_few_since: dict[str, int] = {}
        self._refused_topics: dict[str, tuple[int, str]] = {}
        self._refused: dict[tuple[str, int], str] = {}

    def update(self, partitions: Mapping[str, int], now_ms: int) -> None:
        """Take the cluster's topics and their partition counts."""
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
        """Return how many partitions a topic that exists has."""
        return self._partitions[topic]

    def exists(self, topic: str) -> bool:
        """Tell whether the topic was there when last looked."""
        return topic in self._partitions

    def is_clear(self, deliveries: Iterable[Delivery]) -> bool:
        """Tell whether all of `deliveries` go where there is nothing to look into."""
        tried = self._tried
        for one in deliveries:
            for half in one.messages:
                count = tried.get(half.metadata.real_topic)
                if count is None or half.metadata.real_partition >= count:
                    return False
        return True

    def lacks(self, deliveries: Iterable[Delivery], now_ms: int) -> list[Lack]:
        """Return which of `deliveries` go where nothing was when last looked.

        With how long that is worth waiting for: for a missing topic, `gone_ms`; for a partition
        that the topic may have got since it was looked up, PARTITION_NEW_MS, once a minute and
        topic.
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
        """Tell whether one goes to a topic that was there a moment ago.

        It was deleted, which nobody does to hold others up; or the broker that was asked does not
        know it, having been away.
        """
        lost = self._lost_since
        return bool(lost) and any(
            half.metadata.real_topic in lost for one in deliveries for half in one.messages
        )

    def untried(self, deliveries: Iterable[Delivery]) -> set[str]:
        """Return topics that exist, of which it is not known whether they may be written to."""
        named = {half.metadata.real_topic for one in deliveries for half in one.messages}
        return {topic for topic in named if topic in self._partitions and topic not in self._tried}

    def tried(self, topics: Iterable[str]) -> None:
        """Take that it is known of `topics`, or that nobody can tell and a try must."""
        self._tried.update(
            {name: self._partitions[name] for name in topics if name in self._partitions}
        )

    def refuse(self, delivery: Delivery, why: str) -> None:
        """Remember that the broker refuses a record of this transaction for good.

        By the op that decided it as well: another group may have a transaction of that id.
        """
        if len(self._refused) >= REFUSED_TRANSACTIONS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[delivery.transaction_id, delivery.op_offset] = why

    @property
    def refused_topics(self) -> list[str]:
        """Topics to which deliveries are dead-lettered without a try at present."""
        return list(self._refused_topics)

    def refuse_topic(self, topic: str, why: str, now_ms: int) -> None:
        """Remember for a while that this daemon may not write to `topic`."""
        self._refused_topics[topic] = (now_ms + REFUSED_TOPIC_MS, why)

    def allow_topic(self, topic: str) -> None:
        """Take that this daemon may write to `topic` again."""
        self._refused_topics.pop(topic, None)

    def refusal(self, delivery: Delivery) -> str:
        """Return why `delivery` cannot be written; empty when nothing is known against it."""
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
        """Return the partition of a message whose topic exists: the one it names, or its key's.

        PARTITION_BY_KEY where the Kafka client chooses: a null key goes anywhere, any other one
        where murmur2 puts it.
        """
        number, topic = metadata.real_partition, metadata.real_topic
        if number != PARTITION_BY_KEY or key is None or topic not in self._by_crc:
            return number
        if key:
            return partition_by_crc(key, self._partitions[topic])
        # librdkafka draws lots; the id ends with random digits.
        return crc32(metadata.transaction_id.encode()) % self._partitions[topic]

    def _limit_ms(self, topic: str, partition: int, now_ms: int) -> int | None:
        """Return how long a real topic is worth waiting for; None where it is there."""
        count = self._partitions.get(topic)
        if count is None and len(topic) > TOPIC_CHARS_MAX:
            return 0  # there can be no such topic
        if count is None:
            return self._gone_ms
        if partition < count:
            return None
        since = self._too_few_since.setdefault(topic, now_ms)
        return PARTITION_NEW_MS if now_ms - since < PARTITION_NEW_MS else 0
