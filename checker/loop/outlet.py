"""A transactional producer of the daemon, which writes one kafka_txn after the other.

Each guard against a trap of Kafka's protocol names the trap.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.failure import (
    INFERRED,
    MEMBER_FENCED,
    PERMANENT,
    PRODUCER_FENCED,
    Code,
    KafkaFailure,
)
from halfbridge.checker.loop.blame import Batch
from halfbridge.checker.loop.clients import client_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.told import Told

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.bridge.ports import Ports
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing

# A commit that took longer may have been sent twice, and the second request may end a later
# kafka_txn of the same producer (KAFKA-17754). So the producer is replaced before its next
# kafka_txn.
SLOW_COMMIT_S = 5.0
# A commit of unknown outcome is repeated for this many kafka_txn time-outs. By then the broker has
# ended the kafka_txn, and the committed offsets tell a new producer how.
COMMIT_RETRIES_MAX = 3
# How long after its time-out a call may still return.
HANG_GRACE_S = 1.0
_QUEUE_RECORDS_MAX = 1_000_000
# How late a refused record is noticed while other records wait or are handed over.
_FLUSH_S = 0.1
# Small batches pass most topics' limits. ONE_RECORD sends each record alone.
_BATCHES: dict[Batch, dict[str, int]] = {
    Batch.USUAL: {},
    Batch.SMALL: {"batch.size": 32 * 1024},
    Batch.ONE_RECORD: {"batch.num.messages": 1},
}
_FENCED = MEMBER_FENCED | PRODUCER_FENCED
# What a kafka_txn fails with where a record is invalid for another reason than its time.
_OF_INVALID_RECORDS = frozenset((Code.INVALID_RECORD, Code.STATE))


class Transactor:
    """One transactional producer; lives as long as there is a reference to it.

    Args:
        config: The daemon's settings.
        transactional_id: The transactional id.
        ports: Kafka and the clock are used.
        batch: How much is sent to a partition at once.
    """

    def __init__(
        self,
        config: CheckerConfig,
        transactional_id: str,
        *,
        ports: Ports,
        batch: Batch = Batch.USUAL,
    ) -> None:
        self._clock = ports.clock
        self._timeout_s = config.kafka_txn_timeout_ms / 1000
        self._sending_since: float | None = None
        self._told = Told()
        self._is_proven = False
        self._writer = ports.kafka.transactional_writer(
            {
                **shared_properties(config, self._told, batch),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": config.kafka_txn_timeout_ms,
            },
            on_lost=self._told.on_lost,
        )

    def start(self) -> None:
        """Take over the transactional id, which aborts an open kafka_txn of a dead predecessor.

        Raises:
            KafkaTxnFailedError: not possible now; try again.
        """
        try:
            self._writer.init(self._timeout_s)
        except KafkaFailure as failure:
            raise _failed(failure) from failure
        self._writer.poll(0)
        self._told.worn = False  # earlier trouble does not affect the new epoch

    def write(self, records: Iterable[Outgoing]) -> dict[int, int]:
        """Begin a kafka_txn and hand `records` over, in order.

        Args:
            records: The records to write.

        Returns:
            Half partition -> highest offset of a copy plus one; a rebuild must read that far.

        Raises:
            KafkaTxnFailedError: the kafka_txn failed.
        """
        self._told.copies_end, self._told.refused = {}, None
        self._is_proven = False
        try:
            self._writer.begin()
            if self._produce(records):
                # Copies may be stored above the returned offsets, where no rebuild would read them.
                self._prove()
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
        return self._told.copies_end

    def commit(
        self,
        offsets: Sequence[tuple[str, int, int, str]],
        membership: object,
        *,
        proves_first: bool = False,
    ) -> None:
        """Commit the written records together with `offsets`.

        Args:
            offsets: (topic, partition, offset, metadata).
            membership: From `Input`.
            proves_first: Prove the records before the offsets are sent, so that another kafka_txn
                can be written sooner; costs this one a millisecond.

        Raises:
            KafkaTxnFailedError: the kafka_txn failed, or its outcome is unknown.
        """
        began = self._clock.monotonic()
        try:
            if proves_first:
                self._prove()
                self._is_proven = True
            self._send_offsets(offsets, membership)
            self._prove()
            self._is_proven = True
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
        self._commit(began)

    def abandon(self) -> None:
        """Abort the written kafka_txn; the producer is replaced before its next one."""
        self._told.worn = True  # should the abort fail, the new producer's epoch ends the kafka_txn
        with suppress(KafkaFailure):
            self._writer.abort(self._timeout_s)

    @property
    def is_proven(self) -> bool:
        """Whether brokers have confirmed every record of the kafka_txn. Thread-safe."""
        return self._is_proven

    @property
    def worn(self) -> bool:
        """Whether this producer must be replaced before its next kafka_txn.

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

    def _send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], membership: object
    ) -> None:
        self._sending_since = self._clock.monotonic()
        try:
            self._writer.send_offsets(offsets, membership, self._timeout_s)
        finally:
            self._sending_since = None

    def _prove(self) -> None:
        """Wait until brokers have confirmed every record, or have refused one.

        The client's own check before a commit is weaker, because it accepts inferred
        acknowledgements.

        Raises:
            KafkaTxnFailedError: a record is not confirmed.
            KafkaFailure: the client has failed.
        """
        until = self._clock.monotonic() + self._timeout_s
        while left := self._writer.flush(_FLUSH_S):
            if self._told.refused is not None:
                break  # records in the queue behind a refused record are never sent
            if self._clock.monotonic() > until:
                raise KafkaTxnFailedError(f"{left} records were not acknowledged in time")
        refused = self._told.refused
        if refused is not None and refused[0] is INFERRED:
            raise _failed(INFERRED)

    def _commit(self, began: float) -> None:
        """Commit; after an unknown outcome the commit is repeated, and never aborted."""
        in_doubt = False
        for _ in range(COMMIT_RETRIES_MAX):
            try:
                self._writer.commit(self._timeout_s)
            except KafkaFailure as failure:
                if failure.is_retriable:
                    in_doubt = True
                    continue
                if in_doubt:
                    raise _failed(failure) from failure
                raise self._aborted(failure) from failure
            self._writer.poll(0)  # serves the remaining error callbacks
            if in_doubt or self._clock.monotonic() - began > SLOW_COMMIT_S:
                self._told.worn = True
            return
        raise KafkaTxnFailedError("the commit's outcome stays unknown")

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
        self._writer.poll(0.05)

    def close(self) -> None:
        """Drop the producer, which may be broken, without waiting."""
        self._writer.close()

    def _aborted(self, cause: KafkaFailure) -> KafkaTxnFailedError:
        """Abort if that is possible, and return the error to raise.

        A record may be refused while later records of the kafka_txn are still handed over. The
        client then refuses the later records (STATE), and names neither the reason nor that an
        abort is required. Both are in the acknowledgement of the refused record.
        """
        requires_abort = cause.requires_abort
        if cause.code == Code.STATE:
            with suppress(KafkaFailure):
                self._writer.poll(_FLUSH_S)
            requires_abort = self._told.refused is not None
        if requires_abort and not cause.is_fatal:
            # The next producer of this id would abort too; without one, readers would wait longer.
            with suppress(KafkaFailure):
                self._writer.abort(self._timeout_s)
        named, topic = self._told.refused or (cause, "")
        # In a batch with several refused timestamps, each record is only reported as invalid.
        is_vague = named.code == Code.INVALID_RECORD and cause.code not in _OF_INVALID_RECORDS
        if named.code not in PERMANENT or cause.code == Code.INVALID_TIMESTAMP or is_vague:
            named, topic = cause, ""
        return _failed(named, topic=topic, fenced=cause.code in _FENCED)


def shared_properties(config: CheckerConfig, told: Told, batch: Batch) -> dict[str, Any]:
    """Return the properties of a producer that writes whole batches."""
    return {
        "queue.buffering.max.messages": _QUEUE_RECORDS_MAX,  # the user may override it
        **client_config(config),
        # The Java partitioner, so that Java and Python producers agree on keys.
        "partitioner": "murmur2_random",
        # The broker checks sizes, by the limit of each topic.
        "message.max.bytes": 1_000_000_000,
        "error_cb": told.on_error,
        # All records of a batch are handed over at once, so waiting gains nothing.
        "linger.ms": 0,
        # A topic is looked up before anything is written to it. A topic that is missing
        # nevertheless was deleted, and is not worth the default of 30 s.
        "topic.metadata.propagation.max.ms": 5000,
        **_BATCHES[batch],
    }


def _failed(failure: KafkaFailure, *, topic: str = "", fenced: bool = False) -> KafkaTxnFailedError:
    return KafkaTxnFailedError(failure.text, failure, topic=topic, fenced=fenced)
