"""Finds real topics that are missing, have too few partitions, or have a wrong setting."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import REACH_TIMEOUT_S
from halfbridge.checker.admin.shape import (
    Problem,
    Rule,
    SeenTopic,
    TopicShape,
    Wanted,
    setting_problems,
)
from halfbridge.checker.admin.words import counted
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.serde.topic_shapes import MESSAGE_RESERVE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.serde.records import HalfMetadata
    from halfbridge.serde.topics import TopicNames


def create_command(topic: str, bootstrap_servers: str = "", prefix: str = "") -> str:
    """Return the command that creates a real topic, with options for what is given."""
    servers = f" --bootstrap-servers {bootstrap_servers}" if bootstrap_servers else ""
    option = f" --topic-prefix {prefix}" if prefix else ""
    return f"halfbridge topics create {shlex.quote(topic)} --type transaction{servers}{option}"


class RealTopics:
    """The real topics of a cluster, as the brokers describe them at the first question.

    Args:
        cluster: Where they are.
        names: Of the installation.
    """

    def __init__(self, cluster: Cluster, names: TopicNames) -> None:
        self._cluster, self._names = cluster, names
        # Topic -> its number of partitions; None: not known, for this client may not see the topic.
        self._partitions: dict[str, int | None] = {}

    def objection(self, messages: Iterable[HalfMetadata]) -> str:
        """Return why a message cannot be delivered to its topic; empty if nothing is known.

        Raises:
            AdminError: The brokers do not answer.
        """
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
