"""The sender of check requests."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from halfbridge.bridge.kafka_io import made
from halfbridge.bridge.trouble import Troubles
from halfbridge.checker.clients import client_config

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.publish import Outgoing

_log = logging.getLogger("halfbridge.checker")

_QUEUE_CHECKS_MAX = 20_000
# Of the requests in that queue, which hold the messages asked about: one batch of a kafka_txn.
_QUEUE_KIB_MAX = 16_384
# What a check request is refused for: of several records with timestamps that a broker does not
# take, librdkafka calls each one invalid, without the reason.
_UNTIMELY_CODES = frozenset((KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD))


class CheckSender:
    """Sends check requests, outside any kafka_txn: a lost one is simply asked again."""

    def __init__(self, config: CheckerConfig) -> None:
        self._troubles = Troubles(_log)
        self._producer = made(
            Producer,
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
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                timestamp=record.timestamp_ms,
                headers=record.headers,
                on_delivery=partial(self._on_delivery, turn),
            )
        except (BufferError, KafkaException):
            return False
        return True

    def serve(self) -> None:
        """Serve delivery reports."""
        self._producer.poll(0)

    def close(self) -> None:
        """Let go without waiting."""
        self._producer.purge()
        self._producer.poll(0)

    def _on_delivery(self, turn: int, error: KafkaError | None, _message: Any) -> None:
        if error is not None and error.code() in _UNTIMELY_CODES:
            self.untimely = turn
        if error is not None and error.code() not in (
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
        ):
            self._troubles.note(error)
