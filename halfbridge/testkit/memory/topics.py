"""Topics: their settings, and what brokers refuse of a batch of records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.testkit.memory.log import Partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.testkit.memory.log import Row

# Kafka 4.2's, of the settings that anybody here asks for; an operator's command shows them.
DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
_NAME_CHARS_MAX = 249  # Kafka's own limit
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_NAME_CHARS_MAX}}}")
# What a batch takes beside its records, and a record beside its key, value and headers, at most.
_BATCH_BYTES = 61
_RECORD_BYTES = 12
_HEADER_BYTES = 4
_INVALID_PARTITIONS = 37
_INVALID_CONFIG = 40


class Topic:
    """A topic.

    Attributes:
        name: Its name.
        replicas: How many each partition has.
        settings: All of them.
        partitions: In order.
        is_stamped: Brokers set the time of its records (LogAppendTime).
        topic_id: Of no other topic, whenever it was created.
    """

    __slots__ = (
        "bytes_max",
        "is_stamped",
        "name",
        "partitions",
        "replicas",
        "settings",
        "topic_id",
    )

    def __init__(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> None:
        self.name = name
        self.replicas = replicas
        self.partitions = [Partition(name, number) for number in range(partitions)]
        self.settings: dict[str, str] = {}
        self.is_stamped = False
        self.bytes_max = 0
        self.topic_id = ""
        self.alter({**DEFAULTS, **settings})

    def alter(self, settings: Mapping[str, str]) -> None:
        """Change settings."""
        self.settings.update(settings)
        self.is_stamped = self.settings["message.timestamp.type"] == "LogAppendTime"
        self.bytes_max = int(self.settings["max.message.bytes"])

    def grow(self, partitions: int) -> None:
        """Have so many partitions in all."""
        known = len(self.partitions)
        if partitions <= known:
            raise KafkaFailure(
                _INVALID_PARTITIONS,
                f"The topic {self.name} currently has {known} partition(s);"
                f" {partitions} would not be an increase.",
                name="INVALID_PARTITIONS",
            )
        self.partitions += [Partition(self.name, number) for number in range(known, partitions)]

    def check(self, rows: Sequence[Row], now_ms: int) -> None:
        """Refuse a batch as a broker does.

        Raises:
            KafkaFailure: none of it is stored.
        """
        if batch_bytes(rows) > self.bytes_max:
            raise KafkaFailure(Code.MSG_SIZE_TOO_LARGE, "Broker: Message size too large")
        settings = self.settings
        if "compact" in settings["cleanup.policy"] and any(row.key is None for row in rows):
            raise KafkaFailure(Code.INVALID_RECORD, "Broker: Broker failed to validate record")
        if not self.is_stamped:
            first = now_ms - int(settings["message.timestamp.before.max.ms"])
            last = now_ms + int(settings["message.timestamp.after.max.ms"])
            if not all(first <= row.timestamp_ms <= last for row in rows):
                raise KafkaFailure(Code.INVALID_TIMESTAMP, "Broker: Invalid timestamp")

    def expire(self, now_ms: int) -> None:
        """Delete what is older than the topic keeps, and stands before anything younger."""
        keeps_ms = int(self.settings["retention.ms"])
        if keeps_ms < 0 or "delete" not in self.settings["cleanup.policy"]:
            return
        for partition in self.partitions:
            start = partition.start
            while start < partition.lso:
                record = partition.slots[start]
                if record is not None and record.timestamp()[1] >= now_ms - keeps_ms:
                    break
                start += 1
            partition.delete_before(start)


def batch_bytes(rows: Sequence[Row]) -> int:
    """Return about how many bytes a batch of these records has, uncompressed."""
    size = _BATCH_BYTES
    for key, value, headers, _ in rows:
        size += _RECORD_BYTES + len(key or b"") + len(value or b"")
        for name, text in headers or ():
            size += _HEADER_BYTES + len(name) + len(text or b"")
    return size


def check_name(name: str) -> None:
    """Refuse a name that no topic may have.

    Raises:
        KafkaFailure: it is one.
    """
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise KafkaFailure(Code.TOPIC_EXCEPTION, "Broker: Invalid topic")


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse settings that no topic has.

    Raises:
        KafkaFailure: of a name that is not known, or a number that is none.
    """
    for name, value in settings.items():
        if name not in DEFAULTS:
            raise KafkaFailure(
                _INVALID_CONFIG, f"Unknown topic config name: {name}", name="INVALID_CONFIG"
            )
        if DEFAULTS[name].lstrip("-").isdigit() and not value.lstrip("-").isdigit():
            raise KafkaFailure(
                _INVALID_CONFIG,
                f"Invalid value {value} for configuration {name}: Not a number",
                name="INVALID_CONFIG",
            )
