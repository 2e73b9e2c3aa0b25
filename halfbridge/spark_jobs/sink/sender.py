"""Writes the sink's records by an idempotent writer that leaves no gap.

Sends half messages, and checks rows against their real topics.

Sends the decisions: ops that commit or roll back the transactions of task attempts.

Signs what the sink writes, with the key file of the process that writes.

The option `key.file` is a path. So the path travels in plans and to executors, and keys do not:
each process reads its own file, once for each task attempt and each call that decides. A key that
is added to the file is used from the next attempt on, without a restart of the query.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.acknowledgements import Acknowledgements
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import INFERRED, KafkaFailure
from halfbridge.kafka.signatures import client_signer
from halfbridge.serde.avro import OP
from halfbridge.serde.records import OpSource, new_op
from halfbridge.spark_jobs.sink.clients import MS_PER_S, NO_ANSWER, NONE, new_topics, new_writer
from halfbridge.spark_jobs.sink.errors import (
    CommitInDoubtError,
    RowError,
    SendError,
    SinkOptionError,
    SinkSetupError,
    failing_as,
)
from halfbridge.spark_jobs.sink.rows import ANY_BYTES, RealTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.kafka.ports import Ports, Writer
    from halfbridge.kafka.signatures import ClientSigner
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.manifest import ManifestTransaction
    from halfbridge.serde.records import OpKind
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.rows import Row

# How long to wait for room in the queue before the next try.
_ROOM_S = 0.1
# The client reports purged records at once, because no broker is asked.
_PURGE_S = 1.0
# Sends between two polls, so that not every row costs a call.
_POLL_EVERY = 256
_FAILED_BEFORE = "the Kafka client has failed before"


class Sender:
    """One writer, until it fails. Not thread-safe.

    Args:
        options: The sink's options.
        ports: Makes the clients.
        defaults: Properties of the writer that the query may override.
        changes: Properties of the writer that the query may not set.

    Attributes:
        shape: The half topic's shape when this sender was made.

    Raises:
        SinkSetupError: half or op topic is missing or has the wrong shape, or no broker answers.
        SinkOptionError: the Kafka client refuses a property.
    """

    def __init__(
        self,
        options: SinkOptions,
        ports: Ports,
        *,
        defaults: Mapping[str, Any] = NONE,
        changes: Mapping[str, Any] = NONE,
    ) -> None:
        self.names = options.names
        self._room_timeout_s = options.send_timeout_ms / MS_PER_S
        self._now = ports.clock.monotonic
        self._topics = new_topics(options, ports)
        with failing_as(SinkSetupError, NO_ANSWER):
            self.shape = self._topics.half_shape()
        self._writer: Writer | None = new_writer(
            options,
            ports,
            message_bytes_max=self.shape.record_bytes_max,
            defaults=defaults,
            changes=changes,
        )
        self._acknowledgements = Acknowledgements(ports.run.current)
        self._sent = 0

    @property
    def is_broken(self) -> bool:
        """Tell whether the client refuses all further work."""
        return self._writer is None

    def failure(self, error: Any, record: Any) -> KafkaFailure | None:
        """Return why a record is not proven to be stored; None if a broker has confirmed it.

        Args:
            error: The acknowledgement's error.
            record: The record that was acknowledged.
        """
        if error is not None:
            return failure_of(error)
        place = record.topic(), record.partition(), record.offset()
        return None if self._acknowledgements.is_proven(*place) else INFERRED

    def send(  # noqa: PLR0917  (once a row: keywords cost)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        headers: Headers | None = None,
    ) -> None:
        """Hand a record to Kafka, waiting for room in the queue.

        Raises:
            SendError: there was no room in time, or the client takes no more records.
        """
        writer = self._writer
        if writer is None:
            raise SendError(_FAILED_BEFORE)
        try:
            try:
                writer.produce(topic, value, key, partition, on_delivery, 0, headers)
            except BufferError:
                record = (topic, value, key, partition, on_delivery, 0, headers)
                self._send_when_there_is_room(writer, record)
        except KafkaFailure as failure:
            raise self._failed("takes no record", failure) from failure
        self._sent += 1
        if self._sent % _POLL_EVERY == 0:
            self._serve(writer.poll, 0)

    def flush(self, timeout_s: float) -> None:
        """Return once every record is acknowledged or has failed; callbacks get the results.

        Raises:
            SendError: some records are not acknowledged in time, and are given up.
        """
        if self._writer is None:
            raise SendError(_FAILED_BEFORE)
        left = self._serve(self._writer.flush, timeout_s)
        if left:
            self.give_up()
            raise SendError(f"{left} records were not acknowledged in {timeout_s:g} s")

    def give_up(self) -> None:
        """Drop unsent records; the client cannot be used any more."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(KafkaFailure):
                writer.purge()
                writer.flush(_PURGE_S)
            writer.close()

    def _send_when_there_is_room(self, writer: Writer, record: tuple[Any, ...]) -> None:
        deadline = self._now() + self._room_timeout_s
        while self._now() < deadline:
            self._serve(writer.poll, _ROOM_S)
            with suppress(BufferError):
                writer.produce(*record)
                return
        self.give_up()
        raise SendError("the send queue stayed full: the brokers do not answer")

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Serve acknowledgements by the writer's `poll` or `flush`, and return its result."""
        try:
            return call(seconds)
        except KafkaFailure as failure:
            raise self._failed("failed", failure) from failure

    def _failed(self, what: str, failure: KafkaFailure) -> SendError:
        self.give_up()
        return SendError(f"the Kafka client {what}: {failure}")


# A task continues to send meanwhile, so that batches become larger.
_LINGER_MS = 20


class HalfSender(Sender):
    """Sends half messages of task attempts, one attempt after the other.

    Attributes:
        is_outdated: A row was refused by the topics' limits as this sender read them: the next
            attempt must read the limits again.
    """

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        super().__init__(options, ports, defaults={"linger.ms": _LINGER_MS})
        self._real_topics: dict[str, RealTopic] = {}
        self.is_outdated = False

    def real_topic(self, topic: str, partition: int) -> RealTopic:
        """Return a real topic's shape; looked up once, for later attempts too.

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
            RowError: the topic refuses the row, by its present settings.
        """
        topic, partition, *_ = row
        # Before a refusal, the topic is looked up again: an operator may have raised its limit.
        if self.real_topic(topic, partition).refusal(row) and (
            refused := self._ask_about(topic).refusal(row)
        ):
            raise RowError(refused)

    def _ask_about(self, topic: str) -> RealTopic:
        if self.names.is_internal(topic):
            raise RowError(f"topic {topic} is internal and can never be a real topic")
        with failing_as(SinkSetupError, NO_ANSWER):
            seen = self._topics.seen().get(topic)
            settings = self._topics.settings(topic) if seen else {}
        if seen is None:
            text = f"no topic {topic} (or no right to see it); create it first"
            raise SinkSetupError(text, topics=(topic,))
        known = self._real_topics[topic] = RealTopic(
            seen.partitions,
            int(settings.get("max.message.bytes", ANY_BYTES)),
            "compact" in settings.get("cleanup.policy", ""),
        )
        return known


_NOT_DECIDED = "decisions were not acknowledged"


class Decider(Sender):
    """Writes decisions in rounds: each round waits for the one before.

    Args:
        options: The sink's options.
        ports: Makes the clients.
        actor: This process's name in decisions, for people.

    Attributes:
        turn: A lock, for several threads that decide.
    """

    def __init__(self, options: SinkOptions, ports: Ports, *, actor: str) -> None:
        super().__init__(options, ports, changes={"linger.ms": 0})
        self._options = options
        self._actor = actor
        self._time_ms = ports.clock.time_ms
        self.turn = ports.run.waker()

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
        """Write decisions in rounds; a round is proven to be stored before the next one begins.

        Returns:
            Half partition -> offset of its last decision in the op topic.

        Args:
            kind: The decision, the same for all transactions.
            rounds: Rounds of transactions.
            producer_group: Producer group of the half messages.
            source: Who decides.
            reason: Why, for people who read the log.
            timeout_s: Longest wait for a round.

        Raises:
            CommitInDoubtError: not all decisions of a round were acknowledged; later rounds were
                not written.
            SinkOptionError: the key file cannot be used here; the rounds that are left were not
                written.
        """
        signer = read_signer(self._options, producer_group, self._time_ms())
        failures: list[KafkaFailure] = []
        last: dict[int, int] = {}

        def written(error: Any, record: Any) -> None:
            failure = self.failure(error, record)
            if failure is not None:
                failures.append(failure)
            else:
                partition, offset = record.partition(), record.offset()
                last[partition] = max(last.get(partition, offset), offset)

        for transactions in rounds:
            try:
                for each in transactions:
                    now_ms = self._time_ms()
                    op = new_op(
                        transaction_id=each.transaction_id,
                        timestamp=now_ms,
                        half_offset=each.half_offset,
                        producer_group=producer_group,
                        kind=kind,
                        message_count=each.message_count,
                        source=source,
                        actor=self._actor,
                        reason=reason,
                    )
                    key, value = each.transaction_id.encode(), OP.encode(op)
                    partition = each.half_partition
                    headers = signer.op(partition, key, value, now_ms) if signer else None
                    self.send(self.names.op, value, key, partition, written, headers)
                self.flush(timeout_s)
            except SendError as error:
                raise CommitInDoubtError(f"{_NOT_DECIDED}: {error}") from error
            if failures:
                self.give_up()
                raise CommitInDoubtError(f"{_NOT_DECIDED}: {failures[0]}")
        return last


def read_signer(options: SinkOptions, group: str, now_ms: int) -> ClientSigner | None:
    """Return the signer of a producer group; None without the option key.file.

    Args:
        options: The sink's options.
        group: The producer group of the half messages.
        now_ms: The time, ms since 1970.

    Raises:
        SinkOptionError: the file cannot be used on this host, or has no key by which a client may
            sign for the group now; whoever installs the file corrects it.
    """
    path = options.key_file
    wrong = partial(_wrong, path)
    return client_signer(path, group, options.names, now_ms=now_ms, wrong=wrong)


def _wrong(path: str, why: str) -> SinkOptionError:
    return SinkOptionError(
        f"option key.file is {path!r}, which cannot be used on host {socket.gethostname()}: {why}."
        " The driver and every executor need the file at this path, with the group's signing key"
    )
