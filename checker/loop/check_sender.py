"""Sends check requests, which ask producer groups to decide."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import PURGED, Code, KafkaFailure
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.trouble import Troubles
from halfbridge.checker.loop.clients import client_config

if TYPE_CHECKING:
    from halfbridge.bridge.ports import Ports
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing

_log = logging.getLogger("halfbridge.checker")

_QUEUE_CHECKS_MAX = 20_000
# Of the requests in that queue, which hold the messages asked about: one batch of a kafka_txn.
_QUEUE_KIB_MAX = 16_384
# What a check request is refused for: of several records with timestamps that a broker does not
# take, librdkafka calls each one invalid, without the reason.
_UNTIMELY = frozenset((Code.INVALID_TIMESTAMP, Code.INVALID_RECORD))


class CheckSender:
    """Sends check requests, outside any kafka_txn: a lost one is simply asked again."""

    def __init__(self, config: CheckerConfig, ports: Ports) -> None:
        self._troubles = Troubles(_log, ports.clock)
        self._writer = ports.kafka.writer(
            {
                # The user may know better.
                "queue.buffering.max.messages": _QUEUE_CHECKS_MAX,
                "queue.buffering.max.kbytes": _QUEUE_KIB_MAX,
                **client_config(config),
                "enable.idempotence": True,
                "message.timeout.ms": 5000,
                "message.max.bytes": 1_000_000_000,
                "linger.ms": 5,
            },
        )
        self.untimely: int | None = None  # turn of `Stamps` whose timestamp was refused last

    def send(self, record: Outgoing, turn: int) -> bool:
        """Send without waiting; False when there is no room now.

        Args:
            record: The request.
            turn: Of the clock (`Stamps`) that the request is stamped with.
        """
        try:
            self._writer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                partial(self._on_delivery, turn),
                record.timestamp_ms,
                record.headers,
            )
        except (BufferError, KafkaFailure):
            return False
        return True

    def serve(self) -> None:
        """Serve delivery reports."""
        self._writer.poll(0)

    def close(self) -> None:
        """Let go without waiting."""
        self._writer.purge()
        self._writer.poll(0)

    def _on_delivery(self, turn: int, error: Any, _record: Any) -> None:
        if error is None:
            return
        code = failure_of(error).code
        if code in _UNTIMELY:
            self.untimely = turn
        if code not in PURGED:
            self._troubles.note(error)
