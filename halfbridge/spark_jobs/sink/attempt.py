"""One task attempt, on an executor: sends its rows as half messages, and reports to the driver.

`Chunks` cuts the rows of a task attempt into transactions of bounded size. All messages of a
transaction go to one half partition, which is chosen by the key. So messages of one key are
delivered in the order of the rows. All messages of a transaction have one real topic, because the
daemon gives up a whole transaction when a topic refuses one message. Each half partition has one
open chunk for each topic. When a chunk is full, the next one begins, and decisions are written in
this order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from halfbridge.serde.avro import SINK_CONTEXT, half_metadata_series
from halfbridge.serde.headers import CONTEXT, HALF
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.manifest import ManifestAttempt, ManifestTransaction
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import NO_OFFSET, NO_TIMESTAMP, OpKind, SinkContext, new_half
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.capabilities import WriterCommitMessage
from halfbridge.spark_jobs.sink.clients import LOG, partition_ends
from halfbridge.spark_jobs.sink.errors import RowError, SendError, SinkError
from halfbridge.spark_jobs.sink.process import sink_process
from halfbridge.spark_jobs.sink.rows import FRAME_BYTES_MAX, ContentHash, rows_of
from halfbridge.spark_jobs.sink.sender import read_signer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import ClientError, DeliveryCallback, SentRecord
    from halfbridge.serde.headers import Headers
    from halfbridge.spark_jobs.sink.options import SinkOptions
    from halfbridge.spark_jobs.sink.process import SinkProcess
    from halfbridge.spark_jobs.sink.rows import RealTopic, Row

# Added to the time-out after which the Kafka client itself gives up a message: it looks for such
# messages once a second, and a busy executor takes its reports late.
_GRACE_S = 5.0
_ROLLBACK_S = 10.0  # a courtesy: what is not rolled back in time, the check rolls back


@dataclass(frozen=True)
class AttemptReport(WriterCommitMessage):
    """The half messages that a task attempt has stored, for the driver. Picklable."""

    batch_id: int
    attempt: ManifestAttempt  # the attempt's id and transactions, in the order of their decisions
    row_count: int
    content_sum: int  # ContentHash.sum of the rows
    first_append_timestamp: int  # append time of the oldest half record; -1 without any
    query_id: str  # Spark's id of the streaming query; empty for a batch write


def write_attempt(
    options: SinkOptions,
    batch_id: int,
    batches: Iterator[pa.RecordBatch],
    *,
    query_id: str = "",
    process: SinkProcess | None = None,
) -> AttemptReport:
    """Send all rows as half messages and return once they are durable.

    After a failure, the sent half messages are rolled back as far as brokers answer; the check
    settles the others.

    Raises:
        RowError: a row cannot be sent; the query must not make such rows.
        SendError: brokers did not store a half message; Spark runs the task again.
        SinkSetupError: a topic is missing; an operator creates it, by the name in the text.
        SinkOptionError: the key file cannot be used on this executor; its owner corrects it.
    """
    attempt = _Attempt(options, batch_id, process or sink_process())
    try:
        for batch in batches:
            attempt.send_all(rows_of(batch, topic=options.topic))
        return attempt.finish(query_id)
    except BaseException:
        attempt.roll_back()
        raise


class _Attempt:
    """One task attempt. Not thread-safe."""

    def __init__(self, options: SinkOptions, batch_id: int, process: SinkProcess) -> None:
        self._options = options
        self._batch_id = batch_id
        self._process = process
        self._ports = process.ports
        self._time_ms = self._ports.clock.time_ms
        self._signer = read_signer(options, options.producer_group, self._time_ms())
        self._sender = process.new_attempts_sender(options)
        self._id = self._ports.transaction_id()
        # Rows without a key may go to any half partition. All such rows of a task go to the same
        # one, so that they fill few transactions. The random end of the id spreads tasks.
        self._keyless = int(self._id[-8:], 16) % self._sender.shape.partitions
        self._context = (
            CONTEXT,
            SINK_CONTEXT.encode(SinkContext(options.app_id, batch_id, self._id)),
        )
        self._chunks = Chunks(
            messages_max=options.messages_max,
            bytes_max=TRANSACTION_BYTES_MAX,
            new_id=self._ports.transaction_id,
        )
        self._content = ContentHash()
        self._row_count = 0
        self._failure: KafkaFailure | None = None
        self._on_delivery: dict[str, DeliveryCallback] = {}

    def send_all(self, rows: Iterable[Row]) -> None:
        """Send rows. One loop with local names only, because it runs once for each row."""
        self._refuse_if_lost()  # all further rows would have to be rolled back
        sender, place, encoder = self._sender, self._chunks.place, self._encoder
        send, add, half = sender.send, self._content.add, self._options.names.half
        partitions = sender.shape.partitions
        bytes_max = min(sender.shape.message_bytes_max, TRANSACTION_BYTES_MAX)
        keyless, context, on_delivery = self._keyless, self._context, self._on_delivery
        signer, time_ms = self._signer, self._time_ms
        real_topics: dict[tuple[str, int], RealTopic] = {}
        for row in rows:
            topic, partition, key, value, headers = row
            where = (topic, partition)
            real_topic = real_topics.get(where)
            if real_topic is None:
                real_topic = real_topics[where] = sender.real_topic(topic, partition)
            size = (len(key) if key else 0) + (len(value) if value else 0)
            if headers:
                size += _size_of(headers)
            if size > bytes_max:
                self._check_size(size, headers)
            # An upper bound of the record's size. The two lengths of a header take no more bytes
            # than its name and value do, unless the value is empty.
            record_bytes = size + len(headers) + FRAME_BYTES_MAX
            if record_bytes > real_topic.record_bytes_max or (
                key is None and real_topic.is_compacted
            ):
                sender.check_row(row)
            add(row)  # before the sink's headers are added
            half_partition = keyless if key is None else partition_of(key, partitions)
            chunk = place(half_partition, topic, size)
            index = chunk.count - 1
            encoded = chunk.encoders.get(where) or encoder(chunk, topic, partition)
            if index:
                headers.append((HALF, encoded(index)))
            else:
                headers += (context, (HALF, encoded(0)))
                on_delivery[chunk.transaction_id] = self._delivery_of(chunk)
            if signer is not None:
                headers = signer.half(
                    half_partition, headers, key=key, value=value, now_ms=time_ms()
                )
            send(half, value, key, half_partition, on_delivery[chunk.transaction_id], headers)
            self._row_count += 1

    def finish(self, query_id: str) -> AttemptReport:
        """Wait until all half messages are stored, and return the report."""
        if self._chunks.all:
            self._sender.flush(self._options.send_timeout_ms / MS_PER_S + _GRACE_S)
        self._refuse_if_lost()
        if any(chunk.unacknowledged for chunk in self._chunks.all):
            raise SendError("half messages were not acknowledged")  # a bug in the Kafka client
        return AttemptReport(
            self._batch_id,
            ManifestAttempt(self._id, self._chunks.transactions()),
            self._row_count,
            self._content.sum(),
            self._chunks.first_append_timestamp(),
            query_id,
        )

    def roll_back(self) -> None:
        """Roll back the attempt, which no manifest will list. Never raises an Exception."""
        if not self._chunks.all:
            return
        try:
            # Queued records must be stored or dropped before a decision names the last offset.
            self._sender.flush(_ROLLBACK_S)
        except SendError as error:
            LOG.info("attempt %s: records not flushed before its rollback: %s", self._id, error)
        try:
            with self._process.decider(self._options) as decider:
                decider.decide(
                    OpKind.ROLLBACK,
                    [self._stored_at_most()],
                    producer_group=self._options.producer_group,
                    reason="the task attempt failed",
                    timeout_s=_ROLLBACK_S,
                )
        except SinkError as error:
            LOG.warning("attempt %s is left to the check: %s", self._id, error)

    def _stored_at_most(self) -> list[ManifestTransaction]:
        """Return the transactions; after a failure, each names its half partition's end.

        Transactions whose half partition's end is not known are left out; the check settles them.
        """
        unknown = {chunk.half_partition for chunk in self._chunks.all if chunk.unacknowledged}
        half = self._options.names.half
        ends = partition_ends(self._options, self._ports, half, unknown, timeout_s=_ROLLBACK_S)
        known: list[ManifestTransaction] = []
        for chunk in self._chunks.all:
            transaction = chunk.as_transaction()
            if not chunk.unacknowledged:
                known.append(transaction)
            elif chunk.half_partition in ends:
                last = ends[chunk.half_partition] - 1
                known.append(transaction._replace(half_offset=last))
        return known

    def _refuse_if_lost(self) -> None:
        if self._failure is not None:
            self._sender.give_up()  # a record failed, so no later one may be stored
            raise SendError(f"half messages were not stored: {self._failure}")

    def _check_size(self, size: int, headers: Headers) -> None:
        """Check a row of `size` bytes, in which headers count twice.

        Raises RowError: the half topic refuses it, or the daemon would make it a dead letter.
        """
        if size > self._sender.shape.message_bytes_max:
            self._sender.is_outdated = True
            raise RowError(
                f"a row of {size} bytes (headers counted twice) is larger than"
                f" {self._sender.shape.message_bytes_max}: max.message.bytes of"
                f" {self._options.names.half} - 64 KiB"
            )
        size -= _size_of(headers) // 2
        if size > TRANSACTION_BYTES_MAX:
            raise RowError(
                f"a row of {size} bytes is larger than the messages of a transaction may be,"
                f" {TRANSACTION_BYTES_MAX} bytes: keep its value elsewhere, and send a reference"
            )

    def _encoder(self, chunk: Chunk, topic: str, partition: int) -> Callable[[int], bytes]:
        series = half_metadata_series(
            new_half(
                transaction_id=chunk.transaction_id,
                born_timestamp=self._time_ms(),
                producer_group=self._options.producer_group,
                real_topic=topic,
                real_partition=partition,
                immunity_ms=self._options.immunity_ms,
            )
        )
        chunk.encoders[topic, partition] = series
        return series

    def _delivery_of(self, chunk: Chunk) -> DeliveryCallback:
        def delivered(error: ClientError | None, record: SentRecord) -> None:
            failure = self._sender.failure(error, record)
            if failure is not None:
                self._failure = self._failure or failure
            else:
                offset = cast("int", record.offset())  # it is stored
                chunk.acknowledged(offset, record.timestamp()[1])

        return delivered


def _size_of(headers: Headers) -> int:
    """Return the bytes of headers, counted twice as `HalfShape.message_bytes_max` does."""
    return 2 * sum(len(name.encode()) + len(given or b"") for name, given in headers)


@dataclass(slots=True, eq=False)
class Chunk:
    """One transaction that is being sent."""

    transaction_id: str
    half_partition: int
    count: int = 0
    size_bytes: int = 0
    unacknowledged: int = 0
    half_offset: int = NO_OFFSET
    first_timestamp: int = NO_TIMESTAMP
    # (real topic, real partition) -> message index -> RMQ_HALF.
    encoders: dict[tuple[str, int], Callable[[int], bytes]] = field(default_factory=dict)

    def acknowledged(self, offset: int, timestamp: int) -> None:
        """Note that one message of the chunk is stored."""
        self.unacknowledged -= 1
        self.half_offset = max(self.half_offset, offset)
        if self.first_timestamp == NO_TIMESTAMP or timestamp < self.first_timestamp:
            self.first_timestamp = timestamp

    def as_transaction(self) -> ManifestTransaction:
        """Return the manifest's entry for the chunk, once all its messages are acknowledged."""
        return ManifestTransaction(
            self.transaction_id, self.half_partition, self.count, self.half_offset
        )


class Chunks:
    """All chunks of one task attempt; a single message may exceed the bytes of a chunk."""

    def __init__(self, *, messages_max: int, bytes_max: int, new_id: Callable[[], str]) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._new_id = new_id
        self._open: dict[tuple[int, str], Chunk] = {}
        self.all: list[Chunk] = []

    def place(self, half_partition: int, topic: str, size_bytes: int) -> Chunk:
        """Return the chunk for a topic's next message of that size, and count the message."""
        where = (half_partition, topic)
        chunk = self._open.get(where)
        if (
            chunk is None
            or chunk.count >= self._messages_max
            or chunk.size_bytes + size_bytes > self._bytes_max
        ):
            chunk = Chunk(self._new_id(), half_partition)
            self._open[where] = chunk
            self.all.append(chunk)
        chunk.count += 1
        chunk.size_bytes += size_bytes
        chunk.unacknowledged += 1
        return chunk

    def transactions(self) -> tuple[ManifestTransaction, ...]:
        """Return all transactions, in the order in which their chunks were begun."""
        return tuple(chunk.as_transaction() for chunk in self.all)

    def first_append_timestamp(self) -> int:
        """Return the append time of the attempt's oldest half message; -1 without any."""
        return min((chunk.first_timestamp for chunk in self.all), default=NO_TIMESTAMP)


def merge_timestamps(timestamps: Iterable[int]) -> int:
    """Return the earliest time, ignoring -1 (none); -1 without any."""
    return min((each for each in timestamps if each != NO_TIMESTAMP), default=NO_TIMESTAMP)
