"""Hands a batch of records to a producer, and proves that brokers have stored them.

Each guard against a trap of Kafka's protocol names the trap.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from halfbridge.checker.loop.blame import Batch
from halfbridge.checker.loop.clients import client_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.kafka.errors import AWAY, INFERRED, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.checker.loop.told import Told
    from halfbridge.kafka.ports import Clock, Place, Writer

AnyWriter = TypeVar("AnyWriter", bound="Writer")

# How long after its time-out a call may still return.
HANG_GRACE_S = 1.0
# 200 times the records of a batch as configured (batch_records_max 5,000), so the queue is not what
# limits a batch. A full queue is waited for (`_make_room`).
_QUEUE_RECORDS_MAX = 1_000_000
# How long a full queue is waited for at a time: a batch's acknowledgements come within
# milliseconds, and the time-out is looked at in between.
_ROOM_S = 0.05
# The largest value that the client library takes: the broker checks sizes, by each topic's limit.
MESSAGE_BYTES_MAX = 1_000_000_000
# A sixth of the client library's default: the daemon has looked the topic up before.
_MISSING_MS_MAX = 5_000
# Of many partitions an error names so many.
SHOWN_MAX = 5
# How late a refused record is noticed while other records wait or are handed over.
FLUSH_S = 0.1
# A batch of which no record was acknowledged for this time fails: one of its partitions is away,
# and all pairs of the worker wait behind it. The broker of a real disk answers within a second.
STALL_S = 5.0
# The same while a partition is tried that was away a moment ago.
TRY_S = 1.5
# Small batches pass most topics' limits. ONE_RECORD sends each record alone.
_BATCHES: dict[Batch, dict[str, int]] = {
    Batch.USUAL: {},
    Batch.SMALL: {"batch.size": 32 * 1024},
    Batch.ONE_RECORD: {"batch.num.messages": 1},
}


class BatchWriter(Generic[AnyWriter]):
    """What all outlets share, with kafka_txns or without.

    Args:
        writer: Made with `shared_properties`.
        told: Takes the reports of that writer's client.
        timeout_ms: Longest wait for brokers, milliseconds.
        clock: The clock.

    Attributes:
        stall_s: The longest time without any acknowledgement, seconds.
        names_places: Whether a partition that does not acknowledge is to blame for it. If it is
            not, the producer's last kafka_txn may not have ended yet: then brokers take no record
            of the next one, for any partition.
    """

    def __init__(self, writer: AnyWriter, told: Told, *, timeout_ms: int, clock: Clock) -> None:
        self._writer = writer
        self._told = told
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._sending_since: float | None = None
        self.stall_s = STALL_S
        self.names_places = True

    @property
    def worn(self) -> bool:
        """Whether this producer must be replaced before its next batch.

        Late requests of the last kafka_txn may still arrive. With the same epoch they would apply
        to the next kafka_txn (KAFKA-17754).
        """
        return self._told.worn

    @property
    def is_hung(self) -> bool:
        """Whether sending offsets takes longer than its time-out: the call may never return."""
        since = self._sending_since
        return (
            since is not None and self._clock.monotonic() - since > self._timeout_s + HANG_GRACE_S
        )

    def close(self) -> None:
        """Drop the producer, which may be broken, without waiting."""
        self._writer.close()

    def _prove(self) -> None:
        """Wait until brokers have confirmed every record, or have refused one.

        The client's own check before a commit is weaker, because it accepts inferred
        acknowledgements.

        Raises:
            KafkaTxnFailedError: a record is not confirmed.
            KafkaFailure: the client has failed.
        """
        began = moved = self._clock.monotonic()
        before = -1
        while left := self._writer.flush(FLUSH_S):
            if self._told.refused is not None:
                break  # records in the queue behind a refused record are never sent
            now = self._clock.monotonic()
            moved, before = (moved if left == before else now), left
            if now - moved > self.stall_s or now - began > self._timeout_s:
                raise self._stalled(left)
        refused = self._told.refused
        if refused is not None and refused[0] is INFERRED:
            raise failed(INFERRED)
        if refused is not None and refused[0].code in AWAY:
            raise failed(refused[0], places=self._places())

    def _stalled(self, left: int) -> KafkaTxnFailedError:
        """Give up what is not acknowledged, and return the error that names its partitions."""
        self._told.is_given_up = True
        with suppress(KafkaFailure):
            self._writer.purge()
            self._writer.flush(FLUSH_S)
        places = self._places()
        names = ", ".join(f"{topic}[{number}]" for topic, number in sorted(places)[:SHOWN_MAX])
        where = f": {names}" if names else ""
        return KafkaTxnFailedError(
            f"{left} records were not acknowledged in time{where}", places=places
        )

    def _places(self) -> frozenset[Place]:
        """Return the partitions that are to blame because they do not take records for now."""
        is_clear = self.names_places or self._told.has_stored
        return frozenset(self._told.away) if is_clear else frozenset()

    def _produce(self, records: Iterable[Outgoing]) -> bool:
        """Hand over the records; tell whether there are copies among them."""
        produce = self._writer.produce
        on_delivery = self._told.on_delivery
        has_copies = False
        for record in records:
            callback = on_delivery
            if record.is_copy:
                callback, has_copies = self._told.on_copy, True
            waits_until = 0.0
            while True:
                try:
                    produce(
                        record.topic,
                        record.value,
                        record.key,
                        record.partition,
                        callback,
                        record.timestamp_ms,
                        record.headers,
                    )
                    break
                except BufferError:
                    waits_until = waits_until or self._clock.monotonic() + self._timeout_s
                    self._make_room(waits_until)
        return has_copies

    def _make_room(self, until: float) -> None:
        """Wait a moment for acknowledgements, which take records from the full queue."""
        if self._clock.monotonic() > until:
            raise KafkaTxnFailedError(
                f"the producer's queue was full for {self._timeout_s:g} s: brokers do not answer,"
                " or queue.buffering.max.kbytes is less than one record"
            )
        self._writer.poll(_ROOM_S)


def shared_properties(config: CheckerConfig, told: Told, batch: Batch) -> dict[str, Any]:
    """Return the properties of a producer that writes whole batches."""
    return {
        "queue.buffering.max.messages": _QUEUE_RECORDS_MAX,  # the user may override it
        **client_config(config),
        # The Java partitioner, so that Java and Python producers agree on keys.
        "partitioner": "murmur2_random",
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "error_cb": told.on_error,
        # All records of a batch are handed over at once, so waiting gains nothing.
        "linger.ms": 0,
        # A topic that is missing nevertheless was deleted, and is not worth the default of 30 s.
        "topic.metadata.propagation.max.ms": _MISSING_MS_MAX,
        **_BATCHES[batch],
    }


def failed(
    failure: KafkaFailure,
    *,
    topic: str = "",
    fenced: bool = False,
    is_vague: bool = False,
    places: Iterable[Place] = (),
) -> KafkaTxnFailedError:
    """Return the error of a batch that failed; the arguments are those of the error."""
    text = failure.text
    return KafkaTxnFailedError(
        text, failure, topic=topic, fenced=fenced, is_vague=is_vague, places=places
    )
