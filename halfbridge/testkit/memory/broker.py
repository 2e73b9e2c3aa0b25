"""The brokers: topics, groups, transactional producers, rights, time-outs and retention.

Every method is one request; clients send them through a `Network`. Nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge, SeenPartition, SeenTopic
from halfbridge.serde.units import NS_PER_MS
from halfbridge.testkit.memory.group import Group, check_metadata
from halfbridge.testkit.memory.log import Topic, check_name, check_settings
from halfbridge.testkit.memory.scheduler import BEGAN_MS
from halfbridge.testkit.memory.transactions import Coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.kafka.ports import NewTopic, TopicPartition
    from halfbridge.testkit.memory.group import Membership, Offsets
    from halfbridge.testkit.memory.log import BatchNumber, Partition, Row
    from halfbridge.testkit.memory.scheduler import Scheduler

# How often a broker searches for records that are too old (log.retention.check.interval.ms).
_RETENTION_CHECK_NS = 300_000 * NS_PER_MS
_NO_SUCH_TOPIC = "Broker: Unknown topic or partition"
BROKERS = 1  # it takes all requests; replicas are only a number
# Operations on a topic, as kafka-acls writes them.
_OPERATIONS = frozenset(("Read", "Write", "Describe", "DescribeConfigs"))


class Broker:
    """A cluster of brokers, as its clients see it.

    Attributes:
        rights: By process name; a process without any may do everything.
        version: Counts changes that a reader may wait for.
        away: Partitions that take neither records nor markers for now -> whether metadata name no
            leader for them.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.topics: dict[str, Topic] = {}
        self._topics_made = 0
        self.groups: dict[str, Group] = {}
        self.rights: dict[str, Rights] = {}
        self.version = 0
        self.away: dict[TopicPartition, bool] = {}
        self.coordinator = Coordinator(self._existing, self.changed, self.away)
        self._retention_checked_ns = 0
        scheduler.on_time.append(self._on_time)
        scheduler.timers.append(self._next_moment)

    @property
    def now_ms(self) -> int:
        """True time, ms since 1970."""
        return BEGAN_MS + self.scheduler.now_ns // NS_PER_MS

    def changed(self) -> None:
        """Wake the readers that wait for a change."""
        self.version += 1

    # --- topics -----------------------------------------------------------------------------

    def create_topic(self, topic: NewTopic) -> None:
        check_name(topic.name)
        if topic.name in self.topics:
            raise KafkaFailure(Code.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if topic.replicas > BROKERS:
            raise KafkaFailure(
                Code.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {topic.replicas} time(s): The target"
                f" replication factor of {topic.replicas} cannot be reached because only"
                f" {BROKERS} broker(s) are registered.",
            )
        check_settings(topic.settings)
        replicas = topic.replicas if topic.replicas > 0 else 1
        made = Topic(topic.name, topic.partitions, replicas, topic.settings)
        self._topics_made += 1
        made.topic_id = f"memory-{self._topics_made}"
        self.topics[topic.name] = made
        self.changed()

    def grow_topic(self, name: str, partitions: int) -> None:
        self.topic(name).grow(partitions)
        self.changed()

    def alter_topic(self, name: str, settings: Mapping[str, str]) -> None:
        topic = self.topic(name)
        check_settings(settings)
        topic.alter(settings)
        self.changed()

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and its committed offsets in all groups."""
        del self.topics[self.topic(name).name]
        for group in self.groups.values():
            for place in [place for place in group.committed if place[0] == name]:
                del group.committed[place]
        self.changed()

    def topic(self, name: str) -> Topic:
        """Return a topic. KafkaFailure: there is none; the caller acts by its code."""
        topic = self.topics.get(name)
        if topic is None:
            check_name(name)
            raise KafkaFailure(Code.UNKNOWN_TOPIC_OR_PART, _NO_SUCH_TOPIC)
        return topic

    def partition(self, place: TopicPartition) -> Partition:
        """Return a partition. KafkaFailure: there is none; the caller acts by its code."""
        partitions = self.topic(place[0]).partitions
        if not 0 <= place[1] < len(partitions):
            raise KafkaFailure(Code.UNKNOWN_TOPIC_OR_PART, _NO_SUCH_TOPIC)
        return partitions[place[1]]

    def seen_topics(self, process: str) -> dict[str, SeenTopic]:
        unseen = self.rights[process].unseen if process in self.rights else ()
        return {
            name: self._seen(topic)
            for name, topic in sorted(self.topics.items())
            if name not in unseen
        }

    def end(self, place: TopicPartition, edge: Edge) -> int:
        partition = self.partition(place)
        if edge is Edge.START:
            return partition.start
        return partition.end if edge is Edge.END else partition.lso

    def delete_records(self, place: TopicPartition, offset: int) -> None:
        self.partition(place).delete_before(offset)
        self.changed()

    def go_away(self, place: TopicPartition, *, is_leaderless: bool) -> None:
        """Make a partition unavailable for records and markers, until `come_back`.

        With `is_leaderless`, metadata name no leader; otherwise requests are not answered.
        """
        self.partition(place)
        self.away[place] = is_leaderless
        self.changed()

    def come_back(self, place: TopicPartition) -> None:
        """Make a partition available again, also for the markers that wait for it."""
        self.away.pop(place, None)
        self.coordinator.mark_at_once()
        self.changed()

    # --- rights -----------------------------------------------------------------------------

    def may_write(self, process: str, topic: str) -> bool:
        rights = self.rights.get(process)
        return rights is None or topic not in rights.unwritten | rights.unseen

    def topic_operations(self, process: str, topic: str) -> frozenset[str]:
        rights = self.rights.get(process)
        unread = rights is not None and topic in rights.unread | rights.unseen
        refused = {"Read"} if unread else set()
        if not self.may_write(process, topic):
            refused.add("Write")
        return _OPERATIONS - refused

    def check_read(self, process: str, topic: str) -> None:
        rights = self.rights.get(process)
        if rights is not None and topic in rights.unread | rights.unseen:
            raise _not_allowed()

    def check_write(self, process: str, topic: str) -> None:
        if not self.may_write(process, topic):
            raise _not_allowed()

    # --- producers --------------------------------------------------------------------------

    def produce(
        self,
        process: str,
        place: TopicPartition,
        rows: Sequence[Row],
        number: BatchNumber | None,
        transactional_id: str = "",
    ) -> int:
        """Store a batch, all of it or none; return the offset of its first record."""
        topic, partition = self.topic(place[0]), self.partition(place)
        self.check_write(process, topic.name)
        if number is not None:
            offset = partition.repeated(number)
            if offset is not None:
                return offset
        topic.check(rows, self.now_ms)
        txn = None
        if transactional_id and number is not None:
            txn = self.coordinator.partition_txn(transactional_id, number.epoch, place)
        offset = partition.append(rows, self.now_ms, is_stamped=topic.is_stamped, txn=txn)
        if number is not None:
            partition.note_batch(number, len(rows), offset)
        self.changed()
        return offset

    def add_partition(
        self, process: str, transactional_id: str, epoch: int, place: TopicPartition
    ) -> None:
        self.partition(place)
        self.check_write(process, place[0])
        self.coordinator.add(transactional_id, epoch, place, "", self.scheduler.now_ns)

    def add_offsets(self, transactional_id: str, epoch: int, group: str) -> None:
        self.coordinator.add(
            transactional_id, epoch, self.group(group), group, self.scheduler.now_ns
        )

    def send_offsets(
        self, transactional_id: str, epoch: int, member: Membership, offsets: Offsets
    ) -> None:
        for place in offsets:
            self.partition(place)
        check_metadata(offsets)
        self.group(member.group).check(member, in_kafka_txn=True)
        self.coordinator.stage(transactional_id, epoch, member.group, offsets)

    # --- groups -----------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """Return a group, created on first use."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self._partition_count, self.changed)
        return group

    def commit_offsets(self, member: Membership, offsets: Offsets) -> None:
        for place in offsets:
            self.partition(place)
        check_metadata(offsets)
        group = self.group(member.group)
        group.check(member, in_kafka_txn=False)
        group.store(group.next_commit(), offsets)

    # --- parts ------------------------------------------------------------------------------

    def _existing(self, place: TopicPartition) -> Partition:
        """Return a partition; an invisible one if its topic was deleted meanwhile."""
        topic = self.topics.get(place[0])
        if topic is not None and place[1] < len(topic.partitions):
            return topic.partitions[place[1]]
        return Topic(place[0], 1, 1, {}).partitions[0]

    def _seen(self, topic: Topic) -> SeenTopic:
        count, replicas = len(topic.partitions), topic.replicas
        away = (number for number in range(count) if self.away.get((topic.name, number)))
        return SeenTopic(count, replicas, frozenset(away), in_sync=(replicas,) * count)

    def places(self, names: Iterable[str]) -> dict[str, tuple[SeenPartition, ...]]:
        found = {}
        for name in names:
            if (topic := self.topics.get(name)) is not None:
                brokers = tuple(range(topic.replicas))
                found[name] = tuple(
                    SeenPartition(None if self.away.get((name, number)) else 0, brokers, brokers)
                    for number in range(len(topic.partitions))
                )
        return found

    def _partition_count(self, topic: str) -> int:
        known = self.topics.get(topic)
        return 0 if known is None else len(known.partitions)

    def _on_time(self) -> None:
        now_ns = self.scheduler.now_ns
        self.coordinator.expire(now_ns)
        for group in self.groups.values():
            group.expire(now_ns)
        if now_ns - self._retention_checked_ns >= _RETENTION_CHECK_NS:
            self._retention_checked_ns = now_ns
            for topic in self.topics.values():
                topic.expire(self.now_ms)

    def _next_moment(self) -> int | None:
        moments = [self.coordinator.next_moment()]
        moments += [group.next_moment() for group in self.groups.values()]
        return min((moment for moment in moments if moment is not None), default=None)


def _not_allowed() -> KafkaFailure:
    return KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED, "Broker: Topic authorization failed")


@dataclass(slots=True)
class Rights:
    """The topics that clients may not read, may not write to, and may not even see."""

    unread: set[str] = field(default_factory=set)
    unwritten: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
