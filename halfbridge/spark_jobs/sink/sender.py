"""Writes the sink's records by an idempotent writer that leaves no gap."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.acknowledgements import Acknowledgements
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import INFERRED, KafkaFailure
from halfbridge.spark_jobs.sink.clients import NONE, new_writer
from halfbridge.spark_jobs.sink.errors import SendError, SinkSetupError, failing_as
from halfbridge.spark_jobs.sink.topics import MS_PER_S, NO_ANSWER, new_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.kafka.ports import Ports, Writer
    from halfbridge.serde.headers import Headers
    from halfbridge.spark_jobs.sink.options import SinkOptions

# How long to wait for room in the queue before the next try.
_ROOM_S = 0.1
# The client reports purged records at once, because no broker is asked.
_PURGE_S = 1.0
# Sends between two polls, so that not every row costs a call.
_POLL_EVERY = 256
_FAILED_BEFORE = "the Kafka client has failed before"


class Sender:
    """One writer, until it fails. Not thread-safe.

    Args:
        options: The sink's options.
        ports: Makes the clients.
        defaults: Properties of the writer that the query may override.
        changes: Properties of the writer that the query may not set.

    Attributes:
        shape: The half topic's shape when this sender was made.

    Raises:
        SinkSetupError: half or op topic is missing or has the wrong shape, or no broker answers.
        SinkOptionError: the Kafka client refuses a property.
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
        """Return why a record is not proven to be stored; None if a broker has confirmed it.

        Args:
            error: The acknowledgement's error.
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
            SendError: there was no room in time, or the client takes no more records.
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
        """Return once every record is acknowledged or has failed; callbacks get the results.

        Raises:
            SendError: some records are not acknowledged in time, and are given up.
        """
        if self._writer is None:
            raise SendError(_FAILED_BEFORE)
        left = self._serve(self._writer.flush, timeout_s)
        if left:
            self.give_up()
            raise SendError(f"{left} records were not acknowledged in {timeout_s:g} s")

    def give_up(self) -> None:
        """Drop unsent records; the client cannot be used any more."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(KafkaFailure):
                writer.purge()
                writer.flush(_PURGE_S)
            writer.close()

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
        """Serve acknowledgements by the writer's `poll` or `flush`, and return its result."""
        try:
            return call(seconds)
        except KafkaFailure as failure:
            raise self._failed("failed", failure) from failure

    def _failed(self, what: str, failure: KafkaFailure) -> SendError:
        self.give_up()
        return SendError(f"the Kafka client {what}: {failure}")
