"""The sink's writing side of Kafka: half messages and decisions.

Clients are kept for the life of a process: Spark uses its Python workers again, batch after batch.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from halfbridge.serde.acknowledgements import Acknowledgements
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.spark_jobs.sink.clients.kafka_io import (
    INFERRED,
    actor_name,
    admin_for,
    made,
    producer_settings,
    text_of,
)
from halfbridge.spark_jobs.sink.cluster.kafka_io import half_shape, settings_of, topics_of
from halfbridge.spark_jobs.sink.errors import (
    CommitInDoubtError,
    RowError,
    SendError,
    SinkSetupError,
)
from halfbridge.spark_jobs.sink.kept import CLIENTS_MAX, Kept
from halfbridge.spark_jobs.sink.real_topic import ANY_BYTES, RealTopic
from halfbridge.spark_jobs.sink.sender.decision import decision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfbridge.serde.headers import Headers
    from halfbridge.serde.records import ManifestTransaction
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.rows import Row

_MS_PER_S = 1_000
_ROOM_S = 0.1
_PURGE_S = 1.0
_POLL_EVERY = 256
_FAILED_BEFORE = "the Kafka client has failed before"


class Sender:
    """One idempotent producer, and what it knows of the cluster. Not thread-safe.

    Attributes:
        shape: The half topic as it was when this was made.
        is_outdated: A row was refused by that: the next attempt is to read it anew.

    Raises:
        SinkSetupError: half and op topic are not as they must be, or no broker answers.
        SinkOptionError: the Kafka client does not take a property.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._names = options.names
        self._half = options.names.half
        self._admin = admin_for(options)
        self.shape = half_shape(self._admin, options)
        self._kafka = made(
            Producer,
            producer_settings(options, message_bytes_max=self.shape.record_bytes_max),
        )
        self._acknowledgements = Acknowledgements()
        self._real_topics: dict[str, RealTopic] = {}
        self._sent = 0
        self.is_outdated = False
        self._actor = actor_name()

    @property
    def is_broken(self) -> bool:
        """Tell whether the client refuses all further work."""
        return self._kafka is None

    def not_proven(self, record: Any) -> Any:
        """Return why an acknowledgement proves nothing; None where it does."""
        place = record.topic(), record.partition(), record.offset()
        return None if self._acknowledgements.is_proven(*place) else INFERRED

    def real_topic(self, topic: str, partition: int) -> RealTopic:
        """Return what a real topic is like; asked once, also for later attempts.

        Raises:
            RowError: the topic is internal, or has no such partition.
            SinkSetupError: the topic does not exist.
        """
        known = self._real_topics.get(topic)
        if known is None or partition >= known.partitions:
            known = self._ask_about(topic)
            if partition >= known.partitions:
                raise RowError(
                    f"topic {topic} has no partition {partition}; it has {known.partitions}"
                )
        return known

    def check_row(self, row: Row) -> None:
        """Check that a row's real topic takes it.

        Raises:
            RowError: it would not, as the topic is now.
        """
        topic, partition, *_ = row
        # An operator may have done what an earlier refusal advised.
        if self.real_topic(topic, partition).refusal(row) and (
            refused := self._ask_about(topic).refusal(row)
        ):
            raise RowError(refused)

    def send(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        headers: Headers,
    ) -> None:
        """Hand a half record to Kafka, waiting for room in the queue.

        Raises:
            SendError: no room came in time, or the client takes no more.
        """
        try:
            self._kafka.produce(
                self._half, value, key, partition, on_delivery=on_delivery, headers=headers
            )
        except (AttributeError, BufferError, KafkaException):  # no client, no room, or broken
            self._produce(self._half, value, key, partition, on_delivery, headers=headers)
        self._sent += 1
        if self._sent % _POLL_EVERY == 0:
            self._serve(0, self._kafka.poll)

    def decide(
        self,
        kind: OpKind,
        rounds: Iterable[Iterable[ManifestTransaction]],
        *,
        producer_group: str,
        source: OpSource = OpSource.PRODUCER,
        reason: str = "",
        timeout_s: float,
    ) -> dict[int, int]:
        """Write decisions round by round; each is proven to be stored before the next begins.

        Returns:
            Half partition -> offset of its last decision in the op topic.

        Args:
            kind: What is decided, of all of them.
            rounds: Of transactions.
            producer_group: Of the half messages.
            source: Who decides.
            reason: Why, for those who read the log.
            timeout_s: Longest wait for a round.

        Raises:
            CommitInDoubtError: not all were acknowledged; of the rounds after that one nothing
                was written.
        """
        failed: list[Any] = []
        last: dict[int, int] = {}

        def written(error: Any, record: Any) -> None:
            error = error or self.not_proven(record)
            if error is not None:
                failed.append(error)
            else:
                partition, offset = record.partition(), record.offset()
                last[partition] = max(last.get(partition, offset), offset)

        for transactions in rounds:
            try:
                for each in transactions:
                    op = decision(
                        kind, each, producer_group, source, actor=self._actor, reason=reason
                    )
                    key, partition = each.transaction_id.encode(), each.half_partition
                    self._produce(self._names.op, op, key, partition, written, headers=None)
                self.flush(timeout_s)
            except SendError as error:
                raise CommitInDoubtError(f"decisions were not acknowledged: {error}") from error
            if failed:
                self._discard()
                raise CommitInDoubtError(f"decisions were not acknowledged: {text_of(failed[0])}")
        return last

    def flush(self, timeout_s: float) -> None:
        """Return once every record is acknowledged or has failed, as its callback tells.

        Raises:
            SendError: that did not happen in time; what is left is given up.
        """
        if self._kafka is None:
            raise SendError(_FAILED_BEFORE)
        left = self._serve(timeout_s, self._kafka.flush)
        if left:
            self._discard()
            raise SendError(f"{left} records were not acknowledged in {timeout_s:g} s")

    def give_up(self) -> None:
        """Drop what is not sent yet; the client is of no more use."""
        self._discard()

    def _ask_about(self, topic: str) -> RealTopic:
        if self._names.is_internal(topic):
            raise RowError(f"topic {topic} is internal and can never be a real topic")
        known = topics_of(self._admin)
        if topic not in known:
            raise SinkSetupError(f"no topic {topic} (or no right to see it); create it first")
        settings = settings_of(self._admin, topic)
        self._real_topics[topic] = RealTopic(
            known[topic][0],
            int(settings.get("max.message.bytes", ANY_BYTES)),
            "compact" in settings.get("cleanup.policy", ""),
        )
        return self._real_topics[topic]

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        *,
        headers: Headers | None,
    ) -> None:
        if self._kafka is None:
            raise SendError(_FAILED_BEFORE)
        try:
            try:
                self._kafka.produce(
                    topic, value, key, partition, on_delivery=on_delivery, headers=headers
                )
            except BufferError:
                self._produce_with_patience(topic, value, key, partition, on_delivery, headers)
        except KafkaException as error:
            self._discard()
            raise SendError(f"the Kafka client takes no record: {text_of(error)}") from error

    def _produce_with_patience(self, *arguments: Any) -> None:
        """Repeat produce while the queue is full, serving acknowledgements."""
        *rest, on_delivery, headers = arguments
        deadline = monotonic() + self._options.send_timeout_ms / _MS_PER_S
        while monotonic() < deadline:
            self._serve(_ROOM_S, self._kafka.poll)
            with suppress(BufferError):
                self._kafka.produce(*rest, on_delivery=on_delivery, headers=headers)
                return
        self._discard()
        raise SendError("the send queue stayed full: the brokers do not answer")

    def _serve(self, seconds: float, call: Callable[[float], int]) -> int:
        """Serve acknowledgements by the client's `poll` or `flush`, and return what that does.

        Raises:
            SendError: the client has met a fatal error; it is given up.
        """
        try:
            return call(seconds)
        except (KafkaException, SystemError) as error:  # the latter is how it tells a fatal one
            self._discard()
            raise SendError(f"the Kafka client failed: {text_of(error)}") from error

    def _discard(self) -> None:
        kafka, self._kafka = self._kafka, None
        if kafka is not None:
            with suppress(KafkaException, SystemError):
                kafka.purge()
                kafka.flush(_PURGE_S)


_SENDERS: Kept[Sender] = Kept(CLIENTS_MAX)
# One of them for all that is sent to a cluster; others share it only by chance.
_DECIDING = tuple(Lock() for _ in range(CLIENTS_MAX))


def decide(options: SinkOptions, *decision: Any, **more: Any) -> dict[int, int]:
    """Decide by this process's Sender, as `Sender.decide`.

    Several threads of a responder may call it. One waits for the other, and has a client of its
    own where the other's has failed.
    """
    with _DECIDING[hash(options.client_key()) % len(_DECIDING)]:
        return sender_for(options).decide(*decision, **more)


def new_attempts_sender(options: SinkOptions) -> Sender:
    """Return sender_for(options), which reads limits anew that have refused a row.

    An operator may have raised them since, and Spark's Python workers outlive a query.

    Raises: as Sender.
    """
    sender = _SENDERS.get(options.client_key())
    if sender is not None and sender.is_outdated:
        _SENDERS.drop(options.client_key())
    return sender_for(options)


def sender_for(options: SinkOptions) -> Sender:
    """Return this process's Sender for the options, a new one if the last has failed.

    Raises: as Sender.
    """
    key = options.client_key()
    sender = _SENDERS.get(key)
    if sender is None or sender.is_broken:
        sender = _SENDERS.put(key, Sender(options))
    return sender
