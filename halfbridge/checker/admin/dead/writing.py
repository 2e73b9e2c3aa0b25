"""Writes resumed lives and marks in kafka_txns; fences an earlier command that did so."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.errors import AdminError, AdminRetriableError, AdminSetupError, InDoubtError
from halfbridge.checker.signatures import signed_half, signed_op
from halfbridge.kafka.errors import INFERRED, PRODUCER_FENCED, Code, KafkaFailure
from halfbridge.kafka.sending import Acknowledgements
from halfbridge.serde.avro import (
    ACTOR_BYTES_MAX,
    DEAD_MARK,
    OP,
    REASON_BYTES_MAX,
    DeadMark,
    MarkAction,
)
from halfbridge.serde.headers import DEAD_MARK as MARK_HEADER
from halfbridge.serde.limits import shortened
from halfbridge.serde.records import OpKind, OpSource, new_op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.dead.letters import LetterPosition
    from halfbridge.checker.admin.dead.plans import NewLife
    from halfbridge.kafka.ports import ClientError, SentRecord, TransactionalWriter
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.topics import TopicNames

# Size of one kafka_txn, which one transaction may exceed: readers of half, op and dead-letter
# partitions wait while it is open. Fewer records cost a commit more often. 4 MiB are four messages
# of Kafka's default largest size.
BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 4 * 1024 * 1024
# How long a command that was killed holds up these readers at most.
KAFKA_TXN_TIMEOUT_MS = 10_000
_CALL_S = 20.0  # twice KAFKA_TXN_TIMEOUT_MS: by then brokers have aborted what was left open
# Most calls for a commit of unknown outcome, a minute in all, as in the daemon
# (outlet.COMMIT_RETRIES_MAX); then the next command finds out.
_COMMITS_MAX = 3
_BARRIER = b"halfbridge: where the dead-letter topic ended; aborted"


class DeadWriter:
    """A transactional writer of lives and marks. Not thread-safe."""

    def __init__(self, cluster: Cluster, names: TopicNames, *, actor: str, reason: str) -> None:
        self._clock, self._names = cluster.ports.clock, names
        self._signatures = cluster.signatures
        # With an id of 3,000 bytes the op must still fit into OP_BYTES_MAX.
        self._actor = shortened(actor, ACTOR_BYTES_MAX)
        self._reason = shortened(reason, REASON_BYTES_MAX)
        self._acknowledgements = Acknowledgements(cluster.ports.run.current)
        self._refused: KafkaFailure | None = None
        self._ends: dict[tuple[str, int], int] = {}
        self._writer: TransactionalWriter = cluster.transactional_writer(
            {
                "transactional.id": names.dead_letters_id,
                "transaction.timeout.ms": KAFKA_TXN_TIMEOUT_MS,
                "partitioner": "murmur2_random",
                "message.max.bytes": 1_000_000_000,  # the brokers judge sizes, topic by topic
                "linger.ms": 0,
            }
        )

    def fence_out_earlier(self, partitions: Iterable[int]) -> dict[int, int]:
        """End what another command has open, keep it from writing again, and prove where logs end.

        Returns partition of the dead-letter topic -> offset below which all marks of other commands
        are.

        Raises:
            AdminError: the brokers refuse, or do not answer; nothing was written; the operator runs
                the command again.
        """
        places = list(partitions)
        try:
            self._writer.init(_CALL_S)
            self._begin()
            for partition in places:
                self._produce(self._names.dead, partition, None, _BARRIER, [])
            self._settle()
            self._writer.abort(_CALL_S)
        except KafkaFailure as failure:
            raise self._error("take over from other commands", failure) from failure
        return {partition: self._ends[self._names.dead, partition] for partition in places}

    def write(self, lives: Sequence[NewLife]) -> None:
        """Write lives, their COMMITs and the marks of their letters, in one kafka_txn.

        After an AdminError nothing was written, or the outcome is not known; the operator may
        repeat the command.
        """
        self._in_kafka_txn(lambda: self._write_lives(lives))

    def purge(self, letters: Iterable[tuple[LetterPosition, str]]) -> None:
        """Mark letters, given with their transaction ids, as given up; raises as `write`."""
        every = list(letters)

        def write() -> None:
            for place, transaction_id in every:
                self._mark(place, transaction_id, MarkAction.PURGED, -1)

        self._in_kafka_txn(write)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _write_lives(self, lives: Sequence[NewLife]) -> None:
        for life in lives:
            for half in life.halves:
                key, value = half.body.key, half.body.value
                headers = signed_half(
                    self._signatures,
                    half.metadata.producer_group,
                    life.key.partition,
                    half.headers,
                    key=key,
                    value=value,
                    now_ms=self._clock.time_ms(),
                )
                self._produce(self._names.half, life.key.partition, key, value, headers)
        self._settle()  # an op names an offset at or above that of its last half message
        for life in lives:
            if life.action is MarkAction.REDELIVERED:
                self._commit_op(life, self._ends[self._names.half, life.key.partition])
            for place in life.marked:
                self._mark(place, life.key.transaction_id, life.action, life.resume_count)

    def _commit_op(self, life: NewLife, half_offset: int) -> None:
        op = new_op(
            transaction_id=life.key.transaction_id,
            timestamp=self._clock.time_ms(),
            half_offset=half_offset,
            resume_count=life.resume_count,
            producer_group=life.key.producer_group,
            kind=OpKind.COMMIT,
            message_count=life.message_count,
            source=OpSource.OPERATOR,
            actor=self._actor,
            reason=self._reason,
        )
        key, value = life.key.transaction_id.encode(), OP.encode(op)
        headers = signed_op(
            self._signatures,
            life.key.producer_group,
            life.key.partition,
            key=key,
            value=value,
            now_ms=op.timestamp,
        )
        self._produce(self._names.op, life.key.partition, key, value, headers)

    def _mark(
        self, place: LetterPosition, transaction_id: str, action: MarkAction, resume_count: int
    ) -> None:
        mark = DeadMark(
            transaction_id=transaction_id,
            timestamp=self._clock.time_ms(),
            action=action,
            letter_offset=place.offset,
            resume_count=resume_count,
            actor=self._actor,
            reason=self._reason,
        )
        headers: Headers = [(MARK_HEADER, DEAD_MARK.encode(mark))]
        self._produce(self._names.dead, place.partition, transaction_id.encode(), None, headers)

    def _in_kafka_txn(self, write: Callable[[], None]) -> None:
        try:
            self._begin()
            write()
            self._settle()
        except (KafkaFailure, AdminError) as failure:
            with suppress(KafkaFailure):
                self._writer.purge()
                self._writer.abort(_CALL_S)
            if isinstance(failure, AdminError):
                raise
            raise self._error("write", failure) from failure
        self._commit()

    def _begin(self) -> None:
        self._refused = None
        self._ends.clear()
        self._writer.begin()

    def _commit(self) -> None:
        for attempt in range(_COMMITS_MAX):
            try:
                self._writer.commit(_CALL_S)
            except KafkaFailure as failure:
                if failure.requires_abort:
                    with suppress(KafkaFailure):
                        self._writer.abort(_CALL_S)
                    raise self._error("commit", failure) from failure
                # Only the commit may follow one of unknown outcome.
                if failure.is_retriable and attempt < _COMMITS_MAX - 1:
                    continue
                raise InDoubtError(
                    f"{self._error('commit', failure)}. Whether the last kafka_txn was committed is"
                    " not known here; the same command finds its marks if so"
                ) from failure
            return

    def _produce(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        try:
            self._writer.produce(topic, value, key, partition, self._on_delivery, 0, headers)
        except BufferError as error:  # the user's queue.buffering.max.* are smaller than a batch
            raise KafkaFailure(Code.QUEUE_FULL) from error

    def _settle(self) -> None:
        """Wait until all is stored; raise KafkaFailure if something is not known to be stored."""
        left = self._writer.flush(_CALL_S)
        if self._refused is not None:
            raise self._refused
        if left:
            raise KafkaFailure(Code.TIMED_OUT, f"{left} records not acknowledged")

    def _on_delivery(self, error: ClientError | None, record: SentRecord) -> None:
        failure, offset = self._acknowledgements.failure(error, record), record.offset()
        if failure is not None or offset is None:
            self._refused = self._refused or failure or INFERRED
            return
        place = record.topic(), record.partition()
        self._ends[place] = max(self._ends.get(place, -1), offset)

    def _error(self, action: str, failure: KafkaFailure) -> AdminError:
        if failure.code in PRODUCER_FENCED:
            return AdminRetriableError(
                f"cannot {action}: another operator's command took over (transactional id"
                f" {self._names.dead_letters_id}); its work is marked, so run this again"
                " when it has ended"
            )
        return AdminSetupError(
            f"cannot {action}: {failure}; committed work is marked, so the same command may be"
            " run again. Check that the brokers run, and the rights to write to half, op and"
            f" dead-letter topic and to the transactional id {self._names.dead_letters_id}"
        )
