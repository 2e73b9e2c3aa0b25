"""What all Kafka clients of one worker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.trouble import RECONNECTING

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig

# One question to a broker; longer means that it is not there, and the loop tries again.
QUESTION_S = 10.0
# Large minimum, short wait: with one byte every record is a fetch of its own, and the broker
# runs out of CPU. A wait of 3 ms cost 1.4 ms a transaction (docs/benchmarks.md).
FETCHING = {
    "fetch.min.bytes": 1_000_000,
    "fetch.wait.max.ms": 1,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 5,
    # Half records are eight times as large as ops: larger fetches run far ahead of the ops that
    # decide them, and memory is what they cost.
    "max.partition.fetch.bytes": 524_288,
    # What comes at once from one broker: with what is queued, the most that one turn of the loop
    # takes in beyond the budgets of memory.
    "fetch.max.bytes": 16_777_216,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 8_192,
}


@dataclass(frozen=True, slots=True)
class SlotIds:
    """What Kafka is told about a slot."""

    group_instance_id: str
    transactional_id_prefix: str


def client_config(config: CheckerConfig) -> dict[str, Any]:
    """Return what all clients of one worker share; the user's own properties included."""
    return {
        **RECONNECTING,  # the user may know better
        **config.kafka,
        "bootstrap.servers": config.bootstrap_servers,
        "allow.auto.create.topics": False,
        # With the default of 100 ms, back-to-back kafka_txns wait 8 times longer.
        "retry.backoff.ms": 1,
    }


def joined(config: CheckerConfig, group_instance_id: str) -> dict[str, Any]:
    """Return what the consumer needs besides, that reads as a static member of the group."""
    return {
        "group.id": config.names.daemon_group,
        "group.instance.id": group_instance_id,
        "session.timeout.ms": config.session_timeout_ms,
        "heartbeat.interval.ms": max(100, min(1000, config.session_timeout_ms // 10)),
        "partition.assignment.strategy": "range",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "check.crcs": True,
        **FETCHING,
    }


def unjoined(config: CheckerConfig) -> dict[str, Any]:
    """Return what a consumer needs besides, that reads with the group's rights and never joins."""
    return {
        "group.id": config.names.daemon_group,
        # The client compares the user's max.poll.interval.ms with it, joined or not.
        "session.timeout.ms": config.session_timeout_ms,
    }
