"""Where deliveries can go: which real topics exist, and what the broker refuses for good. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checker.core.plan import Delivery

# A right that was taken away may come back: so long, deliveries to that topic are dead-lettered
# without trying each.
REFUSED_TOPIC_MS = 10_000
# Refused transactions stay known until they are decided again after the rebuild; more than that
# at once means that the oldest were decided long ago.
REFUSED_TRANSACTIONS_MAX = 10_000
# A partition may be newer than what is known of its topic, and brokers learn of it one after the
# other: so long, a number that is too high is not called wrong.
PARTITION_NEW_MS = 2_000
# After so long a number that is too high is doubted anew: the topic may have grown in between. One
# that names such numbers for good makes its pair wait 2 s of 60.
PARTITION_DOUBT_MS = 60_000
# Names come from half messages: more missing topics are not waited for.
MISSING_TOPICS_MAX = 10_000


class Routes:
    """What is known of the real topics. Times are monotonic milliseconds.

    Args:
        gone_ms: A topic missing for so long is given up.
    """

    def __init__(self, gone_ms: int) -> None:
        self._gone_ms = gone_ms
        self._partitions: dict[str, int] = {}
        self._missing_since: dict[str, int] = {}
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
        self._partitions = dict(partitions)
        self._missing_since = {
            topic: since for topic, since in self._missing_since.items() if topic not in partitions
        }
        self._refused_topics = {
            topic: (until, why)
            for topic, (until, why) in self._refused_topics.items()
            if until > now_ms
        }

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic that exists has."""
        return self._partitions[topic]

    def exists(self, topic: str) -> bool:
        """Tell whether the topic was there when last looked."""
        return topic in self._partitions

    def lacks(self, deliveries: Iterable[Delivery]) -> bool:
        """Tell whether `deliveries` go where nothing was when last looked."""
        known = self._partitions
        for one in deliveries:
            for half in one.messages:
                count = known.get(half.metadata.real_topic)
                if count is None or half.metadata.real_partition >= count:
                    return True
        return False

    def awaited(self, deliveries: Iterable[Delivery], now_ms: int) -> list[str]:
        """Return the topics for which `deliveries` must still wait.

        They are missing, or lack a partition that they may have got since they were looked up.
        """
        highest: dict[str, int] = {}
        for one in deliveries:
            for half in one.messages:
                topic, number = half.metadata.real_topic, half.metadata.real_partition
                highest[topic] = max(number, highest.get(topic, PARTITION_BY_KEY))
        return [topic for topic in sorted(highest) if self._waits(topic, highest[topic], now_ms)]

    def refuse(self, delivery: Delivery, why: str) -> None:
        """Remember that the broker refuses a record of this transaction for good.

        By the op that decided it as well: another group may have a transaction of that id.
        """
        if len(self._refused) >= REFUSED_TRANSACTIONS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[delivery.transaction_id, delivery.op_offset] = why

    @property
    def has_refused_topics(self) -> bool:
        """Whether deliveries to some topic are dead-lettered without a try at present."""
        return bool(self._refused_topics)

    def refuse_topic(self, topic: str, why: str, now_ms: int) -> None:
        """Remember for a while that this daemon may not write to `topic`."""
        self._refused_topics[topic] = (now_ms + REFUSED_TOPIC_MS, why)

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

    def _waits(self, topic: str, partition: int, now_ms: int) -> bool:
        count = self._partitions.get(topic)
        if count is None:
            return now_ms - self._missing(topic, now_ms) < self._gone_ms
        if partition < count:
            return False
        return now_ms - self._too_few_since.setdefault(topic, now_ms) < PARTITION_NEW_MS

    def _missing(self, topic: str, now_ms: int) -> int:
        """Return since when it is missed; where too many are, since too long ago to wait."""
        known = self._missing_since
        if topic not in known and len(known) >= MISSING_TOPICS_MAX:
            oldest = next(iter(known))
            if now_ms - known[oldest] < self._gone_ms:
                return now_ms - self._gone_ms
            del known[oldest]
        return known.setdefault(topic, now_ms)
