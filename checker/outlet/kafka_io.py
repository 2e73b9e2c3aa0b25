"""The transactional producers.

Guards against traps of the protocol stand where they are needed, with the trap named.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from halfbridge.bridge.kafka.connections import LISTENED, LostConnections
from halfbridge.bridge.kafka_io import INFERRED, made, not_proven
from halfbridge.checker.blame import Batch
from halfbridge.checker.clients import client_config
from halfbridge.checker.failures import KafkaTxnFailedError
from halfbridge.checker.intake.kafka_io import UNREACHABLE_CODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.publish import Outgoing

# A commit that took so long may have been sent twice, and the late one may end a later kafka_txn
# of the same producer (KAFKA-17754): the producer is replaced before its next one.
SLOW_COMMIT_S = 5.0
# A commit of unknown outcome is retried for this many kafka_txn timeouts; by then the broker has
# settled it, and a new producer finds out how.
COMMIT_RETRIES_MAX = 3
# How long after its time-out a call is believed to return after all.
HANG_GRACE_S = 1.0
_QUEUE_RECORDS_MAX = 1_000_000
# How late it is seen that a record was refused while others wait.
_FLUSH_S = 0.1
# What a broker refuses for good, whatever is tried again. Not that a topic or partition is unknown:
# so says a client whose topics have changed since it looked, and `Routes` finds out.
PERMANENT_CODES = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,
    )
)
TOO_LARGE_CODES = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
TOPIC_CODES = frozenset((KafkaError.TOPIC_AUTHORIZATION_FAILED,))
# Small ones pass most limits of topics, and all limits when each record goes alone.
_BATCHES: dict[Batch, dict[str, int]] = {
    Batch.USUAL: {},
    Batch.SMALL: {"batch.size": 32 * 1024},
    Batch.ONE_RECORD: {"batch.num.messages": 1},
}
_FENCED_CODES = frozenset(
    (KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
)


class _Told:
    """What its client told of a producer: the callbacks, which know nothing of the producer.

    The producer holds them. Were it held by them in turn, it would stay with its threads and
    connections when it is let go: a worker collects no such garbage (`GC_THRESHOLDS`).

    Attributes:
        worn: See `Transactor`.
        copies_end: Half partition -> highest offset of a copy in this kafka_txn plus one.
        refused: What was not stored in this kafka_txn, and its topic.
    """

    def __init__(self) -> None:
        self.worn = False
        self.copies_end: dict[int, int] = {}
        self.refused: tuple[KafkaError, str] | None = None

    def on_error(self, error: KafkaError) -> None:
        """Take an error of the client."""
        if error.code() in UNREACHABLE_CODES:
            self.worn = True

    def on_lost(self) -> None:
        """A request on the lost connection and its repetition on the next one may both arrive."""
        self.worn = True

    def on_copy(self, error: KafkaError | None, message: Any) -> None:
        """Take the outcome of a copy."""
        if (error or not_proven(message)) is None:
            partition = message.partition()
            end = message.offset() + 1
            self.copies_end[partition] = max(end, self.copies_end.get(partition, 0))
        else:
            self.on_delivery(error, message)

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Take the outcome of a record; one that can never be stored counts more than others."""
        error = error or not_proven(message)
        if error is not None and (self.refused is None or error.code() in PERMANENT_CODES):
            self.refused = (error, message.topic() or "")


class Transactor:
    """One transactional producer; lives as long as somebody refers to it.

    Args:
        config: The daemon's.
        transactional_id: Its id.
        batch: What is sent to a partition at once.
    """

    def __init__(
        self, config: CheckerConfig, transactional_id: str, *, batch: Batch = Batch.USUAL
    ) -> None:
        self._timeout_s = config.kafka_txn_timeout_ms / 1000
        self._sending_since: float | None = None
        self._told = _Told()
        self._producer = made(
            Producer,
            {
                "queue.buffering.max.messages": _QUEUE_RECORDS_MAX,  # the user may know better
                **client_config(config),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": config.kafka_txn_timeout_ms,
                # The Java partitioner, so that Java and Python producers agree on keys.
                "partitioner": "murmur2_random",
                # The broker judges sizes, topic by topic.
                "message.max.bytes": 1_000_000_000,
                "error_cb": self._told.on_error,
                # All records of a kafka_txn are handed over at once: there is nothing to wait for.
                "linger.ms": 0,
                # A topic is looked up before anything is written to it; one that is missing all
                # the same was deleted, and is not worth the 30 s that a new one is given.
                "topic.metadata.propagation.max.ms": 5000,
                **LISTENED,
                **_BATCHES[batch],
            },
            logger=LostConnections(self._told.on_lost),
        )

    def start(self) -> None:
        """Take the transactional id over; a dead predecessor's kafka_txn is aborted by it.

        Raises:
            KafkaTxnFailedError: not now; try again.
        """
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            raise _failure(error.args[0]) from error
        self._producer.poll(0)
        self._told.worn = False  # trouble before this epoch began is none of its

    def write(self, records: Iterable[Outgoing]) -> dict[int, int]:
        """Begin a kafka_txn and hand `records` over, in order.

        Args:
            records: What to write.

        Returns:
            Half partition -> highest offset of a copy plus one; a rebuild must read that far.

        Raises:
            KafkaTxnFailedError: it did not happen.
        """
        self._told.copies_end, self._told.refused = {}, None
        try:
            self._producer.begin_transaction()
            if self._produce(records):
                # Copies may stand above what is returned, where no rebuild would look for them.
                self._prove()
        except KafkaException as error:
            raise self._failed(error) from error
        return self._told.copies_end

    def commit(self, offsets: Sequence[tuple[str, int, int, str]], group_metadata: Any) -> None:
        """Commit what was written together with `offsets`.

        Args:
            offsets: (topic, partition, offset, metadata).
            group_metadata: From `Input`.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened.
        """
        began = monotonic()
        positions = [
            TopicPartition(topic, partition, offset, text)
            for topic, partition, offset, text in offsets
        ]
        try:
            self._send_offsets(positions, group_metadata)
            self._prove()
        except KafkaException as error:
            raise self._failed(error) from error
        self._commit(began)

    @property
    def worn(self) -> bool:
        """Whether its next kafka_txn must not begin: replace it.

        Late requests of the last one may be under way, and with the same epoch they would count
        for the next one (KAFKA-17754).
        """
        return self._told.worn

    @property
    def is_hung(self) -> bool:
        """Whether sending offsets takes longer than its time-out allows: it may never return."""
        since = self._sending_since
        return since is not None and monotonic() - since > self._timeout_s + HANG_GRACE_S

    def _send_offsets(self, positions: Sequence[Any], group_metadata: Any) -> None:
        self._sending_since = monotonic()
        try:
            self._producer.send_offsets_to_transaction(positions, group_metadata, self._timeout_s)
        finally:
            self._sending_since = None

    def _prove(self) -> None:
        """Wait until brokers have said of every record that it is stored, or of one that it is not.

        The client refuses to commit then; but what it infers of a record is enough for it.

        Raises:
            KafkaTxnFailedError: of one they have not.
            KafkaException: the client has failed.
        """
        until = monotonic() + self._timeout_s
        while left := self._producer.flush(_FLUSH_S):
            if self._told.refused is not None:
                break  # what is still queued behind a refused record is not even sent
            if monotonic() > until:
                raise KafkaTxnFailedError(f"{left} records were not acknowledged in time")
        refused = self._told.refused
        if refused is not None and refused[0] is INFERRED:
            raise _failure(INFERRED)

    def _commit(self, began: float) -> None:
        """Commit; after an unknown outcome only the commit is repeated, never an abort."""
        in_doubt = False
        for _ in range(COMMIT_RETRIES_MAX):
            try:
                self._producer.commit_transaction(self._timeout_s)
            except KafkaException as error:
                if error.args[0].retriable():
                    in_doubt = True
                    continue
                if in_doubt:
                    raise _failure(error.args[0]) from error
                raise self._failed(error) from error
            self._producer.poll(0)  # errors that are still to be told
            if in_doubt or monotonic() - began > SLOW_COMMIT_S:
                self._told.worn = True
            return
        raise KafkaTxnFailedError("the commit's outcome stays unknown")

    def _produce(self, records: Iterable[Outgoing]) -> bool:
        """Hand the records over; tell whether there are copies among them."""
        produce = self._producer.produce
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
                        on_delivery=callback,
                        timestamp=record.timestamp_ms,
                        headers=record.headers,
                    )
                    break
                except BufferError:
                    waits_until = waits_until or monotonic() + self._timeout_s
                    self._make_room(waits_until)
        return has_copies

    def _make_room(self, until: float) -> None:
        """Wait a moment for acknowledgements, which take records from the full queue."""
        if monotonic() > until:
            raise KafkaTxnFailedError(
                f"the producer's queue was full for {self._timeout_s:g} s: brokers do not answer,"
                " or queue.buffering.max.kbytes is less than one record"
            )
        self._producer.poll(0.05)

    def close(self) -> None:
        """Let go of the producer without waiting for anything; it may be broken already."""
        with suppress(KafkaException):  # poll() repeats a fatal error, which is why it is let go
            self._producer.purge()
            self._producer.poll(0)

    def _failed(self, error: KafkaException) -> KafkaTxnFailedError:
        """Abort where that is possible, and say what failed."""
        cause: KafkaError = error.args[0]
        if cause.txn_requires_abort() and not cause.fatal():
            # The next producer of this id would abort it too; should none come, readers wait less.
            with suppress(KafkaException):
                self._producer.abort_transaction(self._timeout_s)
        named, topic = self._told.refused or (cause, "")
        # Of a batch with several bad timestamps each record is said to be invalid, no more.
        if named.code() not in PERMANENT_CODES or cause.code() == KafkaError.INVALID_TIMESTAMP:
            named, topic = cause, ""
        return _failure(named, topic=topic, fenced=cause.code() in _FENCED_CODES)


def _failure(error: KafkaError, *, topic: str = "", fenced: bool = False) -> KafkaTxnFailedError:
    return KafkaTxnFailedError(
        error.str(),
        fenced=fenced,
        topic=topic,
        permanent=error.code() in PERMANENT_CODES,
        topic_refused=error.code() in TOPIC_CODES,
        untimely=error.code() == KafkaError.INVALID_TIMESTAMP,
        too_large=error.code() in TOO_LARGE_CODES,
    )
