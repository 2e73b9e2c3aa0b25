"""What the internal topics are made with: partitions and settings, for all who make them. Pure.

`halfbridge topics create` makes all of them. A client makes its group's check topic where that is
missing, and the Spark sink its manifest topic too.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfbridge.serde.operator_actions import ACTION_BYTES_MAX
from halfbridge.serde.topics import MANIFEST_BYTES_MAX

_HOUR_MS = 3_600_000
CHECK_PARTITIONS = 4  # so many members of a group answer at once
CHECK_RETENTION_MS = _HOUR_MS
# One partition: operators' actions have one order.
AUDIT_PARTITIONS = 1
AUDIT_RETENTION_MS = 365 * 24 * _HOUR_MS
UNLIMITED = -1
# Kafka's own default of max.message.bytes.
MESSAGE_BYTES_MAX = 1_048_588
# Room in a half record for RMQ_HALF, RMQ_CONTEXT, RMQ_CHECK or RMQ_DEAD and the record's framing.
MESSAGE_RESERVE_BYTES = 64 * 1024
# A check request or dead letter is the half record and one more header.
COPY_BYTES = 128 * 1024
# With so many replicas, two must be in sync; with fewer, that would stop the topic too often.
SAFE_REPLICAS = 3
SAFE_INSYNC = 2


@dataclass(frozen=True, slots=True)
class HalfShape:
    """What the half topic allows.

    Attributes:
        partitions: Of half and op topic.
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
    """Return the settings of a topic of check requests or dead letters, but for `safety`.

    Args:
        record_bytes_max: Of the half topic.
        retention_ms: Of the copies.
    """
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "max.message.bytes": str(record_bytes_max + COPY_BYTES),
    }


def manifest_settings() -> dict[str, str]:
    """Return the manifest topic's, but for `safety`: what it forgets would be published twice."""
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
    """Return what any internal topic with this many replicas is made with besides."""
    return {"min.insync.replicas": str(SAFE_INSYNC)} if replicas >= SAFE_REPLICAS else {}
