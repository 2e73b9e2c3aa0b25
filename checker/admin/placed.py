"""Where partitions are, which of them take no records now, and the commands that mend it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import CALL_TIMEOUT_S, REACH_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    with cluster.errors("reach Kafka"):
        known = cluster.admin.topics(REACH_TIMEOUT_S)
        places = {
            topic: cluster.admin.partitions(topic, CALL_TIMEOUT_S)
            for topic in wanted
            if topic in settings and topic in known
        }
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


def create_command(topic: str) -> str:
    """Return the command that makes a real topic, without the options that name the brokers."""
    return f"halfbridge topics create {shlex.quote(topic)} --type transaction"


def describe_command(*topics: str) -> str:
    """Return the command that shows where partitions are, without the options for the brokers."""
    return f"halfbridge topics describe {shlex.join(topics)}"
