"""Sends check requests, which ask producer groups to decide."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.checker.loop.batch_writer import MESSAGE_BYTES_MAX
from halfbridge.checker.loop.clients import client_config
from halfbridge.checker.loop.silence import Silence
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import PURGED, Code, ConfigError, KafkaFailure
from halfbridge.kafka.trouble import Troubles

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.kafka.ports import Ports

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

# No broker has answered for a request.
_UNANSWERED = frozenset((Code.MSG_TIMED_OUT, Code.FATAL))


class CheckSender:
    """Sends check requests, outside any kafka_txn: a lost request is repeated.

    A producer whose requests have all timed out for `silence.REPLACED_AFTER_S`, or which has failed
    for good, is replaced. The worker that sends requests reads records meanwhile.

    Args:
        config: The daemon's settings.
        ports: Make the producer.
        on_replaced: Called when the producer was replaced.
    """

    def __init__(
        self, config: CheckerConfig, ports: Ports, on_replaced: Callable[[], object] = lambda: None
    ) -> None:
        self._troubles = Troubles(_log, ports.clock)
        self._monotonic = ports.clock.monotonic
        self._kafka = ports.kafka
        self._on_replaced = on_replaced
        self._properties = {
            # The user's properties come after, and override it.
            "queue.buffering.max.messages": _QUEUE_CHECKS_MAX,
            "queue.buffering.max.kbytes": _QUEUE_KIB_MAX,
            **client_config(config),
            "enable.idempotence": True,
            "message.timeout.ms": _REQUEST_MS_MAX,
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "linger.ms": _LINGER_MS,
        }
        self._silence = Silence()
        self._writer = self._kafka.writer(self._properties)
        self.untimely: int | None = None  # the turn of `Stamps` that was refused last

    def send(self, record: Outgoing, turn: int) -> bool:
        """Send without waiting; False if the queue is full.

        Args:
            record: The request.
            turn: The turn of `Stamps` that gave the request's timestamp.
        """
        if self._silence.is_over_limit(self._monotonic()):
            self._replace()
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
        except BufferError:
            return False
        except KafkaFailure as failure:
            if failure.code == Code.FATAL:  # an idempotent producer accepts no more records
                self._silence.goes_on(self._monotonic())
            return False
        return True

    def serve(self) -> None:
        """Serve delivery reports."""
        self._writer.poll(0)

    def close(self) -> None:
        """Drop the writer without waiting."""
        self._writer.close()

    def _replace(self) -> None:
        """Send by a new producer; the requests of the old one are repeated when they are due."""
        self._silence.end()
        with suppress(ConfigError):  # not possible now: the old producer is kept
            old, self._writer = self._writer, self._kafka.writer(self._properties)
            old.close()
            _log.warning("no check request was acknowledged for a while: new producer")
            self._on_replaced()

    def _on_delivery(self, turn: int, error: Any, _record: Any) -> None:
        if error is None:
            self._silence.end()
            return
        code = failure_of(error).code
        if code in _UNANSWERED:
            self._silence.goes_on(self._monotonic())
        elif code > 0:  # a broker's answer
            self._silence.end()
        if code in _UNTIMELY:
            self.untimely = turn
        if code not in PURGED:
            self._troubles.note(error)
