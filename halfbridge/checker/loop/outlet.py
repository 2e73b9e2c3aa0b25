"""A transactional producer of the daemon, which writes one kafka_txn after the other.

Each guard against a trap of Kafka's protocol names the trap.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.loop.batch_writer import (
    FLUSH_S,
    STALL_S,
    BatchWriter,
    failed,
    shared_properties,
)
from halfbridge.checker.loop.blame import Batch
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.told import Told
from halfbridge.kafka.errors import (
    MEMBER_FENCED,
    PERMANENT,
    PRODUCER_FENCED,
    Code,
    KafkaFailure,
)
from halfbridge.kafka.ports import TransactionalWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.kafka.ports import Ports

# A commit that took longer may have been sent twice, and the second request may end a later
# kafka_txn of the same producer (KAFKA-17754). So the producer is replaced before its next
# kafka_txn.
SLOW_COMMIT_S = 5.0
# A commit of unknown outcome is repeated for this many kafka_txn time-outs. By then the broker has
# ended the kafka_txn, and the committed offsets tell a new producer how.
COMMIT_RETRIES_MAX = 3
_FENCED = MEMBER_FENCED | PRODUCER_FENCED
# What a kafka_txn fails with where a record is invalid for another reason than its time.
_OF_INVALID_RECORDS = frozenset((Code.INVALID_RECORD, Code.STATE))


class Transactor(BatchWriter[TransactionalWriter]):
    """One transactional producer; lives as long as there is a reference to it.

    Args:
        config: The daemon's settings.
        transactional_id: The transactional id.
        ports: Kafka and the clock are used.
        batch: How much is sent to a partition at once; also an attribute.
        transactional_id: Also an attribute.
    """

    def __init__(
        self,
        config: CheckerConfig,
        transactional_id: str,
        *,
        ports: Ports,
        batch: Batch = Batch.USUAL,
    ) -> None:
        told = Told()
        writer = ports.kafka.transactional_writer(
            {
                **shared_properties(config, told, batch),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": config.kafka_txn_timeout_ms,
            },
            on_lost=told.on_lost,
        )
        super().__init__(writer, told, timeout_ms=config.kafka_txn_timeout_ms, clock=ports.clock)
        self.transactional_id = transactional_id
        self.batch = batch

    def start(self, timeout_s: float | None = None) -> None:
        """Take over the transactional id, which aborts an open kafka_txn of a dead predecessor.

        Args:
            timeout_s: Longest wait, seconds; None: that of other requests.

        Raises:
            KafkaTxnFailedError: not possible now; try again.
        """
        try:
            self._writer.init(self._timeout_s if timeout_s is None else timeout_s)
        except KafkaFailure as failure:
            raise failed(failure) from failure
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
        self._told.begin()
        try:
            self._writer.begin()
            if self._produce(records):
                # Copies may be stored above the returned offsets, where no rebuild would read them.
                self._prove()
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
        return self._told.copies_end

    def commit(self, offsets: Sequence[tuple[str, int, int, str]], membership: object) -> None:
        """Commit the written records together with `offsets`.

        Args:
            offsets: (topic, partition, offset, metadata).
            membership: From `Input`.

        Raises:
            KafkaTxnFailedError: the kafka_txn failed, or its outcome is unknown.
        """
        began = self._clock.monotonic()
        try:
            self._send_offsets(offsets, membership)
            self._prove()
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
        self._commit(began)

    def _send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], membership: object
    ) -> None:
        self._sending_since = self._clock.monotonic()
        try:
            self._writer.send_offsets(offsets, membership, min(STALL_S, self._timeout_s))
        finally:
            self._sending_since = None

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
                    raise failed(failure) from failure
                raise self._aborted(failure) from failure
            self._writer.poll(0)  # serves the remaining error callbacks
            self.names_places = False  # the markers of this kafka_txn may not be written yet
            if in_doubt or self._clock.monotonic() - began > SLOW_COMMIT_S:
                self._told.worn = True
            return
        raise KafkaTxnFailedError("the commit's outcome stays unknown")

    def _aborted(self, cause: KafkaFailure) -> KafkaTxnFailedError:
        """Abort if that is possible, and return the error to raise.

        A record may be refused while later records of the kafka_txn are still handed over. The
        client then refuses the later records (STATE), and names neither the reason nor that an
        abort is required. Both are in the acknowledgement of the refused record.

        To send offsets is two requests. If a record is refused between the two, the client tells
        STATE as well (librdkafka's rd_kafka_txn_send_TxnOffsetCommitRequest). If several records
        of one batch have bad timestamps, the acknowledgement of each only says that the record is
        invalid. With STATE, nothing tells this case from a record that is invalid by itself.
        """
        requires_abort = cause.requires_abort
        if cause.code == Code.STATE:
            with suppress(KafkaFailure):
                self._writer.poll(FLUSH_S)
            requires_abort = self._told.refused is not None
        if requires_abort and not cause.is_fatal and not self._told.away:
            # The next producer of this id would abort too; without one, readers would wait longer.
            # Where a partition is away, the abort would wait for its marker.
            with suppress(KafkaFailure):
                self._writer.abort(self._timeout_s)
        named, topic = self._told.refused or (cause, "")
        is_another = named.code == Code.INVALID_RECORD and cause.code not in _OF_INVALID_RECORDS
        if named.code not in PERMANENT or cause.code == Code.INVALID_TIMESTAMP or is_another:
            named, topic = cause, ""
        is_vague = named.code == Code.INVALID_RECORD and cause.code == Code.STATE
        return failed(
            named,
            topic=topic,
            fenced=cause.code in _FENCED,
            is_vague=is_vague,
            places=self._places(),
        )
