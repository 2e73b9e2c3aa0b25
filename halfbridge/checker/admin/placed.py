"""Where partitions are, which of them take no records now, and the commands that mend it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S
from halfbridge.checker.admin.real_topics import create_command
from halfbridge.checker.core.deferred import AWAY_MS_MIN, MISSING, PARTITION_NEW_MS
from halfbridge.serde.partitioner import partition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfbridge.checker.admin.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """One partition, by the brokers' metadata.

    Attributes:
        leader: Id of the broker that takes its records; None: there is none for now.
        replicas: Ids of the brokers that keep its log.
        in_sync: Those of them that have caught up.
        why: Why it takes no records, as in "has no leader"; empty: it does.
    """

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    why: str

    @property
    def cause(self) -> str:
        """Why it takes no records, with the brokers that could mend it; empty: it does."""
        if not self.why:
            return ""
        behind = [broker for broker in self.replicas if broker not in self.in_sync]
        waited_for = behind if self.leader is not None else self.replicas
        return f"{self.why}: it needs broker {' or '.join(map(str, waited_for))}"


def placed(cluster: Cluster, topics: Iterable[str]) -> dict[str, tuple[PlacedPartition, ...]]:
    """Return where the partitions of topics are; a topic that does not exist is left out.

    Raises:
        AdminError: brokers do not answer; the operator acts.
    """
    wanted = list(topics)
    settings = cluster.describe(wanted)
    known = cluster.seen_topics()
    there = [topic for topic in wanted if topic in settings and topic in known]
    with cluster.errors("reach Kafka"):
        places = cluster.admin.partitions(there, CALL_TIMEOUT_S)
    found = {}
    for topic, partitions in places.items():
        least = settings[topic].settings.get("min.insync.replicas", "")
        away = known[topic].unavailable(int(least) if least.isdecimal() else None)
        found[topic] = tuple(
            PlacedPartition(
                topic=topic,
                partition=number,
                leader=one.leader,
                replicas=one.replicas,
                in_sync=one.in_sync,
                why=away.get(number, ""),
            )
            for number, one in enumerate(partitions)
        )
    return found


class Needed(NamedTuple):
    """Where a message goes.

    Attributes:
        partition: The partition; None: not known, for the key is not known here.
        goes_anywhere: To any partition that takes records, since the message has no key.
    """

    topic: str
    partition: int | None
    goes_anywhere: bool = False


class Lacking(NamedTuple):
    """A real topic or a partition that cannot be written to now.

    Attributes:
        partition: None: the topic is missing.
        why: As in "does not exist", with the brokers that could mend it.
        mend: A command that mends it, or that shows what to mend, without the options for brokers.
    """

    topic: str
    partition: int | None
    why: str
    mend: str

    @property
    def is_away(self) -> bool:
        """Whether it exists, and comes back with its brokers."""
        return self.why != MISSING

    def wait_ms(self, topic_gone_ms: int) -> int:
        """Return how long a delivery waits for it, from the append time of the COMMIT.

        Args:
            topic_gone_ms: The daemon's setting.
        """
        if self.is_away:
            return max(topic_gone_ms, AWAY_MS_MIN)
        return topic_gone_ms if self.partition is None else PARTITION_NEW_MS

    def __str__(self) -> str:
        """Return what is wrong."""
        where = "" if self.partition is None else f"partition {self.partition} of "
        return f"{where}topic {self.topic} {self.why}"


def needed(topic: str, partition: int, count: int, key: bytes | None = b"") -> Needed:
    """Return where a message goes.

    Args:
        topic: The real topic.
        partition: Of the half message; negative: by the key.
        count: Partitions of the topic; 0: the topic does not exist, or the key is not known.
        key: Key of the message.
    """
    if partition >= 0:
        return Needed(topic, partition)
    if key is None:
        return Needed(topic, None, goes_anywhere=True)
    return Needed(topic, partition_of(key, count) if count else None)


def lacks_of(cluster: Cluster, messages: Iterable[Needed]) -> tuple[Lacking, ...]:
    """Return what some messages need and cannot have now, by the brokers' metadata.

    Brokers that answer no writes, and say nothing else, are known to the workers only.

    Raises:
        AdminError: brokers do not answer; the operator acts.
    """
    wanted = dict.fromkeys(messages)
    found = placed(cluster, dict.fromkeys(each.topic for each in wanted))
    lacks = (lack for each in wanted for lack in _lacks(each, found.get(each.topic)))
    return tuple(dict.fromkeys(lacks))


def _lacks(one: Needed, partitions: tuple[PlacedPartition, ...] | None) -> Iterator[Lacking]:
    topic, number = one.topic, one.partition
    if partitions is None:
        yield Lacking(topic, None, MISSING, create_command(topic))
    elif number is not None and number >= len(partitions):
        mend = f"{create_command(topic)} --grow --partitions {number + 1}"
        yield Lacking(topic, number, MISSING, mend)
    elif not one.goes_anywhere or all(each.why for each in partitions):
        for each in partitions:
            if each.why and number in (None, each.partition):
                yield Lacking(topic, each.partition, each.cause, describe_command(topic))


def describe_command(*topics: str) -> str:
    """Return the command that shows where partitions are, without the options for the brokers."""
    return f"halfbridge topics describe {shlex.join(topics)}"
