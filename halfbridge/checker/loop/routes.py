"""The destinations of deliveries: which real topics and partitions can be written, or are refused.

Deliveries to a real topic that is missing or refused, or to a partition that is away, are deferred
(`checker.core.deferred`) until `must_wait` says no. Then they are delivered, or `refusal` says why
they become dead letters. Pure.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from halfbridge.checker.core.deferred import (
    PARTITION_NEW_MS,
    Lack,
    away_ms,
    missing_partition,
    missing_topic,
)
from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.serde.partitioner import Partitioner, partition_by_crc, partition_of
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.core.plan import Delivery
    from halfbridge.kafka.ports import SeenTopic, TopicPartition
    from halfbridge.serde.records import HalfMetadata

# For this time deliveries to a topic without a right wait without a try, if no broker can tell the
# rights. After it the right may be back. A try costs all pairs a failed kafka_txn, so it is rare.
REFUSED_TOPIC_MS = 10_000
# Refused transactions are remembered until their ops apply again after the rebuild. If there are
# more, the oldest applied long ago.
REFUSED_TRANSACTIONS_MAX = 1_000
# After this time a number that is too high may be right again, because the topic may have grown
# since. A client that always sends such numbers makes its pair wait 2 s in 60 s.
PARTITION_DOUBT_MS = 60_000
# A topic that existed a moment ago must be missing for this time before its deliveries are given
# up: a broker that was down may not know the topic, and learns of it within a heartbeat (2 s).
LOST_MS = 3_000
# After records of a partition were not acknowledged, it is not written to for this time, which
# doubles with each further failure up to the maximum. A failure costs all deliveries of the worker
# the time that it takes to notice it (`outlet.STALL_S`).
BLAMED_MS = 5_000
BLAMED_MS_MAX = 60_000
# Why a partition is not written to for now that did not acknowledge records.
TOOK_NOTHING = "took no record in time"
# Most time that one refresh adds to the time that a partition was away: the state between two
# distant refreshes is not known. Refreshes come every 0.5 s meanwhile (topic_watch.MISSING_S).
REFRESH_STEP_MS_MAX = 2_000


class _Blamed(NamedTuple):
    until_ms: int
    pause_ms: int
    why: str
    is_last: bool  # it failed once more after the longest wait


class Routes:
    """The known real topics. Times are monotonic milliseconds.

    `gone_ms` is the longest wait for a missing topic, or, at least AWAY_MS_MIN, for a partition.
    """

    def __init__(
        self,
        gone_ms: int,
        partitioner: Callable[[str], Partitioner] = lambda _: Partitioner.MURMUR2,
    ) -> None:
        self._gone_ms = gone_ms
        self._away_limit_ms = away_ms(gone_ms)
        self._partitioner = partitioner
        self._by_crc: frozenset[str] = frozenset()  # of the topics that exist
        self._partitions: dict[str, int] = {}
        # Topic -> partitions, for topics whose rights were asked for: nothing is left to look up.
        self._tried: dict[str, int] = {}
        self._lost_since: dict[str, int] = {}
        self._too_few_since: dict[str, int] = {}
        self._refused_topics: dict[str, tuple[int, str]] = {}
        self._refused: dict[tuple[str, int], str] = {}
        self._away: dict[str, dict[int, str]] = {}  # topic -> partition -> why
        self._away_ms: dict[TopicPartition, int] = {}  # for how long, by answered look-ups
        self._blamed: dict[TopicPartition, _Blamed] = {}
        self._updated_ms = 0

    def update(
        self,
        topics: Mapping[str, SeenTopic],
        now_ms: int,
        min_in_sync: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """Replace the known topics by those that a look-up has answered."""
        partitions = {name: one.partitions for name, one in topics.items()}
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
        self._partitions = partitions
        by_crc = Partitioner.CONSISTENT_RANDOM
        self._by_crc = frozenset(name for name in partitions if self._partitioner(name) is by_crc)
        self._tried = {name: partitions[name] for name in self._tried if name in partitions}
        self._refused_topics = {
            topic: (until, why)
            for topic, (until, why) in self._refused_topics.items()
            if until > now_ms and topic in partitions
        }
        self._update_away(topics, now_ms, min_in_sync)

    def _update_away(
        self,
        topics: Mapping[str, SeenTopic],
        now_ms: int,
        min_in_sync: Callable[[str], int | None],
    ) -> None:
        step_ms = min(now_ms - self._updated_ms, REFRESH_STEP_MS_MAX)
        self._updated_ms = now_ms
        for topic, numbers in self._away.items():
            for number in numbers:
                self._away_ms[topic, number] = self._away_ms.get((topic, number), 0) + step_ms
        self._blamed = {
            place: self._due_for_last_try(place, blamed, now_ms)
            for place, blamed in self._blamed.items()
            if place[0] in topics and now_ms < blamed.until_ms + blamed.pause_ms
        }
        away = {
            **{place: one.why for place, one in self._blamed.items() if now_ms < one.until_ms},
            **{
                (name, number): why
                for name, topic in topics.items()
                for number, why in topic.unavailable(min_in_sync(name)).items()
            },
        }
        # That of a blamed partition which is tried again is kept: nothing is proven yet.
        known = away.keys() | self._blamed.keys()
        self._away_ms = {place: self._away_ms.get(place, 0) for place in known}
        self._away = {}
        for (topic, number), why in away.items():
            self._away.setdefault(topic, {})[number] = why

    def _due_for_last_try(self, place: TopicPartition, blamed: _Blamed, now_ms: int) -> _Blamed:
        """Return `blamed`, due at once for a last try if its partition was away for too long."""
        if blamed.is_last or self._away_ms.get(place, 0) < self._away_limit_ms:
            return blamed
        return blamed._replace(until_ms=min(blamed.until_ms, now_ms))

    def blame(self, place: TopicPartition, why: str, now_ms: int) -> None:
        """Record why records of a partition were not acknowledged: it is not written to for now."""
        topic, number = place
        if not 0 <= number < self._partitions.get(topic, 0):
            return
        before = self._blamed.get(place)
        pause_ms = BLAMED_MS if before is None else min(2 * before.pause_ms, BLAMED_MS_MAX)
        is_last = self._away_ms.get(place, 0) >= self._away_limit_ms
        self._blamed[place] = _Blamed(now_ms + pause_ms, pause_ms, why, is_last=is_last)
        self._away.setdefault(topic, {}).setdefault(number, why)
        self._away_ms.setdefault(place, 0)

    def was_blamed(self, place: TopicPartition) -> bool:
        """Tell whether a partition acknowledged nothing a while ago."""
        return place in self._blamed

    def is_trying(self, now_ms: int) -> bool:
        """Tell whether a partition may be written to that acknowledged nothing a moment ago."""
        return any(one.until_ms <= now_ms for one in self._blamed.values())

    def absence(self, place: TopicPartition) -> str:
        """Return why a partition takes no records, by the last look-up; empty if it does."""
        return self._away.get(place[0], {}).get(place[1], "")

    def away_of(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        """Return the partitions of `topics` that take no records, and why."""
        return {
            (topic, number): why
            for topic in topics
            for number, why in self._away.get(topic, {}).items()
        }

    def is_open(self, topic: str) -> bool:
        """Tell whether a topic exists, and a partition of it takes records."""
        return len(self._away.get(topic, ())) < self._partitions.get(topic, 0)

    def any_partition(self, topic: str, key: bytes | None) -> int:
        """Return a partition that is not away, for any record; PARTITION_BY_KEY: the client's."""
        away = self._away.get(topic)
        if not away or not self.is_open(topic):
            return PARTITION_BY_KEY
        count = self._partitions[topic]
        number = partition_of(key or b"", count)
        there = [each for each in range(count) if each not in away]
        return number if number in there else there[number % len(there)]

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic that exists."""
        return self._partitions[topic]

    def exists(self, topic: str) -> bool:
        """Tell whether the topic existed at the last look-up."""
        return topic in self._partitions

    def takes(self, messages: Iterable[HalfRead]) -> bool:
        """Tell whether topics, partitions and rights of all `messages` are known to be there."""
        tried, away, refused = self._tried, self._away, self._refused_topics
        for half in messages:
            topic = half.metadata.real_topic
            count = tried.get(topic)
            if count is None or half.metadata.real_partition >= count:
                return False
            if topic in away or topic in refused:
                return False
        return True

    def must_wait(self, messages: Iterable[HalfRead], op_age_ms: int, now_ms: int) -> bool:
        """Tell whether the delivery of a transaction's `messages` must wait.

        The longest wait from the append time of the COMMIT (`op_age_ms`) is `gone_ms` for a topic
        that is missing or that this daemon may not write to, and for a partition that is away. It
        is PARTITION_NEW_MS for a partition that the topic does not have, once a minute for each
        topic.
        """
        return any(
            op_age_ms < each.limit_ms or each.left_ms > 0 or each.topic in self._lost_since
            for each in self.lacks(messages, now_ms)
        )

    def lacks(self, messages: Iterable[HalfRead], now_ms: int) -> Iterator[Lack]:
        """Yield why messages cannot be written now, by the last look-up."""
        for half in messages:
            lack = (
                self._missing(half.metadata, now_ms)
                or self._is_refused(half.metadata.real_topic)
                or self._is_away(half)
            )
            if lack is not None:
                yield lack

    def too_few(self, messages: Iterable[HalfRead]) -> set[str]:
        """Return the existing topics without a partition whose number one of `messages` names."""
        named = ((half.metadata.real_topic, half.metadata.real_partition) for half in messages)
        return {topic for topic, number in named if number >= self._partitions.get(topic, inf)}

    def doubt(self, topics: Iterable[str], now_ms: int) -> None:
        """Record when `topics` were first seen to be `too_few`; PARTITION_NEW_MS runs from then."""
        for topic in topics:
            self._too_few_since.setdefault(topic, now_ms)

    def untried(self, topics: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of `topics` that exist and whose rights were not asked for yet."""
        # The smaller side is walked: clients name topics, as many as their half messages.
        return (topics & self._partitions.keys()) - self._tried.keys()

    def tried(self, topics: Iterable[str]) -> None:
        """Record that the rights of `topics` were asked for, whether or not a broker could tell."""
        self._tried.update(
            {name: self._partitions[name] for name in topics if name in self._partitions}
        )

    def refuse(self, delivery: Delivery, why: str) -> None:
        """Remember that the broker permanently refuses a record of this transaction's decision."""
        if len(self._refused) >= REFUSED_TRANSACTIONS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[delivery.transaction_id, delivery.op_offset] = why

    @property
    def refused_topics(self) -> list[str]:
        """Topics that this daemon may not write to: their deliveries wait without a try."""
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
            lack = self._is_refused(topic) or self._is_away(half)
            if lack is not None:
                return str(lack)
        return ""

    def place(self, metadata: HalfMetadata, key: bytes | None) -> int:
        """Return the partition of a message whose topic exists: its own, or by its key.

        PARTITION_BY_KEY if the Kafka client chooses: any partition for a null key, murmur2 for
        another key. While partitions are away, a null key gets one of the others.
        """
        number, topic = metadata.real_partition, metadata.real_topic
        if number != PARTITION_BY_KEY:
            return number
        if key is None and topic in self._away:
            there = [n for n in range(self._partitions[topic]) if n not in self._away[topic]]
            return there[_chance(metadata) % len(there)] if there else number
        if key is None or topic not in self._by_crc:
            return number
        if key:
            return partition_by_crc(key, self._partitions[topic])
        # librdkafka chooses at random for an empty key.
        return _chance(metadata) % self._partitions[topic]

    def _missing(self, metadata: HalfMetadata, now_ms: int) -> Lack | None:
        """Return what is missing of a topic and partition; None if they exist."""
        topic, partition = metadata.real_topic, metadata.real_partition
        count = self._partitions.get(topic)
        if count is None:
            is_possible = len(topic) <= TOPIC_CHARS_MAX
            return missing_topic(topic, self._gone_ms if is_possible else 0)
        if partition < count:
            return None
        since = self._too_few_since.get(topic, now_ms)
        lack = missing_partition(topic, partition)
        return lack if now_ms - since < PARTITION_NEW_MS else lack._replace(limit_ms=0)

    def _is_refused(self, topic: str) -> Lack | None:
        if topic not in self._refused_topics:
            return None
        return Lack(topic, PARTITION_BY_KEY, self._refused_topics[topic][1], self._gone_ms)

    def _is_away(self, half: HalfRead) -> Lack | None:
        """Return why a partition is away. Without a known key, any that is away counts."""
        topic = half.metadata.real_topic
        away = self._away.get(topic)
        if not away:
            return None
        number = half.metadata.real_partition
        body: Any = half.body
        if number == PARTITION_BY_KEY and body is not None:
            key, count = body.key(), self._partitions[topic]
            number = self.place(half.metadata, key)
            if number == PARTITION_BY_KEY and key is not None:
                number = partition_of(key, count)
        if number != PARTITION_BY_KEY and number not in away:
            return None
        number = next(iter(away)) if number == PARTITION_BY_KEY else number
        limit_ms = self._away_limit_ms
        left_ms = limit_ms - self._away_ms.get((topic, number), 0)
        return Lack(topic, number, away[number], limit_ms, left_ms)


def _chance(metadata: HalfMetadata) -> int:
    """Return a number for a message without a key; the id ends with random digits."""
    return crc32(metadata.transaction_id.encode())
