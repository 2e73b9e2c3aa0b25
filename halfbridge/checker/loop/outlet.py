"""A transactional producer of the daemon, which writes one kafka_txn after the other.

Each guard against a trap of Kafka's protocol names the trap.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from halfbridge.checker.loop.blame import SendSize
from halfbridge.checker.loop.clients import client_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import (
    AWAY,
    INFERRED,
    MEMBER_FENCED,
    PERMANENT,
    PRODUCER_FENCED,
    PURGED,
    UNREACHABLE,
    Code,
    KafkaFailure,
)
from halfbridge.kafka.ports import TransactionalWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.publish import Outgoing
    from halfbridge.kafka.ports import ClientError, Clock, Ports, SentRecord, TopicPartition, Writer

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
AnyWriter = TypeVar("AnyWriter", bound="Writer")
# How long after its time-out a call may still return: librdkafka looks for requests that timed out
# once a second. All pairs wait meanwhile.
HANG_GRACE_S = 1.0
# 200 times the records of a batch as configured (batch_records_max 5,000), so the queue is not what
# limits a batch. A full queue is waited for (`_make_room`).
_QUEUE_RECORDS_MAX = 1_000_000
# Interval at which a full queue is tried again, and the time-out is checked. Acknowledgements come
# within milliseconds.
_ROOM_S = 0.05
# The largest value that the client library takes: the broker checks sizes, by each topic's limit.
MESSAGE_BYTES_MAX = 1_000_000_000
# A sixth of the client library's default: the daemon has looked the topic up before.
_MISSING_MS_MAX = 5_000
# Most partitions that one error names: it stays a line.
SHOWN_MAX = 5
# How late a refused record is noticed while other records wait or are handed over.
FLUSH_S = 0.1
# A batch of which no record was acknowledged for this time fails: one of its partitions is away,
# and all pairs of the worker wait for it. The broker of a real disk answers within a second.
STALL_S = 5.0
# The same while a partition is tried that was away a moment ago: all pairs wait for each try, and a
# broker that is back answers within a second.
TRY_S = 1.5


class BatchWriter(Generic[AnyWriter]):
    """Hands batches of records to a producer, and proves that brokers have stored them.

    The writer is made with `shared_properties`; `reports` takes the reports of its client.

    Attributes:
        names_places: Whether a partition that does not acknowledge is to blame for it. If it is
            not, the producer's last kafka_txn may not have ended yet: then brokers take no record
            of the next one, for any partition.
    """

    def __init__(
        self, writer: AnyWriter, reports: DeliveryReports, *, timeout_ms: int, clock: Clock
    ) -> None:
        self._writer = writer
        self._reports = reports
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._sending_since: float | None = None
        self._stall_s = STALL_S
        self.names_places = True

    def must_be_replaced(self) -> bool:
        """Tell whether late requests could apply to the producer's next kafka_txn (KAFKA-17754).

        Asks the client first: nothing has polled it since its last kafka_txn, which may be hours
        ago. A client that has lost the group's coordinator meanwhile still has it in its cache, and
        would hang when it sends offsets.
        """
        with suppress(KafkaFailure):  # the next call meets it too
            self._writer.poll(0)
        return self._reports.must_be_replaced

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

        The client's own check before a commit accepts inferred acknowledgements.

        Raises:
            KafkaTxnFailedError: a record is not confirmed; the loop replaces the producer, and
                reads again from the committed offsets.
            KafkaFailure: the client has failed; the caller turns it into KafkaTxnFailedError.
        """
        began = moved = self._clock.monotonic()
        before = -1
        while left := self._writer.flush(FLUSH_S):
            if self._reports.refused is not None:
                break  # records in the queue after a refused record are never sent
            now = self._clock.monotonic()
            moved, before = (moved if left == before else now), left
            if now - moved > self._stall_s or now - began > self._timeout_s:
                raise self._stalled(left)
        refused = self._reports.refused
        if refused is not None and refused[0] is INFERRED:
            raise failed(INFERRED)
        if refused is not None and refused[0].code in AWAY:
            raise failed(refused[0], places=self._places())

    def _stalled(self, left: int) -> KafkaTxnFailedError:
        """Give up unacknowledged records, and return the error that names their partitions."""
        self._reports.is_given_up = True
        with suppress(KafkaFailure):
            self._writer.purge()
            self._writer.flush(FLUSH_S)
        places = self._places()
        names = ", ".join(f"{topic}[{number}]" for topic, number in sorted(places)[:SHOWN_MAX])
        where = f": {names}" if names else ""
        return KafkaTxnFailedError(
            f"{left} records were not acknowledged in time{where}", places=places
        )

    def _places(self) -> frozenset[TopicPartition]:
        is_clear = self.names_places or self._reports.has_stored
        return frozenset(self._reports.away) if is_clear else frozenset()

    def _produce(self, records: Iterable[Outgoing]) -> bool:
        """Hand over the records; tell whether there are copies among them."""
        produce = self._writer.produce
        on_delivery = self._reports.on_delivery
        has_copies = False
        for record in records:
            callback = on_delivery
            if record.is_copy:
                callback, has_copies = self._reports.on_copy, True
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
        if self._clock.monotonic() > until:
            raise KafkaTxnFailedError(
                f"the producer's queue was full for {self._timeout_s:g} s: brokers do not answer,"
                " or queue.buffering.max.kbytes is less than one record"
            )
        self._writer.poll(_ROOM_S)


class Transactor(BatchWriter[TransactionalWriter]):
    """One transactional producer; lives as long as there is a reference to it."""

    def __init__(
        self,
        config: CheckerConfig,
        transactional_id: str,
        *,
        ports: Ports,
        send_size: SendSize = SendSize.USUAL,
    ) -> None:
        reports = DeliveryReports()
        writer = ports.kafka.transactional_writer(
            {
                **shared_properties(config, reports, send_size),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": config.kafka_txn_timeout_ms,
            },
            on_lost=reports.on_lost,
        )
        super().__init__(writer, reports, timeout_ms=config.kafka_txn_timeout_ms, clock=ports.clock)
        self.transactional_id = transactional_id
        self.send_size = send_size

    def start(self, timeout_s: float | None = None) -> None:
        """Take over the id, which aborts its open kafka_txn. KafkaTxnFailedError: try again."""
        try:
            self._writer.init(self._timeout_s if timeout_s is None else timeout_s)
        except KafkaFailure as failure:
            raise failed(failure) from failure
        self._writer.poll(0)
        self._reports.must_be_replaced = False  # earlier trouble does not affect the new epoch

    def write(self, records: Iterable[Outgoing], stall_s: float = STALL_S) -> dict[int, int]:
        """Begin a kafka_txn and hand `records` over, in order.

        `stall_s`, the longest time without any acknowledgement, holds for `commit` too. Return half
        partition -> highest offset of a copy plus one; a rebuild must read that far.

        Raises KafkaTxnFailedError: it failed; the worker replaces its producers and repeats.
        """
        self._reports.begin()
        self._stall_s = stall_s
        try:
            self._writer.begin()
            if self._produce(records):
                # Copies may be stored above the returned offsets, where no rebuild would read them.
                self._prove()
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
        return self._reports.copies_end

    def commit(self, offsets: Sequence[tuple[str, int, int, str]], membership: object) -> None:
        """Commit the records and `offsets`.

        Raises KafkaTxnFailedError: failed, or outcome unknown; the worker replaces its producers
        and repeats.
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
                self._reports.must_be_replaced = True
            return
        raise KafkaTxnFailedError("the commit's outcome stays unknown")

    def _aborted(self, cause: KafkaFailure) -> KafkaTxnFailedError:
        """Abort if that is possible, and return the error to raise.

        If a record is refused while later records are handed over, the client refuses those
        (STATE). The reason, and that an abort is required, are only in the acknowledgement of the
        refused record.

        To send offsets is two requests. If a record is refused between the two, the client tells
        STATE as well (librdkafka's rd_kafka_txn_send_TxnOffsetCommitRequest). If several records of
        one batch have bad timestamps, their acknowledgements say only that the record is invalid.
        With STATE, nothing tells this case from a record that is invalid by itself.
        """
        requires_abort = cause.requires_abort
        if cause.code == Code.STATE:
            with suppress(KafkaFailure):
                self._writer.poll(FLUSH_S)
            requires_abort = self._reports.refused is not None
        if requires_abort and not cause.is_fatal and not self._reports.away:
            # The next producer of this id would abort too; without one, readers would wait longer.
            # Where a partition is away, the abort would wait for its marker.
            with suppress(KafkaFailure):
                self._writer.abort(self._timeout_s)
        named, topic = self._reports.refused or (cause, "")
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


# Small batches pass most topics' limits. ONE_RECORD sends each record alone.
_SEND_SIZES: dict[SendSize, dict[str, int]] = {
    SendSize.USUAL: {},
    SendSize.SMALL: {"batch.size": 32 * 1024},
    SendSize.ONE_RECORD: {"batch.num.messages": 1},
}


def shared_properties(
    config: CheckerConfig, reports: DeliveryReports, send_size: SendSize
) -> dict[str, Any]:
    """Return the properties of a producer that writes whole batches."""
    return {
        "queue.buffering.max.messages": _QUEUE_RECORDS_MAX,  # the user may override it
        **client_config(config),
        # The Java partitioner, so that Java and Python producers agree on keys.
        "partitioner": "murmur2_random",
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "error_cb": reports.on_error,
        # All records of a batch are handed over at once, so waiting gains nothing.
        "linger.ms": 0,
        # A topic that is missing nevertheless was deleted, and is not worth the default of 30 s.
        "topic.metadata.propagation.max.ms": _MISSING_MS_MAX,
        **_SEND_SIZES[send_size],
    }


def failed(
    failure: KafkaFailure,
    *,
    topic: str = "",
    fenced: bool = False,
    is_vague: bool = False,
    places: Iterable[TopicPartition] = (),
) -> KafkaTxnFailedError:
    """Return the error of a batch that failed."""
    text = failure.text
    return KafkaTxnFailedError(
        text, failure, topic=topic, fenced=fenced, is_vague=is_vague, places=places
    )


class DeliveryReports:
    """The reports of a producer's client, and the callbacks that take them.

    The callbacks hold no reference to the producer: such a cycle would keep a dropped producer,
    with its threads and connections, because a worker hardly collects cycles (`GC_THRESHOLDS`).

    Attributes:
        copies_end: Half partition -> highest offset of a copy in this kafka_txn plus one.
        refused: The failure of a record of this kafka_txn, and the record's topic.
        has_stored: Brokers have confirmed a record of this kafka_txn.
        away: Partitions that did not take a record of this kafka_txn, and may take it later.
        is_given_up: Records that are not acknowledged are purged: their partitions are away.
    """

    def __init__(self) -> None:
        self.must_be_replaced = False
        self.copies_end: dict[int, int] = {}
        self.refused: tuple[KafkaFailure, str] | None = None
        self.has_stored = False
        self.away: set[TopicPartition] = set()
        self.is_given_up = False

    def begin(self) -> None:
        """Forget the reports of the batch before."""
        self.copies_end, self.refused = {}, None
        self.has_stored, self.away, self.is_given_up = False, set(), False

    def on_error(self, error: ClientError) -> None:
        """Take an error of the client."""
        if failure_of(error).code in UNREACHABLE:
            self.must_be_replaced = True

    def on_lost(self) -> None:
        """Note a lost connection: a request on it, and its repetition, may both arrive."""
        self.must_be_replaced = True

    def on_copy(self, error: ClientError | None, record: SentRecord) -> None:
        """Take the result of a copy."""
        offset = record.offset()
        if error is None and offset is not None:
            partition = record.partition()
            self.copies_end[partition] = max(offset + 1, self.copies_end.get(partition, 0))
            self.has_stored = True
        else:
            self.on_delivery(error, record)

    def on_delivery(self, error: ClientError | None, record: SentRecord) -> None:
        """Take the outcome of a record; one that can never be stored counts more than others.

        A record without an offset is not known to be stored (`INFERRED`). A record that is merely
        called invalid, perhaps one of several with bad timestamps, does not replace another
        refusal. Example: `beta` refuses a size, then `alpha` two timestamps: `alpha` must not be
        blamed for the size.
        """
        if error is None and record.offset() is not None:
            self.has_stored = True
            return
        failure = INFERRED if error is None else failure_of(error)
        is_purged = self.is_given_up and failure.code in PURGED
        if error is not None and (failure.code in AWAY or is_purged) and record.partition() >= 0:
            self.away.add((record.topic(), record.partition()))
        before = None if self.refused is None else self.refused[0].code
        is_vague = failure.code == Code.INVALID_RECORD and before in PERMANENT
        if before is None or (failure.code in PERMANENT and not is_vague):
            self.refused = (failure, record.topic() or "")
