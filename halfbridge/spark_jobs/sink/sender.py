"""Sends the sink's records: half messages, decisions and manifests.

Every record is sent as the client sends it, by a `RecordWriter` of halfbridge.kafka.sending. Unlike
the client's, a writer of the sink has one thread, leaves no gap, and is given up with its first
failure: a later record must not be stored without an earlier one.

The option `key.file` is a path. So the path travels in plans and to executors, and keys do not:
each process reads its own file, once for each task attempt and each call that decides. A key that
is added to the file is used from the next attempt on, without a restart of the query.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from halfbridge.kafka.errors import BridgeError, KafkaFailure
from halfbridge.kafka.sending import RecordWriter
from halfbridge.kafka.signatures import client_signer
from halfbridge.kafka.topics import RealTopics
from halfbridge.serde.avro import OP
from halfbridge.serde.records import OpSource, new_op
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.sink.clients import (
    KAFKA_TIMEOUT_S,
    NO_ANSWER,
    NONE,
    new_topics,
    new_writer,
)
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
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import ClientError, DeliveryCallback, Ports, SentRecord
    from halfbridge.kafka.signatures import ClientSigner
    from halfbridge.kafka.topics import Topics
    from halfbridge.serde.headers import Headers
    from halfbridge.serde.manifest import ManifestTransaction
    from halfbridge.serde.records import OpKind
    from halfbridge.serde.topics import HalfShape
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.rows import Row

# Sends between two polls, so that not every row costs a call; a call costs more than a send.
_POLL_EVERY = 256
_FAILED_BEFORE = "the Kafka client has failed before"


class Record(NamedTuple):
    """A record for `Sender.store`."""

    value: bytes
    key: bytes
    partition: int
    headers: Headers | None = None


class Sender:
    """One writer, until it fails. Not thread-safe.

    The query may override the properties `defaults`, and may not set `changes`.
    """

    def __init__(
        self,
        options: SinkOptions,
        ports: Ports,
        *,
        message_bytes_max: int,
        defaults: Mapping[str, object] = NONE,
        changes: Mapping[str, object] = NONE,
    ) -> None:
        self._writer = new_writer(
            options, ports, message_bytes_max=message_bytes_max, defaults=defaults, changes=changes
        )
        self._records = RecordWriter(
            self._writer,
            ports,
            room_timeout_s=options.send_timeout_ms / MS_PER_S,
            serve=self._writer.poll,
        )
        self.failure = self._records.failure
        self.is_broken = False
        self._sent = 0

    def send(  # noqa: PLR0917  (once a row: keywords cost)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: DeliveryCallback,
        headers: Headers | None = None,
    ) -> None:
        """Hand a record to Kafka, waiting for room in the queue.

        Raises:
            SendError: the task fails, and Spark runs it again; if it fails again, the operator
                corrects what the text names.
        """
        if self.is_broken:
            raise SendError(_FAILED_BEFORE)
        try:
            self._records.produce(topic, value, key, partition, on_delivery, headers)
            self._sent += 1
            if self._sent % _POLL_EVERY == 0:
                self._writer.poll(0)
        except (BridgeError, KafkaFailure) as error:
            raise self._failed(f"the record was not sent: {error}") from error

    def flush(self, timeout_s: float) -> None:
        """Return once every record is acknowledged or has failed; callbacks get the results.

        Raises:
            SendError: some records are not acknowledged in time, and are given up; Spark runs the
                task again.
        """
        if self.is_broken:
            raise SendError(_FAILED_BEFORE)
        try:
            left = self._writer.flush(timeout_s)
        except KafkaFailure as failure:
            raise self._failed(f"the sink's Kafka client failed in a flush: {failure}") from failure
        if left:
            raise self._failed(f"{left} records were not acknowledged in {timeout_s:g} s")

    def store(self, topic: str, records: Iterable[Record], timeout_s: float) -> dict[int, int]:
        """Send records, and return the last offset of each partition once all are stored.

        Raises:
            SendError: it is not proven that all are stored. The client is given up; Spark runs the
                task again.
        """
        failures: list[KafkaFailure] = []
        last: dict[int, int] = {}

        def acknowledged(error: ClientError | None, record: SentRecord) -> None:
            failure = self.failure(error, record)
            if failure is not None:
                failures.append(failure)
            else:
                partition = record.partition()
                offset = cast("int", record.offset())  # it is stored
                last[partition] = max(last.get(partition, offset), offset)

        for value, key, partition, headers in records:
            self.send(topic, value, key, partition, acknowledged, headers)
        self.flush(timeout_s)
        if failures:
            raise self._failed(str(failures[0]))
        return last

    def give_up(self) -> None:
        """Drop unsent records; the client cannot be used any more."""
        if not self.is_broken:
            self.is_broken = True
            self._records.give_up()

    def _failed(self, why: str) -> SendError:
        self.give_up()
        return SendError(why)


def _half_shape(topics: Topics) -> HalfShape:
    with failing_as(SinkSetupError, NO_ANSWER):
        return topics.half_shape()


# A task continues to send meanwhile, so that batches become larger than with librdkafka's default
# of 5 ms; nobody waits for a single row.
_LINGER_MS = 20


class HalfSender(Sender):
    """Sends half messages of task attempts, one attempt after the other."""

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        self._topics = new_topics(options, ports)
        self.shape = _half_shape(self._topics)
        super().__init__(
            options,
            ports,
            message_bytes_max=self.shape.record_bytes_max,
            defaults={"linger.ms": _LINGER_MS},
        )
        self._places = RealTopics(options.names, self._writer, ports, timeout_s=KAFKA_TIMEOUT_S)
        self._limits: dict[str, RealTopic] = {}
        # A row was refused by limits as this sender read them: the next attempt reads them again.
        self.is_outdated = False

    def real_topic(self, topic: str, partition: int) -> RealTopic:
        """Return the limits of a real topic; they are kept for later attempts.

        Raises:
            RowError: the topic is internal, or has no such partition; the query is corrected.
            SinkSetupError: the topic does not exist (its owner creates it), or no broker answers
                (start the query again later).
        """
        with failing_as(SinkSetupError, NO_ANSWER):
            self._places.check(topic, partition)
        return self._limits.get(topic) or self._read_limits(topic)

    def check_row(self, row: Row) -> None:
        """Check that a row's real topic accepts it by its present settings.

        Raises RowError: it does not; the query must not make such rows.
        """
        topic, partition, *_ = row
        # Before a refusal, the limits are read again: an operator may have raised them.
        if self.real_topic(topic, partition).refusal(row) and (
            refused := self._read_limits(topic).refusal(row)
        ):
            raise RowError(refused)

    def _read_limits(self, topic: str) -> RealTopic:
        with failing_as(SinkSetupError, NO_ANSWER):
            settings = self._topics.settings(topic)
        limits = self._limits[topic] = RealTopic(
            int(settings.get("max.message.bytes", ANY_BYTES)),
            "compact" in settings.get("cleanup.policy", ""),
        )
        return limits


class Decider(Sender):
    """Writes decisions in rounds: each waits for the one before. Threads share it by its `lock`."""

    def __init__(self, options: SinkOptions, ports: Ports, *, actor: str) -> None:
        shape = _half_shape(new_topics(options, ports))
        super().__init__(
            options, ports, message_bytes_max=shape.record_bytes_max, changes={"linger.ms": 0}
        )
        self._options = options
        self._actor = actor
        self._time_ms = ports.clock.time_ms
        self.lock = ports.run.waker()

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

        Returns half partition -> offset of its last decision in the op topic. A round may take
        `timeout_s`.

        Raises:
            CommitInDoubtError: not all decisions of a round were acknowledged; later rounds were
                not written. A new run settles them.
            SinkOptionError: the key file cannot be used here; the rounds that are left were not
                written. The file's owner corrects it.
        """
        signer = read_signer(self._options, producer_group, self._time_ms())
        last: dict[int, int] = {}

        def record_of(each: ManifestTransaction) -> Record:
            now_ms, partition = self._time_ms(), each.half_partition
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
            headers = signer.op(partition, key, value, now_ms) if signer else None
            return Record(value, key, partition, headers)

        try:
            for transactions in rounds:
                last |= self.store(self._options.names.op, map(record_of, transactions), timeout_s)
        except SendError as error:
            raise CommitInDoubtError(f"decisions were not acknowledged: {error}") from error
        return last


def read_signer(options: SinkOptions, group: str, now_ms: int) -> ClientSigner | None:
    """Return the signer of a producer group; None without the option key.file.

    Raises:
        SinkOptionError: the file cannot be used on this host, or has no key by which a client may
            sign for the group now; its owner corrects it.
    """
    path = options.key_file
    wrong = partial(_wrong, path)
    return client_signer(path, group, options.names, now_ms=now_ms, wrong=wrong)


def _wrong(path: str, why: str) -> SinkOptionError:
    return SinkOptionError(
        f"option key.file is {path!r}, which cannot be used on host {socket.gethostname()}: {why}."
        " The driver and every executor need the file at this path, with the group's signing key"
    )
