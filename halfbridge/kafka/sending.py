"""Sends records by an idempotent writer, and proves that they are stored.

librdkafka also reports success where it only infers that records are stored: a later record of the
partition was acknowledged, or a broker reported a duplicate sequence number. After a leader died
the inference can be wrong, and no log holds the records. For such a batch librdkafka counts offsets
up from -1: the first record is reported without an offset, the second at 0, the third at 1.

The client hands a whole batch to one polling thread. Another thread may get another batch of the
partition at the same time, so each thread has its own count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import INFERRED, BackpressureError, KafkaFailure, bridge_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.kafka.ports import ClientError, DeliveryCallback, Ports, SentRecord, Writer
    from halfbridge.serde.headers import Headers

# Properties of every writer of half messages and decisions; the guarantees rest on them.
DURABLE: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
}
# Between two attempts to enter a full queue. Below the client's INLINE_GRACE_S, so that its
# background thread stays away meanwhile.
ROOM_SLICE_S = 0.004
PURGE_S = 1.0  # callbacks of purged records only: no broker is asked


class RecordWriter:
    """Hands records to one writer, and judges their acknowledgements. As thread-safe as `serve`.

    Args:
        writer: The Kafka client; its properties contain DURABLE.
        ports: The ports that made the writer.
        room_timeout_s: Longest wait for room in the writer's queue.
        serve: Serves acknowledgements for the seconds given: `writer.poll`, or a caller's own.
        refuse: Called when the writer was closed by another thread; raises the caller's error.
    """

    def __init__(
        self,
        writer: Writer,
        ports: Ports,
        *,
        room_timeout_s: float,
        serve: Callable[[float], object],
        refuse: Callable[[], None] | None = None,
    ) -> None:
        self._writer = writer
        self._produce = writer.produce
        self._now = ports.clock.monotonic
        self._room_timeout_s = room_timeout_s
        self._serve = serve
        self._refuse = refuse
        self._acknowledgements = Acknowledgements(ports.run.current)
        # Called with the writer's arguments where its queue is full. An event loop sets another.
        self.on_full: Callable[..., None] = self.wait_and_produce

    def produce(  # noqa: PLR0917  (once a record: keywords cost)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: DeliveryCallback,
        headers: Headers | None = None,
    ) -> None:
        """Hand a record to Kafka, waiting for room.

        Raises BackpressureError: the queue stayed full; the caller sends again later. BridgeError:
        the client refuses it; its class says who acts.
        """
        try:
            try:
                self._produce(topic, value, key, partition, on_delivery, 0, headers)
            except BufferError:
                self.on_full(topic, value, key, partition, on_delivery, 0, headers)
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        except RuntimeError:
            if self._refuse is not None:
                self._refuse()
            raise

    def failure(self, error: ClientError | None, record: SentRecord) -> KafkaFailure | None:
        """Return why a record is not proven to be stored; None if a broker has confirmed it.

        Call it in the delivery callback, with the callback's arguments.
        """
        return self._acknowledgements.failure(error, record)

    def not_proven(self, record: SentRecord) -> KafkaFailure | None:
        """Return why an acknowledgement without an error does not prove that `record` is stored."""
        return self._acknowledgements.failure(None, record)

    def give_up(self) -> None:
        """Drop the records that are not acknowledged, run their callbacks, close the writer."""
        with suppress(KafkaFailure):
            self._writer.purge()
            self._writer.flush(PURGE_S)
        self._writer.close()

    def wait_and_produce(self, *arguments: Any) -> None:
        """Wait for room in the writer's queue, and hand the record to it.

        Raises:
            BackpressureError: the queue stayed full; the caller sends again later, more slowly.
        """
        deadline = self._now() + self._room_timeout_s
        while True:
            self._serve(ROOM_SLICE_S)
            try:
                self._produce(*arguments)
            except BufferError:
                if self._now() > deadline:
                    raise self.stayed_full() from None
            else:
                return

    def stayed_full(self) -> BackpressureError:
        """Return the error of a record that found no room in time."""
        return BackpressureError(
            f"the send queue stayed full for {self._room_timeout_s:g} s:"
            " the brokers do not answer, or are too slow"
        )


class Acknowledgements:
    """Tells proven acknowledgements from inferred ones, by offsets, in the delivery callback."""

    def __init__(self, current: Callable[[], int]) -> None:
        self._current = current
        self._counted: dict[tuple[int, str, int], int] = {}

    def failure(self, error: ClientError | None, record: SentRecord) -> KafkaFailure | None:
        """Return why a record is not proven to be stored; None if a broker has confirmed it."""
        if error is not None:
            return failure_of(error)
        place = record.topic(), record.partition(), record.offset()
        return None if self.is_proven(*place) else INFERRED

    def is_proven(self, topic: str, partition: int, offset: int | None) -> bool:
        """Tell whether a broker has confirmed that the record is stored at `offset`.

        None is no offset: the first record of an inferred batch. A proven record after such a
        batch never has the offset at which the count would continue: a record of the batch or an
        earlier one has it.
        """
        if offset is not None and not self._counted:
            return True
        place = (self._current(), topic, partition)
        if offset is not None and offset != self._counted.get(place):
            return True
        self._counted[place] = 0 if offset is None else offset + 1
        return False
