"""Properties that the Kafka clients of a worker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.trouble import RECONNECTING

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig

# Time-out of one question to a broker. After that the broker is down, and the loop tries again.
QUESTION_S = 10.0
# A broker answers at the first byte, so a record waits for nothing, and an idle worker makes ten
# fetches a second to each broker (ADR 3). Under load records pile up between two fetches.
FETCHING = {
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 5,
    # Half records are eight times as large as ops. With larger fetches, half records would be read
    # far ahead of the ops that decide them, and take memory.
    "max.partition.fetch.bytes": 524_288,
    # Bytes of one answer of a broker. Together with the queue, this is the most by which one turn
    # of the loop exceeds the budgets of memory.
    "fetch.max.bytes": 16_777_216,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 8_192,
}


@dataclass(frozen=True, slots=True)
class SlotIds:
    """Kafka's ids of a slot."""

    group_instance_id: str
    transactional_id_prefix: str


def client_config(config: CheckerConfig) -> dict[str, Any]:
    """Return the properties of all clients of a worker, with the user's own."""
    return {
        **RECONNECTING,  # first: the user's properties override it
        **config.kafka,
        "bootstrap.servers": config.bootstrap_servers,
        "allow.auto.create.topics": False,
        # With the default of 100 ms, back-to-back kafka_txns wait 8 times longer.
        "retry.backoff.ms": 1,
    }


def member_config(config: CheckerConfig, group_instance_id: str) -> dict[str, Any]:
    """Return the properties of a consumer that is a static member of the group."""
    return {
        **FETCHING,  # first: the user's properties override it
        **client_config(config),
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
    }


def unjoined(config: CheckerConfig) -> dict[str, Any]:
    """Return the further properties of a consumer that has the group's rights and never joins."""
    return {
        "group.id": config.names.daemon_group,
        # The client compares the user's max.poll.interval.ms with this, even if it never joins.
        "session.timeout.ms": config.session_timeout_ms,
    }
