"""Names of topics and consumer groups, and the settings of internal topics. Pure.

`halfbridge topics create` creates all internal topics; a client creates its group's check topic,
and the Spark sink its manifest topic, if that is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.serde.operator_actions import ACTION_BYTES_MAX
from halfbridge.serde.units import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSTEM = "RMQ_SYS_"
_HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
_OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_CHECK = "RMQ_SYS_TRANS_CHECK_"
DEAD_LETTERS = "TRANS_CHECK_MAX_TIME_TOPIC"
_MANIFEST = "RMQ_SYS_TRANS_MANIFEST_TOPIC"
_MANIFEST_GROUP = "halfbridge-manifest-reader"
_RELAY_GROUP = "halfbridge-relay-"
_SETTINGS = "RMQ_SYS_TRANS_SETTINGS_TOPIC"
_AUDIT = "RMQ_SYS_TRANS_AUDIT"
# Consumer group of operators' commands, of every installation; nothing is committed under it.
ADMIN_GROUP = "halfbridge-admin"
_DEAD_LETTERS_ID = "halfbridge-dead-letters"
# Begins the text of a mark in `reading_group`: the pair has a record that ends its readers.
DEADLY = "deadly: "
_DAEMON_GROUP = "CID_RMQ_SYS_TRANS"
# An app's manifests are in partition murmur2(app.id) mod this, for ever: partitions that the
# topic gets later stay empty, so an app is never searched in the wrong one.
MANIFEST_PARTITIONS = 4
# About 70,000 transactions in one manifest, which are 70 million rows when they are full.
MANIFEST_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of one installation; several share a cluster by different prefixes.

    Source: RocketMQ TopicValidator and MixAll; the check topics are ours (RocketMQ pushes checks
    down a producer's connection).
    """

    prefix: str = ""

    @classmethod
    def found_in(cls, topics: Iterable[str]) -> list[TopicNames]:
        """Return the installations whose half topics are among `topics`, by prefix."""
        halves = (topic for topic in topics if topic.endswith(_HALF))
        return [cls(prefix) for prefix in sorted(half.removesuffix(_HALF) for half in halves)]

    def options(self, bootstrap_servers: str) -> str:
        """Return the options by which every command finds the installation."""
        prefix = f" --topic-prefix {self.prefix}" if self.prefix else ""
        return f"--bootstrap-servers {bootstrap_servers}{prefix}"

    @property
    def half(self) -> str:
        """Topic of the half messages."""
        return self.prefix + _HALF

    @property
    def op(self) -> str:
        """Topic of the op messages."""
        return self.prefix + _OP

    @property
    def dead(self) -> str:
        """Topic of the dead letters."""
        return self.prefix + DEAD_LETTERS

    @property
    def manifest(self) -> str:
        """Topic of the Spark sink's batch manifests."""
        return self.prefix + _MANIFEST

    @property
    def settings(self) -> str:
        """Topic of the installation's settings: the daemon's limits, for clients."""
        return self.prefix + _SETTINGS

    @property
    def audit(self) -> str:
        """Topic of what operators did."""
        return self.prefix + _AUDIT

    @property
    def dead_letters_id(self) -> str:
        """Transactional id of the operator's commands that bring dead letters back."""
        return f"{self.prefix}{_DEAD_LETTERS_ID}"

    @property
    def reading_group(self) -> str:
        """Name of the group without members in which workers mark pairs that they begin to read."""
        return f"{self.daemon_group}-reading"

    @property
    def daemon_group(self) -> str:
        """Consumer group of the daemon, on half and op topics."""
        return self.prefix + _DAEMON_GROUP

    @property
    def manifest_group(self) -> str:
        """Consumer group of those who read manifests; nothing is committed under it."""
        return self.prefix + _MANIFEST_GROUP

    def check(self, producer_group: str) -> str:
        """Return the topic on which `producer_group` is asked."""
        return f"{self.prefix}{_CHECK}{producer_group}"

    def groups_of(self, topics: Iterable[str]) -> list[str]:
        """Return the producer groups whose check topics are among `topics`."""
        start = self.check("")
        return [topic.removeprefix(start) for topic in topics if topic.startswith(start)]

    def check_group(self, producer_group: str) -> str:
        """Return the consumer group of `producer_group`'s check responders."""
        return f"{self.prefix}CID_{producer_group}"

    def relay_group(self, producer_group: str) -> str:
        """Return the consumer group in which relays of `producer_group` read dead letters."""
        return f"{self.prefix}{_RELAY_GROUP}{producer_group}"

    def is_internal(self, topic: str) -> bool:
        """Tell whether `topic` is internal, of any installation, or the cluster's own (`__...`)."""
        return holds_internal_name(topic) or topic.removeprefix(self.prefix).startswith("__")


def holds_internal_name(text: str) -> bool:
    """Tell whether `text` is an internal name after some prefix, or would make one.

    No real topic, no producer group and no prefix may be called so. The group `RMQ_SYS_TRANS` would
    be asked in the daemon's own consumer group, and check requests of the group
    `x-RMQ_SYS_TRANS_HALF_TOPIC` would be half records of the installation `RMQ_SYS_TRANS_CHECK_x-`.
    """
    return SYSTEM in text or text.endswith(DEAD_LETTERS)


# Half partitions of an installation, and so the most workers that may share its load. Two: a second
# worker takes over at once. Each further pair costs requests (docs/evidence/benchmarks.md); --grow
# adds pairs before a third worker.
PAIRS = 2
CHECK_PARTITIONS = 4  # most members of a group that answer at once
CHECK_RETENTION_MS = HOUR_MS
# One partition: operators' actions have one order.
AUDIT_PARTITIONS = 1
AUDIT_RETENTION_MS = 365 * 24 * HOUR_MS  # as long as auditors ask for (PCI DSS 10.5: a year)
UNLIMITED = -1  # retention.ms and retention.bytes of Kafka: no limit
# Kafka's own default of max.message.bytes.
MESSAGE_BYTES_MAX = 1_048_588
# Room in a half record for RMQ_HALF, RMQ_CONTEXT, RMQ_CHECK or RMQ_DEAD and the record's framing,
# each of at most some KiB (`limits`): with a margin for headers of later versions.
MESSAGE_RESERVE_BYTES = 64 * 1024
# A check request or dead letter is the half record and one more header: twice
# MESSAGE_RESERVE_BYTES, which is room for all of them.
COPY_BYTES = 128 * 1024
# With this many replicas, two must be in sync; with fewer, that would stop the topic too often.
SAFE_REPLICAS = 3
SAFE_INSYNC = 2  # one broker may be lost without a loss of what was acknowledged


@dataclass(frozen=True, slots=True)
class HalfShape:
    """The limits of the half topic.

    Attributes:
        partitions: Number of partitions of half and op topic.
        record_bytes_max: Its max.message.bytes.
        replicas: Its replication factor, which topics that clients make have too.
    """

    partitions: int
    record_bytes_max: int
    replicas: int

    @property
    def message_bytes_max(self) -> int:
        """Most bytes of key, value and twice the headers of one message."""
        return self.record_bytes_max - MESSAGE_RESERVE_BYTES


def check_topic_settings(half: HalfShape) -> dict[str, str]:
    """Return the settings of a producer group's check topic."""
    return copy_settings(half.record_bytes_max, CHECK_RETENTION_MS) | safety(half.replicas)


def manifest_topic_settings(*, replicas: int) -> dict[str, str]:
    """Return the settings of the manifest topic."""
    return manifest_settings() | safety(replicas)


def copy_settings(record_bytes_max: int, retention_ms: int) -> dict[str, str]:
    """Return the settings of a topic of check requests or dead letters, but for `safety`."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "max.message.bytes": str(record_bytes_max + COPY_BYTES),
    }


def manifest_settings() -> dict[str, str]:
    """Return the manifest topic's, without `safety`: an expired batch would be published twice."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(UNLIMITED),
        "retention.bytes": str(UNLIMITED),
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(MANIFEST_BYTES_MAX),
    }


def audit_settings() -> dict[str, str]:
    """Return the audit topic's, but for `safety`: brokers' times, and a year of actions."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(AUDIT_RETENTION_MS),
        "retention.bytes": str(UNLIMITED),
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(ACTION_BYTES_MAX + 1024),
    }


def safety(replicas: int) -> dict[str, str]:
    """Return the further settings of any internal topic with this many replicas."""
    return {"min.insync.replicas": str(SAFE_INSYNC)} if replicas >= SAFE_REPLICAS else {}
