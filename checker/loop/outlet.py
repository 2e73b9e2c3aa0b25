"""A transactional producer of the daemon, which writes one kafka_txn after the other.

Guards against traps of the protocol stand where they are needed, with the trap named.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

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

# A commit that took so long may have been sent twice, and the late one may end a later kafka_txn
# of the same producer (KAFKA-17754): the producer is replaced before its next one.
SLOW_COMMIT_S = 5.0
# A commit of unknown outcome is retried for this many kafka_txn timeouts; by then the broker has
# settled it, and a new producer finds out how.
COMMIT_RETRIES_MAX = 3
# How long after its time-out a call is believed to return after all.
HANG_GRACE_S = 1.0
_QUEUE_RECORDS_MAX = 1_000_000
# How late it is seen that a record was refused while others wait, or are handed over.
_FLUSH_S = 0.1
# Small ones pass most limits of topics, and all limits when each record goes alone.
_BATCHES: dict[Batch, dict[str, int]] = {
    Batch.USUAL: {},
    Batch.SMALL: {"batch.size": 32 * 1024},
    Batch.ONE_RECORD: {"batch.num.messages": 1},
}
_FENCED = MEMBER_FENCED | PRODUCER_FENCED


class Transactor:
    """One transactional producer; lives as long as somebody refers to it.

    Args:
        config: The daemon's.
        transactional_id: Its id.
        ports: Of which Kafka and the clock are used.
        batch: What is sent to a partition at once.
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
        self._writer = ports.kafka.transactional_writer(
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
                **_BATCHES[batch],
            },
            on_lost=self._told.on_lost,
        )

    def start(self) -> None:
        """Take the transactional id over; a dead predecessor's kafka_txn is aborted by it.

        Raises:
            KafkaTxnFailedError: not now; try again.
        """
        try:
            self._writer.init(self._timeout_s)
        except KafkaFailure as failure:
            raise _failed(failure) from failure
        self._writer.poll(0)
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
            self._writer.begin()
            if self._produce(records):
                # Copies may stand above what is returned, where no rebuild would look for them.
                self._prove()
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
        return self._told.copies_end

    def commit(self, offsets: Sequence[tuple[str, int, int, str]], membership: object) -> None:
        """Commit what was written together with `offsets`.

        Args:
            offsets: (topic, partition, offset, metadata).
            membership: From `Input`.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened.
        """
        began = self._clock.monotonic()
        try:
            self._send_offsets(offsets, membership)
            self._prove()
        except KafkaFailure as failure:
            raise self._aborted(failure) from failure
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
        """Wait until brokers have said of every record that it is stored, or of one that it is not.

        The client refuses to commit then; but what it infers of a record is enough for it.

        Raises:
            KafkaTxnFailedError: of one they have not.
            KafkaFailure: the client has failed.
        """
        until = self._clock.monotonic() + self._timeout_s
        while left := self._writer.flush(_FLUSH_S):
            if self._told.refused is not None:
                break  # what is still queued behind a refused record is not even sent
            if self._clock.monotonic() > until:
                raise KafkaTxnFailedError(f"{left} records were not acknowledged in time")
        refused = self._told.refused
        if refused is not None and refused[0] is INFERRED:
            raise _failed(INFERRED)

    def _commit(self, began: float) -> None:
        """Commit; after an unknown outcome only the commit is repeated, never an abort."""
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
            self._writer.poll(0)  # errors that are still to be told
            if in_doubt or self._clock.monotonic() - began > SLOW_COMMIT_S:
                self._told.worn = True
            return
        raise KafkaTxnFailedError("the commit's outcome stays unknown")

    def _produce(self, records: Iterable[Outgoing]) -> bool:
        """Hand the records over; tell whether there are copies among them."""
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
        """Let go of the producer without waiting for anything; it may be broken already."""
        with suppress(KafkaFailure):  # poll() repeats a fatal error, which is why it is let go
            self._writer.purge()
            self._writer.poll(0)

    def _aborted(self, cause: KafkaFailure) -> KafkaTxnFailedError:
        """Abort where that is possible, and return what failed.

        A record may be refused while later records of the kafka_txn are still handed over. The
        client then takes none of these (STATE), and names neither a reason nor that an abort is
        required: the acknowledgement of the refused record does.
        """
        requires_abort = cause.requires_abort
        if cause.code == Code.STATE:
            with suppress(KafkaFailure):
                self._writer.poll(_FLUSH_S)
            requires_abort = self._told.refused is not None
        if requires_abort and not cause.is_fatal:
            # The next producer of this id would abort it too; should none come, readers wait less.
            with suppress(KafkaFailure):
                self._writer.abort(self._timeout_s)
        named, topic = self._told.refused or (cause, "")
        # Of a batch with several bad timestamps each record is said to be invalid, no more.
        if named.code not in PERMANENT or cause.code == Code.INVALID_TIMESTAMP:
            named, topic = cause, ""
        return _failed(named, topic=topic, fenced=cause.code in _FENCED)


def _failed(failure: KafkaFailure, *, topic: str = "", fenced: bool = False) -> KafkaTxnFailedError:
    return KafkaTxnFailedError(failure.text, failure, topic=topic, fenced=fenced)
