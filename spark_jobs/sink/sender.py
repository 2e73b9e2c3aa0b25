"""The sink's writing side of Kafka: an idempotent writer that passes no record over."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.acknowledgements import Acknowledgements
from halfbridge.bridge.failure import INFERRED, KafkaFailure
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.spark_jobs.sink.clients import NONE, new_writer
from halfbridge.spark_jobs.sink.errors import SendError, SinkSetupError, failing_as
from halfbridge.spark_jobs.sink.topics import MS_PER_S, NO_ANSWER, new_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.bridge.ports import Ports, Writer
    from halfbridge.serde.headers import Headers
    from halfbridge.spark_jobs.sink.options import SinkOptions

# How long one wait for room in the queue is, before it is tried again.
_ROOM_S = 0.1
# The client tells at once what it has purged: no broker is asked.
_PURGE_S = 1.0
# Acknowledgements are served once in so many sends, so that a row costs no call of its own.
_POLL_EVERY = 256
_FAILED_BEFORE = "the Kafka client has failed before"


class Sender:
    """One writer, until it fails. Not thread-safe.

    Args:
        options: Of the sink.
        ports: Make the clients.
        defaults: Properties of the writer that the query may set otherwise.
        changes: Properties of the writer that the query may not set.

    Attributes:
        shape: The half topic as it was when this was made.

    Raises:
        SinkSetupError: half and op topic are not as they must be, or no broker answers.
        SinkOptionError: the Kafka client does not take a property.
    """

    def __init__(
        self,
        options: SinkOptions,
        ports: Ports,
        *,
        defaults: Mapping[str, Any] = NONE,
        changes: Mapping[str, Any] = NONE,
    ) -> None:
        self.names = options.names
        self._room_timeout_s = options.send_timeout_ms / MS_PER_S
        self._now = ports.clock.monotonic
        self._topics = new_topics(options, ports)
        with failing_as(SinkSetupError, NO_ANSWER):
            self.shape = self._topics.half_shape()
        self._writer: Writer | None = new_writer(
            options,
            ports,
            message_bytes_max=self.shape.record_bytes_max,
            defaults=defaults,
            changes=changes,
        )
        self._acknowledgements = Acknowledgements(ports.run.current)
        self._sent = 0

    @property
    def is_broken(self) -> bool:
        """Tell whether the client refuses all further work."""
        return self._writer is None

    def failure(self, error: Any, record: Any) -> KafkaFailure | None:
        """Return why a record is not known to be stored; None where a broker has said that it is.

        Args:
            error: Of the acknowledgement.
            record: The record that was acknowledged.
        """
        if error is not None:
            return failure_of(error)
        place = record.topic(), record.partition(), record.offset()
        return None if self._acknowledgements.is_proven(*place) else INFERRED

    def send(  # noqa: PLR0917  (once a row: keywords cost)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        headers: Headers | None = None,
    ) -> None:
        """Hand a record to Kafka, waiting for room in the queue.

        Raises:
            SendError: no room came in time, or the client takes no more.
        """
        writer = self._writer
        if writer is None:
            raise SendError(_FAILED_BEFORE)
        try:
            try:
                writer.produce(topic, value, key, partition, on_delivery, 0, headers)
            except BufferError:
                record = (topic, value, key, partition, on_delivery, 0, headers)
                self._send_when_there_is_room(writer, record)
        except KafkaFailure as failure:
            raise self._failed("takes no record", failure) from failure
        self._sent += 1
        if self._sent % _POLL_EVERY == 0:
            self._serve(writer.poll, 0)

    def flush(self, timeout_s: float) -> None:
        """Return once every record is acknowledged or has failed, as its callback tells.

        Raises:
            SendError: that did not happen in time; what is left is given up.
        """
        if self._writer is None:
            raise SendError(_FAILED_BEFORE)
        left = self._serve(self._writer.flush, timeout_s)
        if left:
            self.give_up()
            raise SendError(f"{left} records were not acknowledged in {timeout_s:g} s")

    def give_up(self) -> None:
        """Drop what is not sent yet; the client is of no more use."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(KafkaFailure):
                writer.purge()
                writer.flush(_PURGE_S)

    def _send_when_there_is_room(self, writer: Writer, record: tuple[Any, ...]) -> None:
        deadline = self._now() + self._room_timeout_s
        while self._now() < deadline:
            self._serve(writer.poll, _ROOM_S)
            with suppress(BufferError):
                writer.produce(*record)
                return
        self.give_up()
        raise SendError("the send queue stayed full: the brokers do not answer")

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Serve acknowledgements by the writer's `poll` or `flush`, and return what that does."""
        try:
            return call(seconds)
        except KafkaFailure as failure:
            raise self._failed("failed", failure) from failure

    def _failed(self, what: str, failure: KafkaFailure) -> SendError:
        self.give_up()
        return SendError(f"the Kafka client {what}: {failure}")
