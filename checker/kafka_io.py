"""The daemon's door to Kafka: input consumer, transactional producers, questions to the brokers.

Everything here is thin and decides nothing beyond one thing: what an error means
(`FailureKind`). Guards against traps of the protocol stand where they are needed, with the trap
named.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from checker.errors import SlotTakenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from checker.config import CheckerConfig
    from checker.publish import Outgoing
    from checker.slots import SlotIds

EOF_CODE = KafkaError._PARTITION_EOF
# One question to a broker; longer means that it is not there, and the loop tries again.
QUESTION_S = 10.0
# Records handed over by one call: one large fetch; bounds what is parsed before the next plan.
FETCH_MAX = 10_000
# A commit that took so long may have been sent twice, and the late one may end a later kafka_txn
# of the same producer (KAFKA-17754): the producer is replaced before its next one.
SLOW_COMMIT_S = 5.0
# A commit of unknown outcome is retried for this many kafka_txn timeouts; by then the broker has
# settled it, and a new producer finds out how.
COMMIT_RETRIES_MAX = 3

# What a broker refuses for good, whatever is tried again.
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
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
    )
)
TOPIC_CODES = frozenset((KafkaError.TOPIC_AUTHORIZATION_FAILED,))
_FENCED_CODES = frozenset((KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED))


class FailureKind(Enum):
    """What must happen after a failed kafka_txn. The ledgers are dropped in every case."""

    ABORTED = "aborted: read again from the committed offsets"
    FENCED = "another producer took the id over, or the broker timed the kafka_txn out"
    REPLACE = "outcome unknown or producer unusable: replace the producers first"


class KafkaTxnFailedError(Exception):
    """A kafka_txn did not happen, or may have happened.

    Attributes:
        kind: What must happen now.
        code: The error code of Kafka, of a single record where one is known.
        topic: Topic of that record; empty when not known.
        permanent: The broker refuses something in the batch for good.
    """

    def __init__(self, kind: FailureKind, error: KafkaError, *, topic: str = "") -> None:
        super().__init__(error.str())
        self.kind = kind
        self.code = error.code()
        self.topic = topic
        self.permanent = error.code() in PERMANENT_CODES


class InputLostError(Exception):
    """consume() failed: records may be gone that it had taken; read again from the offsets."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset; negative when there is none."""

    offset: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """The end of a partition (read_uncommitted), for whoever asked with `token`."""

    topic: str
    partition: int
    token: int
    end: int


def client_config(config: CheckerConfig) -> dict[str, Any]:
    """Return what all clients of one worker share; the user's own properties included."""
    return {
        **config.kafka,
        "bootstrap.servers": config.bootstrap_servers,
        "allow.auto.create.topics": False,
        # With the default of 100 ms, back-to-back kafka_txns wait 8 times longer.
        "retry.backoff.ms": 1,
        "log_level": 3,
    }


class Input:
    """Consumer of half and op topics.

    Nothing is read on assignment: `assigned` says which partitions are ours, and `read_from`
    starts them once their committed offsets were checked.

    Attributes:
        assigned: (topic, partition) pairs of the current generation.
        changed: The assignment changed since the caller last cleared this.
        group_metadata: Taken in the assignment callback and kept until the next one. Before the
            first join it would carry no generation, and the broker would fence nobody.
    """

    def __init__(
        self, config: CheckerConfig, ids: SlotIds, on_error: Callable[[str], None]
    ) -> None:
        self.assigned: frozenset[tuple[str, int]] = frozenset()
        self.changed = False
        self.group_metadata: Any = None
        self._fatal: KafkaError | None = None
        self._report = on_error
        self._consumer = Consumer(
            {
                **client_config(config),
                "group.id": config.names.daemon_group,
                "group.instance.id": ids.group_instance_id,
                "session.timeout.ms": config.session_timeout_ms,
                "heartbeat.interval.ms": max(100, min(1000, config.session_timeout_ms // 10)),
                "partition.assignment.strategy": "range",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "check.crcs": True,
                **FETCHING,
                "error_cb": self._on_error,
            }
        )
        self._consumer.subscribe(
            [config.names.half, config.names.op],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def fetch(self, wait_s: float) -> list[Any]:
        """Return what has been fetched, waiting `wait_s` for the first record.

        Raises:
            InputLostError: read again from the committed offsets.
            SlotTakenError: another worker runs on this slot.
        """
        try:
            first = self._consumer.poll(wait_s)
            if first is None:
                messages: list[Any] = []
            else:
                # consume() alone would wait for all it may return, or in slices of 200 ms.
                messages = [first, *self._consumer.consume(FETCH_MAX, 0)]
        except KafkaException as error:
            self._raise_if_fenced(error.args[0])
            raise InputLostError(str(error)) from error
        if self._fatal is not None:
            self._raise_if_fenced(self._fatal)
            raise InputLostError(self._fatal.str())
        return messages

    def committed(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Committed]:
        """Return the committed offsets of the given partitions, stable ones only.

        Raises:
            InputLostError: the coordinator did not answer.
        """
        places = [TopicPartition(topic, partition) for topic, partition in wanted]
        try:
            answered: list[Any] = self._consumer.committed(places, timeout=QUESTION_S)
        except KafkaException as error:
            raise InputLostError(str(error)) from error
        for one in answered:
            if one.error is not None:
                raise InputLostError(str(one.error))
        return {(one.topic, one.partition): Committed(one.offset, one.metadata) for one in answered}

    def read_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Read exactly these partitions, from these offsets."""
        self._consumer.assign(
            [TopicPartition(topic, partition, at) for (topic, partition), at in offsets.items()]
        )

    def pause(self, topic: str, partition: int) -> None:
        """Stop fetching a partition; what was fetched is dropped and fetched again later."""
        self._consumer.pause([TopicPartition(topic, partition)])

    def resume(self, topic: str, partition: int) -> None:
        """Go on fetching a partition."""
        self._consumer.resume([TopicPartition(topic, partition)])

    def close(self, *, leave: bool) -> None:
        """Close; a static member leaves its group only by unsubscribing first."""
        if leave:
            self._consumer.unsubscribe()
            deadline = monotonic() + 1.0
            while self.assigned and monotonic() < deadline:
                self._consumer.poll(0.1)
        self._consumer.close()

    # Callbacks run inside poll() and consume(). One that raised would make the client throw away
    # the records it had taken, so they only take note.

    def _on_assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        try:
            self.assigned = frozenset((one.topic, one.partition) for one in partitions)
            self.group_metadata = consumer.consumer_group_metadata()
            consumer.assign([])
        except Exception as error:  # noqa: BLE001 (see above)
            self._report(f"assignment failed: {error}")
        self.changed = True

    def _on_revoke(self, consumer: Any, _partitions: Sequence[Any]) -> None:
        try:
            self.assigned = frozenset()
            consumer.unassign()
        except Exception as error:  # noqa: BLE001 (see above)
            self._report(f"revocation failed: {error}")
        self.changed = True

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in _FENCED_CODES:
            self._fatal = error
        self._report(error.str())

    @staticmethod
    def _raise_if_fenced(error: KafkaError) -> None:
        fenced = error.code() in _FENCED_CODES or "fenced" in error.str().lower()
        if fenced:
            raise SlotTakenError(
                f"another worker runs on this slot and took its partitions over ({error.str()}):"
                " stop one of the two, or give each its own --slot"
            )


# Large minimum, short wait: with one byte every record is a fetch of its own, and the broker
# runs out of CPU (docs/benchmarks.md).
FETCHING = {
    "fetch.min.bytes": 1_000_000,
    "fetch.wait.max.ms": 3,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 5,
    "max.partition.fetch.bytes": 2_097_152,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16_384,
}


class Transactor:
    """One transactional producer.

    Attributes:
        worn: Its next kafka_txn must not begin: replace it.
    """

    def __init__(self, config: CheckerConfig, transactional_id: str) -> None:
        self.worn = False
        self._timeout_s = config.kafka_txn_timeout_ms / 1000
        self._copies_end: dict[int, int] = {}
        self._refused: tuple[KafkaError, str] | None = None
        self._producer = Producer(
            {
                **client_config(config),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": config.kafka_txn_timeout_ms,
                # The Java partitioner, so that Java and Python producers agree on keys.
                "partitioner": "murmur2_random",
                # The broker judges sizes, topic by topic.
                "message.max.bytes": 1_000_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "linger.ms": 2,
            }
        )

    def start(self) -> None:
        """Take the transactional id over; a dead predecessor's kafka_txn is aborted by it.

        Raises:
            KafkaTxnFailedError: not now; try again.
        """
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            raise KafkaTxnFailedError(FailureKind.REPLACE, error.args[0]) from error

    def run(
        self,
        records: Iterable[Outgoing],
        offsets: Callable[[Mapping[int, int]], Sequence[tuple[str, int, int, str]]],
        group_metadata: Any,
        *,
        watched: bool,
    ) -> None:
        """Write `records` and commit offsets in one kafka_txn.

        Args:
            records: What to write, in order.
            offsets: Called once all copies have their offsets (half partition -> highest offset
                plus one); returns (topic, partition, offset, metadata).
            group_metadata: From `Input`.
            watched: Find out which record a broker refuses; costs a callback a record.

        Raises:
            KafkaTxnFailedError: it did not happen, or may have happened; see its kind.
        """
        self._copies_end, self._refused = {}, None
        began = monotonic()
        try:
            self._producer.begin_transaction()
            has_copies = self._produce(records, watched=watched)
            if has_copies:
                self._producer.flush(self._timeout_s)
            positions = [
                TopicPartition(topic, partition, offset, text)
                for topic, partition, offset, text in offsets(self._copies_end)
            ]
            self._producer.send_offsets_to_transaction(positions, group_metadata, self._timeout_s)
        except KafkaException as error:
            raise self._failed(error) from error
        self._commit(began)

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
                if in_doubt and not error.args[0].txn_requires_abort():
                    raise KafkaTxnFailedError(FailureKind.REPLACE, error.args[0]) from error
                raise self._failed(error) from error
            self.worn = in_doubt or monotonic() - began > SLOW_COMMIT_S
            return
        unknown = KafkaError(KafkaError._TIMED_OUT, "the commit's outcome stays unknown")
        raise KafkaTxnFailedError(FailureKind.REPLACE, unknown)

    def _produce(self, records: Iterable[Outgoing], *, watched: bool) -> bool:
        produce = self._producer.produce
        has_copies = False
        for record in records:
            callback = self._on_delivery if watched else None
            if record.is_copy:
                callback, has_copies = self._on_copy, True
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
                    self._producer.poll(0.05)
        return has_copies

    def close(self) -> None:
        """Let go of the producer without waiting for anything."""
        self._producer.purge()
        self._producer.poll(0)

    def _failed(self, error: KafkaException) -> KafkaTxnFailedError:
        """Abort where that is possible, and say what must happen next."""
        cause: KafkaError = error.args[0]
        kind = FailureKind.REPLACE
        if cause.txn_requires_abort() and not cause.fatal():
            try:
                self._producer.abort_transaction(self._timeout_s)
                kind = FailureKind.ABORTED
            except KafkaException:
                kind = FailureKind.REPLACE
        if cause.code() in _FENCED_CODES or cause.code() == KafkaError.INVALID_PRODUCER_EPOCH:
            kind = FailureKind.FENCED
        named, topic = self._refused or (cause, "")
        if named.code() not in PERMANENT_CODES:
            named, topic = cause, ""
        return KafkaTxnFailedError(kind, named, topic=topic)

    def _on_copy(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            partition = message.partition()
            end = message.offset() + 1
            self._copies_end[partition] = max(end, self._copies_end.get(partition, 0))
        else:
            self._on_delivery(error, message)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and (self._refused is None or error.code() in PERMANENT_CODES):
            self._refused = (error, message.topic() or "")


class CheckSender:
    """Sends check requests, outside any kafka_txn: a lost one is simply asked again."""

    def __init__(self, config: CheckerConfig, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._producer = Producer(
            {
                **client_config(config),
                "enable.idempotence": True,
                "message.timeout.ms": 5000,
                "message.max.bytes": 1_000_000_000,
                "linger.ms": 5,
                "queue.buffering.max.messages": 20_000,
                "on_delivery": self._on_delivery,
            }
        )

    def send(self, record: Outgoing) -> bool:
        """Send without waiting; False when there is no room now."""
        try:
            self._producer.produce(record.topic, record.value, record.key, headers=record.headers)
        except (BufferError, KafkaException):
            return False
        return True

    def serve(self) -> None:
        """Serve delivery reports."""
        self._producer.poll(0)

    def close(self) -> None:
        """Let go without waiting."""
        self._producer.purge()
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and error.code() not in (
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
        ):
            self._on_error(f"check request to {message.topic()}: {error.str()}")


class Questions:
    """Asks brokers without holding up the loop; answers are fetched by `answers`."""

    def __init__(self, config: CheckerConfig) -> None:
        self._admin = AdminClient(client_config(config))
        self._answers: queue.SimpleQueue[EndAnswer | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: set[tuple[str, int]] = set()

    def ask_end(self, topic: str, partition: int, token: int) -> None:
        """Ask where a partition ends, read_uncommitted (the LSO would lie while a put-back is
        open); one question a partition at a time.
        """  # noqa: D205
        with self._lock:
            if (topic, partition) in self._open:
                return
            self._open.add((topic, partition))
        where = TopicPartition(topic, partition)
        futures = self._admin.list_offsets(
            {where: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=QUESTION_S,
        )

        def note(future: Any) -> None:
            with self._lock:
                self._open.discard((topic, partition))
            if future.exception() is None:
                self._answers.put(EndAnswer(topic, partition, token, future.result().offset))

        futures[where].add_done_callback(note)

    def answers(self) -> Iterable[EndAnswer]:
        """Yield the answers that have come."""
        while not self._answers.empty():
            answer = self._answers.get()
            if answer is not None:
                yield answer

    def ranges(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return log start and end (read_uncommitted) of each partition; blocks.

        Raises:
            InputLostError: a broker did not answer.
        """
        places = [TopicPartition(topic, partition) for topic, partition in wanted]
        firsts = self._offsets(places, OffsetSpec.earliest())
        ends = self._offsets(places, OffsetSpec.latest())
        return {place: (first, ends[place]) for place, first in firsts.items()}

    def _offsets(self, places: Sequence[Any], spec: Any) -> dict[tuple[str, int], int]:
        futures = self._admin.list_offsets(
            dict.fromkeys(places, spec),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=QUESTION_S,
        )
        try:
            return {
                (place.topic, place.partition): future.result(QUESTION_S).offset
                for place, future in futures.items()
            }
        except (KafkaException, TimeoutError) as error:
            raise InputLostError(f"log ends cannot be read: {error}") from error

    def partitions(self) -> dict[str, int]:
        """Return topic -> number of partitions, of all topics this daemon may see; blocks.

        Raises:
            InputLostError: no broker answered.
        """
        try:
            topics = self._admin.list_topics(timeout=QUESTION_S).topics
        except KafkaException as error:
            raise InputLostError(str(error)) from error
        return {name: len(one.partitions) for name, one in topics.items() if one.error is None}


class BodyReader:
    """Reads half records again by offset, for bodies that the ledger let go."""

    def __init__(self, config: CheckerConfig) -> None:
        self._topic = config.names.half
        self._consumer = Consumer(
            {
                **client_config(config),
                "group.id": f"{config.names.daemon_group}-bodies",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 4096,
                "fetch.wait.max.ms": 10,
            }
        )

    def read(self, partition: int, offsets: Iterable[int]) -> dict[int, Any]:
        """Return the records at `offsets`, by offset.

        Raises:
            InputLostError: one cannot be read (deleted, or no broker).
        """
        found: dict[int, Any] = {}
        position = OFFSET_BEGINNING
        for offset in sorted(set(offsets)):
            if not position <= offset < position + SKIP_MAX:
                self._consumer.assign([TopicPartition(self._topic, partition, offset)])
            found[offset] = self._read_one(partition, offset)
            position = offset + 1
        self._consumer.unassign()
        return found

    def _read_one(self, partition: int, offset: int) -> Any:
        deadline = monotonic() + QUESTION_S
        while monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                raise InputLostError(f"{self._topic}[{partition}]@{offset}: {message.error()}")
            if message.offset() == offset:
                return message
            if message.offset() > offset:
                break
        raise InputLostError(f"{self._topic}[{partition}]@{offset} cannot be read again")

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


# Records read over rather than fetched anew: about one fetch of 1 KB records.
SKIP_MAX = 1000
