"""The properties of the client's Kafka clients."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.trouble import RECONNECTING, Troubles

if TYPE_CHECKING:
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Clock

_LOG = logging.getLogger("halfbridge.kafka")
# Half of the client library's default. A process that cannot send holds at most 512 MiB of bodies.
_QUEUE_KBYTES_MAX = 512 * 1024
_REQUEST_TIMEOUT_MS_MAX = 5_000  # leaves room for a retry within the delivery time-out
_SESSION_TIMEOUT_MS = 6_000  # the least that brokers allow: a killed member's checks move on
_METADATA_MS = 10_000  # how soon a member notices that its topic was created or has grown
_CONSUMER_ONLY = (
    "session.",
    "heartbeat.",
    "max.poll.",
    "partition.assignment.",
    "fetch.",
    "queued.",
)


def admin_properties(config: BridgeConfig, clock: Clock) -> dict[str, Any]:
    """Return the properties of a client that lists topics and asks where logs end."""
    return {**_common(config, consumer=False), "error_cb": Troubles(_LOG, clock).note}


def writer_properties(
    config: BridgeConfig, clock: Clock, *, message_bytes_max: int
) -> dict[str, Any]:
    """Return the properties of the idempotent writer that all transactions of a producer share."""
    delivery_ms = max(config.send_timeout_ms, config.decision_timeout_ms)
    return {
        "socket.keepalive.enable": True,
        **_common(config, consumer=False),
        "acks": "all",
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        "linger.ms": config.linger_ms,
        "max.in.flight": config.requests_in_flight_max,
        "compression.type": config.compression,
        "delivery.timeout.ms": delivery_ms,
        "request.timeout.ms": max(1, min(_REQUEST_TIMEOUT_MS_MAX, delivery_ms)),
        "message.max.bytes": message_bytes_max,
        # Twice, because the delivery callback of each half message may send a decision.
        "queue.buffering.max.messages": 2 * config.in_flight_max,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
        "error_cb": Troubles(_LOG, clock).note,
    }


def checks_properties(config: BridgeConfig, clock: Clock) -> dict[str, Any]:
    """Return the properties of the group member that reads the check topic.

    A group without offsets starts at the earliest request, so that requests from before its start
    are answered at once; the topic's short retention bounds their number. Offsets are committed
    automatically: the daemon repeats a request that is lost in a crash.

    A damaged record may abort the process, which is the user's service. librdkafka (up to 2.16)
    aborts when it verifies a checksum, and on zeros between two batches of one answer
    (docs/librdkafka-crc-report.md). So checksums are not verified, and an answer has one batch: its
    broker has looked at the first batch, and returns an error for zeros.
    """
    return {
        "session.timeout.ms": _SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": _SESSION_TIMEOUT_MS // 3,
        **_common(config, consumer=True),
        "group.id": config.names.check_group(config.producer_group),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "enable.partition.eof": True,  # adds records whose error has the code PARTITION_EOF
        "isolation.level": "read_uncommitted",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": _METADATA_MS,
        "check.crcs": False,
        "max.partition.fetch.bytes": 1,  # a broker returns one batch at least
        "error_cb": Troubles(_LOG, clock).note,
    }


def letters_properties(config: BridgeConfig, clock: Clock) -> dict[str, Any]:
    """Return the properties of the group member by which relays read the dead-letter topic."""
    return {
        **reader_properties(config, clock),
        "group.id": config.names.relay_group(config.producer_group),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": _METADATA_MS,
    }


def reader_properties(config: BridgeConfig, clock: Clock) -> dict[str, Any]:
    """Return the properties of a reader that has the rights of the check group.

    It never joins the group.
    """
    return {
        "session.timeout.ms": _SESSION_TIMEOUT_MS,  # compared with the user's max.poll.interval.ms
        **_common(config, consumer=True),
        "group.id": config.names.check_group(config.producer_group),
        "error_cb": Troubles(_LOG, clock).note,
    }


def _common(config: BridgeConfig, *, consumer: bool) -> dict[str, Any]:
    passed = {
        name: value
        for name, value in config.kafka.items()
        if consumer or not name.startswith(_CONSUMER_ONLY)
    }
    return {
        "client.id": f"halfbridge-{config.producer_group}",
        **RECONNECTING,
        **passed,
        "bootstrap.servers": config.bootstrap_servers,
    }
