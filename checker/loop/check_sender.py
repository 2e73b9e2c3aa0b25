"""Sends check requests, which ask producer groups to decide."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import PURGED, Code, KafkaFailure
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.trouble import Troubles
from halfbridge.checker.loop.batch_writer import MESSAGE_BYTES_MAX
from halfbridge.checker.loop.clients import client_config

if TYPE_CHECKING:
    from halfbridge.bridge.ports import Ports
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing

_log = logging.getLogger("halfbridge.checker")

_QUEUE_CHECKS_MAX = 20_000  # a second of checks at the default check_rate_max
# Bytes of the requests in the queue, which contain half messages: one batch of a kafka_txn.
_QUEUE_KIB_MAX = 16_384
# A request that was not sent by then is sent anew when its transaction is due again (30 s).
_REQUEST_MS_MAX = 5_000
# The client library's default: no answer is due within milliseconds.
_LINGER_MS = 5
# A refused timestamp. If a batch has several records with refused timestamps, librdkafka reports
# each record as invalid, without the reason.
_UNTIMELY = frozenset((Code.INVALID_TIMESTAMP, Code.INVALID_RECORD))


class CheckSender:
    """Sends check requests, outside any kafka_txn: a lost request is repeated."""

    def __init__(self, config: CheckerConfig, ports: Ports) -> None:
        self._troubles = Troubles(_log, ports.clock)
        self._writer = ports.kafka.writer(
            {
                # The user's properties come after, and override it.
                "queue.buffering.max.messages": _QUEUE_CHECKS_MAX,
                "queue.buffering.max.kbytes": _QUEUE_KIB_MAX,
                **client_config(config),
                "enable.idempotence": True,
                "message.timeout.ms": _REQUEST_MS_MAX,
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "linger.ms": _LINGER_MS,
            },
        )
        self.untimely: int | None = None  # the turn of `Stamps` that was refused last

    def send(self, record: Outgoing, turn: int) -> bool:
        """Send without waiting; False if the queue is full.

        Args:
            record: The request.
            turn: The turn of `Stamps` that gave the request's timestamp.
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
        """Drop the writer without waiting."""
        self._writer.close()

    def _on_delivery(self, turn: int, error: Any, _record: Any) -> None:
        if error is None:
            return
        code = failure_of(error).code
        if code in _UNTIMELY:
            self.untimely = turn
        if code not in PURGED:
            self._troubles.note(error)
