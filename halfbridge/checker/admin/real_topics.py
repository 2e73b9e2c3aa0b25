"""Finds why real topics take no messages: missing topics, wrong settings, lost partitions.

Two settings of half and op topic make their records unreliable (`cleanup.policy`,
`message.timestamp.type`): the daemon stops a pair for them. Other wrong settings are only reported.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S, REACH_TIMEOUT_S
from halfbridge.checker.admin.shape import (
    Layout,
    Problem,
    Rule,
    SeenTopic,
    TopicShape,
    Wanted,
    find_problems,
    setting_problems,
    wanted_topics,
)
from halfbridge.checker.admin.words import counted
from halfbridge.checker.core.deferred import Lack, away_ms, missing_partition, missing_topic
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import PARTITION_BY_KEY
from halfbridge.serde.topics import MESSAGE_BYTES_MAX, MESSAGE_RESERVE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.serde.records import HalfMetadata
    from halfbridge.serde.topics import TopicNames


def create_command(topic: str, bootstrap_servers: str = "", prefix: str = "") -> str:
    """Return the command that creates a real topic."""
    servers = f" --bootstrap-servers {bootstrap_servers}" if bootstrap_servers else ""
    option = f" --topic-prefix {prefix}" if prefix else ""
    return f"halfbridge topics create {shlex.quote(topic)} --type transaction{servers}{option}"


class RealTopics:
    """The real topics of a cluster, as the brokers describe them at the first question."""

    def __init__(self, cluster: Cluster, names: TopicNames) -> None:
        self._cluster, self._names = cluster, names
        # Topic -> its number of partitions; None: not known, for this client may not see the topic.
        self._partitions: dict[str, int | None] = {}

    def objection(self, messages: Iterable[HalfMetadata]) -> str:
        """Return why a message cannot be delivered to its topic; empty if nothing is known."""
        for each in messages:
            count = self._count(each.real_topic)
            if count == 0:
                create = create_command(
                    each.real_topic, self._cluster.bootstrap_servers, self._names.prefix
                )
                return f"topic {each.real_topic} is missing: run {create}"
            if count is not None and each.real_partition >= count:
                return (
                    f"message {each.message_index} is for partition {each.real_partition} of topic"
                    f" {each.real_topic}, which has {counted(count, 'partition')}: add partitions,"
                    " or give the message another one by --with FILE"
                )
        return ""

    def _count(self, topic: str) -> int | None:
        if topic not in self._partitions:
            self._partitions[topic] = self._cluster.partition_count(topic) or (
                0 if self._is_missing(topic) else None
            )
        return self._partitions[topic]

    def _is_missing(self, topic: str) -> bool:
        """Ask for the topic by name: a list leaves out what this client may not see."""
        with self._cluster.errors("reach Kafka"), self._cluster.reader() as reader:
            error = reader.topic_failure(topic, REACH_TIMEOUT_S)
        return error is not None and failure_of(error).code == Code.UNKNOWN_TOPIC_OR_PART


def real_topic_problems(
    seen: Mapping[str, SeenTopic],
    real_topics: Iterable[str],
    *,
    names: TopicNames,
    bootstrap_servers: str,
) -> list[Problem]:
    """Return which real topics take less than the half topic: advice, for it may be meant so.

    A message that only the half topic takes is committed and becomes a dead letter, UNDELIVERABLE.
    """
    half = seen.get(names.half)
    half_bytes = "" if half is None else half.settings.get("max.message.bytes", "")
    if not half_bytes.isdecimal():
        return []
    most = str(int(half_bytes) - MESSAGE_RESERVE_BYTES)
    wanted = (Wanted("max.message.bytes", most, Rule.AT_LEAST, blocking=False),)
    return [
        problem
        for topic in real_topics
        if topic in seen and seen[topic].settings.get("max.message.bytes")
        for problem in setting_problems(
            TopicShape(topic, 1, wanted), seen[topic], bootstrap_servers=bootstrap_servers
        )
    ]


MAX_BYTES = "max.message.bytes"
MIN_IN_SYNC = "min.insync.replicas"
TIMESTAMP_TYPE = "message.timestamp.type"
CLEANUP_POLICY = "cleanup.policy"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
CHECKED_SETTINGS = frozenset(
    (MAX_BYTES, MIN_IN_SYNC, TIMESTAMP_TYPE, CLEANUP_POLICY, RETENTION_MS, RETENTION_BYTES)
)
# Half messages must outlive their decisions (docs/incidents/retention-ends.md): by as long again,
# for a daemon that was stopped, and for operators who must notice.
RETENTION_AGES = 2
# Most problems that a text names, each with its fix; `topics check` shows all.
SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Flaws:
    """Faults of topic settings."""

    stopping: tuple[Problem, ...] = ()  # settings that no pair may be served with
    alarms: tuple[Problem, ...] = ()  # settings by which something may be lost or fail later on
    advice: tuple[Problem, ...] = ()  # what may be meant as it is


def find_flaws(
    names: TopicNames,
    known: Mapping[str, Mapping[str, str]],
    *,
    transaction_age_ms_max: int,
    bootstrap_servers: str,
) -> Flaws:
    """Return the faults of `known`: topic -> its settings, where an unreadable setting is empty."""
    seen = {topic: SeenTopic(1, 1, settings) for topic, settings in known.items()}
    half_bytes = number(known.get(names.half, {}).get(MAX_BYTES, ""))
    layout = Layout(
        partitions=1,
        replication_factor=1,
        producer_groups=tuple(names.groups_of(known)),
        max_message_bytes=max(MESSAGE_BYTES_MAX, half_bytes or 0),
        retention_ms=RETENTION_AGES * transaction_age_ms_max,
    )
    shapes = []
    for shape in wanted_topics(names, layout):
        settings = known.get(shape.name)
        if settings is not None:
            asked = tuple(wanted for wanted in shape.settings if settings.get(wanted.key))
            shapes.append(replace(shape, settings=asked))
    found = find_problems(shapes, seen, names=names, bootstrap_servers=bootstrap_servers)
    real = [topic for topic in seen if not names.is_internal(topic)]
    small = real_topic_problems(seen, real, names=names, bootstrap_servers=bootstrap_servers)
    stopping = [each for each in found if _stops(each, names, known)]
    alarms = [each for each in found if each.blocking and each not in stopping]
    return Flaws(tuple(stopping), tuple(alarms), tuple(small))


def problems_text(problems: tuple[Problem, ...]) -> str:
    """Return problems in words, each with the command that fixes it; empty without any."""
    texts = [f"{each.subject}: {each.what}; fix: {each.fix}" for each in problems[:SHOWN_MAX]]
    if len(problems) > SHOWN_MAX:
        texts.append(f"and {len(problems) - SHOWN_MAX} more: see `halfbridge topics check`")
    return "; ".join(texts)


def number(value: str) -> int | None:
    """Return the number that a setting is; None when it is none."""
    try:
        return int(value)
    except ValueError:
        return None


def _stops(problem: Problem, names: TopicNames, known: Mapping[str, Mapping[str, str]]) -> bool:
    if problem.subject not in (names.half, names.op):
        return False
    if problem.setting == CLEANUP_POLICY:
        return "compact" in known[problem.subject][CLEANUP_POLICY]
    return problem.setting == TIMESTAMP_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """One partition, by the brokers' metadata."""

    topic: str
    partition: int
    leader: int | None  # id of the broker that takes its records; None: there is none for now
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]  # replicas that have caught up
    why: str  # why it takes no records, as in "has no leader"; empty: it does

    @property
    def cause(self) -> str:
        """Why it takes no records, with the brokers that could fix it; empty: it does."""
        if not self.why:
            return ""
        behind = [broker for broker in self.replicas if broker not in self.in_sync]
        waited_for = behind if self.leader is not None else self.replicas
        return f"{self.why}: it needs broker {' or '.join(map(str, waited_for))}"


def placed(cluster: Cluster, topics: Iterable[str]) -> dict[str, tuple[PlacedPartition, ...]]:
    """Return where the partitions of topics are; a topic that does not exist is left out."""
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


class Destination(NamedTuple):
    """Where a message goes."""

    topic: str
    partition: int | None  # the partition; None: not known, for the key is not known here
    goes_anywhere: bool = False  # to any partition that takes records, since the message has no key


def needed(topic: str, partition: int, count: int, key: bytes | None = b"") -> Destination:
    """Return where a message goes; a `count` of 0: no such topic, or the key is not known."""
    if partition >= 0:
        return Destination(topic, partition)
    if key is None:
        return Destination(topic, None, goes_anywhere=True)
    return Destination(topic, partition_of(key, count) if count else None)


def lacks_of(cluster: Cluster, messages: Iterable[Destination], gone_ms: int) -> tuple[Lack, ...]:
    """Return what some messages need and cannot have now, by the brokers' metadata.

    Only the workers know of brokers that answer no writes and report nothing else.
    """
    wanted = dict.fromkeys(messages)
    found = placed(cluster, dict.fromkeys(each.topic for each in wanted))
    lacks = (lack for each in wanted for lack in _lacks(each, found.get(each.topic), gone_ms))
    return tuple(dict.fromkeys(lacks))


def _lacks(
    one: Destination, partitions: tuple[PlacedPartition, ...] | None, gone_ms: int
) -> Iterator[Lack]:
    topic, number = one.topic, one.partition
    if partitions is None:
        yield missing_topic(topic, gone_ms)
    elif number is not None and number >= len(partitions):
        yield missing_partition(topic, number)
    elif not one.goes_anywhere or all(each.why for each in partitions):
        for each in partitions:
            if each.why and number in (None, each.partition):
                yield Lack(topic, each.partition, each.cause, away_ms(gone_ms))


def fix_command(lack: Lack) -> str:
    """Return the command that fixes a lack or shows its cause, without options for the brokers."""
    if lack.is_away:
        return describe_command(lack.topic)
    create = create_command(lack.topic)
    if lack.partition == PARTITION_BY_KEY:
        return create
    return f"{create} --grow --partitions {lack.partition + 1}"


def describe_command(*topics: str) -> str:
    """Return the command that shows where partitions are, without the options for the brokers."""
    return f"halfbridge topics describe {shlex.join(topics)}"
