"""A writer, as `ports.Writer`: records go from its queues to partitions in numbered batches.

One task sends to one partition; it exists while records wait for that partition.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.partitioner import partition_by_crc, partition_of
from halfbridge.serde.units import NS_PER_MS
from halfbridge.testkit.memory.client import Client, Kind, RequestTimeoutError
from halfbridge.testkit.memory.log import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    BatchNumber,
    Placed,
    Row,
    batch_bytes,
)
from halfbridge.testkit.memory.scheduler import BEGAN_MS

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.kafka.ports import DeliveryCallback, SeenTopic, TopicPartition
    from halfbridge.serde.headers import Headers

# librdkafka's defaults.
_MESSAGE_BYTES_MAX = 1_000_000
_QUEUE_RECORDS_MAX = 100_000
_QUEUE_KBYTES_MAX = 1_048_576
_DELIVERY_MS = 300_000
_NEVER_MS = 1 << 40  # 35 years


class SendQueue(Client):
    """A client that sends records; the base of `MemoryWriter`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batch_bytes = self.number("batch.size", _BATCH_BYTES)
        self._batch_records = self.number("batch.num.messages", _BATCH_RECORDS)
        self._request_s = self.number("request.timeout.ms", _REQUEST_MS) / 1000
        self._propagation_s = (
            self.number("topic.metadata.propagation.max.ms", _PROPAGATION_MS) / 1000
        )
        self._is_java = "murmur2" in self.text("partitioner", "consistent_random")
        self._is_idempotent = self.flag("enable.idempotence", default=False)
        self._is_gapless = self.flag("enable.gapless.guarantee", default=False)
        self._has_gap = False  # with enable.gapless.guarantee: nothing more is sent
        self._producer_id, self._epoch = 0, 0
        self._next_numbers: dict[TopicPartition, int] = {}
        self._known: dict[str, tuple[int, int]] = {}  # topic -> partitions, when they were read
        self._waiting: dict[TopicPartition, deque[Sent]] = {}  # -1: the topic is not known yet
        self._in_flight: dict[TopicPartition, list[Sent]] = {}
        self._reports: deque[Sent] = deque()
        self._turn = 0

    # --- overridden by the transactional writer ---------------------------------------------

    def _prepare(self, place: TopicPartition, deadline_ns: int) -> None:
        """Prepare to send a batch; the batch fails with the KafkaFailure that this raises."""
        del place, deadline_ns
        if self._is_idempotent and not self._producer_id:
            self._producer_id = self._broker.coordinator.new_producer_id()

    def _store(self, place: TopicPartition, rows: list[Row], number: BatchNumber | None) -> int:
        return self._broker.produce(self.process.name, place, rows, number)

    def _note_failure(self, failure: KafkaFailure) -> None:
        """Take note of the failure of a record."""

    def _begin_new_epoch(self) -> None:
        """Restart sequence numbers: some older batches may be stored, or still arrive."""
        self._epoch += 1
        self._next_numbers.clear()

    # --- reports ----------------------------------------------------------------------------

    def _report(self, batch: Collection[Sent], failure: KafkaFailure | None) -> None:
        reported = failure
        if failure is not None and failure.code == Code.INVALID_TIMESTAMP and len(batch) > 1:
            # In a batch of several records, the client reports each as invalid, without the reason.
            reported = KafkaFailure(Code.INVALID_RECORD, "Broker: Broker failed to validate record")
        for sent in batch:
            sent.failure = reported
            self._reports.append(sent)
            if failure is not None:
                self._note_failure(failure)

    def _purge_waiting(self) -> None:
        for queue in self._waiting.values():
            self._report(queue, KafkaFailure(Code.PURGE_QUEUE, "Local: Purged in queue"))
            queue.clear()

    def _purge_in_flight(self) -> None:
        in_flight = list(chain.from_iterable(self._in_flight.values()))
        self._in_flight.clear()
        self._report(in_flight, KafkaFailure(Code.PURGE_INFLIGHT, "Local: Purged in flight"))
        if in_flight:
            self._begin_new_epoch()

    # --- placing ----------------------------------------------------------------------------

    def _believed(self, topic: str) -> int | None:
        """Return the cached partition count of a topic; None: it must be requested."""
        known = self._known.get(topic)
        if known is None:
            return None
        count, refreshed_ns = known
        actual = self._partition_count(topic)
        if count != actual and self._scheduler.now_ns - refreshed_ns >= _REFRESH_AGAIN_NS:
            self._known[topic] = actual, self._scheduler.now_ns
            return actual
        return count

    def _partition_count(self, topic: str) -> int:
        seen = self._broker.topics.get(topic)
        return 0 if seen is None else len(seen.partitions)

    def _placed(self, count: int, partition: int, key: bytes | None) -> int:
        """Return a record's partition; raises KafkaFailure if the topic or partition is unknown."""
        if not count:
            raise KafkaFailure(
                Code.UNKNOWN_TOPIC, "Unable to produce message: Local: Unknown topic"
            )
        if partition >= count:
            raise KafkaFailure(
                Code.UNKNOWN_PARTITION, "Unable to produce message: Local: Unknown partition"
            )
        if partition >= 0:
            return partition
        if key is None or (not key and not self._is_java):
            self._turn += 1
            return self._turn % count
        return partition_of(key, count) if self._is_java else partition_by_crc(key, count)

    def _enqueue(self, place: TopicPartition, sent: Sent) -> None:
        queue = self._waiting.get(place)
        if queue is None:
            queue = self._waiting[place] = deque()
            call = self._look_up if place[1] < 0 else self._send
            self._scheduler.start(self.process, lambda: call(place), f"send to {place}")
        queue.append(sent)

    def _look_up(self, place: TopicPartition) -> None:
        """Request the partition count of a topic, and enqueue the records that wait for it."""
        topic = place[0]
        failure = self._topic_failure(topic)
        waiting = self._waiting.pop(place)
        if failure is not None:
            if failure.code != Code.MSG_TIMED_OUT:
                self._known[topic] = 0, self._scheduler.now_ns
            self._report(waiting, failure)
            return
        count = self._partition_count(topic)
        self._known[topic] = count, self._scheduler.now_ns
        for sent in waiting:
            self._place(sent, count)

    def _place(self, sent: Sent, count: int) -> None:
        try:
            sent.put(self._placed(count, sent.partition(), sent.row.key))
        except KafkaFailure as error:
            self._report([sent], KafkaFailure(error.code, "Local: Unknown partition"))
        else:
            self._enqueue((sent.topic(), sent.partition()), sent)

    def _topic_failure(self, topic: str) -> KafkaFailure | None:
        """Return why there is no such topic; a new one has `_propagation_s` to appear."""
        until_ns = self._deadline(self._propagation_s)
        while True:
            try:
                self._network.request(
                    self, Kind.METADATA, topic, lambda: self._broker.topic(topic), self._request_s
                )
            except KafkaFailure as failure:  # noqa: PERF203  (a question that is repeated)
                if failure.code != Code.UNKNOWN_TOPIC_OR_PART or not self._left_s(until_ns):
                    return failure
                self._wait(None, min(self._backoff_s, self._left_s(until_ns)))
            except RequestTimeoutError:  # its records time out before the topic does
                self._wait(None, self._backoff_s)
                until_ns = self._deadline(self._propagation_s)
                if all(
                    one.deadline_ns <= self._scheduler.now_ns for one in self._waiting[topic, -1]
                ):
                    return KafkaFailure(Code.MSG_TIMED_OUT, "Local: Message timed out")
            else:
                return None

    # --- sending ----------------------------------------------------------------------------

    def _send(self, place: TopicPartition) -> None:
        """Send the records that wait for a partition, batch by batch."""
        queue = self._waiting[place]
        while queue and not self._has_gap:
            batch = self._next_batch(queue)
            self._in_flight[place] = batch
            offset, failure = None, None
            try:
                offset = self._transmitted(place, batch)
            except KafkaFailure as error:
                failure = error
            if self._in_flight.get(place) is not batch:
                continue  # it was purged meanwhile
            del self._in_flight[place]
            if failure is None:
                self._note_stored(place, batch, offset)
            elif failure.code in {Code.MSG_TIMED_OUT, _OUT_OF_ORDER_SEQUENCE}:
                self._begin_new_epoch()
            self._report(batch, failure)
            if failure is not None and self._is_gapless and failure.code != Code.MSG_TIMED_OUT:
                self._has_gap = True
        if not self._has_gap:
            del self._waiting[place]

    def _next_batch(self, queue: deque[Sent]) -> list[Sent]:
        batch = [queue.popleft()]
        size = batch_bytes([batch[0].row])
        while queue and len(batch) < self._batch_records:
            size += batch_bytes([queue[0].row])
            if size > self._batch_bytes:
                break
            batch.append(queue.popleft())
        return batch

    def _transmitted(self, place: TopicPartition, batch: list[Sent]) -> int | None:
        """Store a batch; return its first offset, or None if the client infers that it is stored.

        Raises:
            KafkaFailure: it is not stored, or in doubt (MSG_TIMED_OUT); the sender retries.
        """
        rows = [sent.row for sent in batch]
        deadline_ns = min(sent.deadline_ns for sent in batch)
        number = None
        away = self._broker.away
        while self._scheduler.now_ns < deadline_ns:
            try:
                # The partition is added to the kafka_txn before a batch is sent to it.
                self._prepare(place, deadline_ns)
                if place in away:  # the client would retry: no answer, or the same one
                    if self._in_flight.get(place) is not batch:
                        break  # it was purged
                    self._wait(
                        lambda: place not in away or self._in_flight.get(place) is not batch,
                        self._left_s(deadline_ns),
                    )
                    continue
                if self._is_idempotent and number is None:
                    first = self._next_numbers.get(place, 0)
                    number = BatchNumber(self._producer_id, self._epoch, first)
                offset = self._ask_to_store(place, rows, number, deadline_ns)
            except RequestTimeoutError:
                pass
            except KafkaFailure as failure:
                if failure.code not in _RETRIED:
                    raise
            else:
                if number is not None:
                    self._next_numbers[place] = number.first + len(rows)
                return offset
            self._wait(None, min(self._backoff_s, self._left_s(deadline_ns)))
        raise KafkaFailure(Code.MSG_TIMED_OUT, "Local: Message timed out")

    def _ask_to_store(
        self, place: TopicPartition, rows: list[Row], number: BatchNumber | None, deadline_ns: int
    ) -> int | None:
        timeout_s = min(self._request_s, self._left_s(deadline_ns))
        try:
            return self._network.request(
                self, Kind.PRODUCE, place, lambda: self._store(place, rows, number), timeout_s
            )
        except KafkaFailure as failure:
            if failure.code == _DUPLICATE_SEQUENCE:
                return None
            raise

    def _note_stored(self, place: TopicPartition, batch: list[Sent], offset: int | None) -> None:
        """Set the offset and timestamp of each record.

        Where the client only infers that a batch is stored, it counts offsets up from -1, which is
        none: the second record is reported at offset 0 (`halfbridge.kafka.sending`).
        """
        topic = self._broker.topics.get(place[0])
        for index, sent in enumerate(batch):
            stamp = (CREATE_TIME, sent.row.timestamp_ms)
            if offset is None:
                sent.stored(index - 1 if index else None, stamp)
                continue
            if topic is not None and topic.is_stamped:
                record = topic.partitions[place[1]].slots[offset + index]
                stamp = (LOG_APPEND_TIME, -1) if record is None else record.timestamp()
            sent.stored(offset + index, stamp)


class MemoryWriter(SendQueue):
    """Writes to the brokers in memory."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self._records_max = self.number("queue.buffering.max.messages", _QUEUE_RECORDS_MAX)
        self._queue_bytes_max = 1024 * self.number("queue.buffering.max.kbytes", _QUEUE_KBYTES_MAX)
        self._bytes_max = self.number("message.max.bytes", _MESSAGE_BYTES_MAX)
        self._delivery_ns = NS_PER_MS * self._delivery_ms()
        self._count = self._bytes = 0
        self._was_closed = False

    def produce(  # noqa: PLR0917  (as the port has it)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: DeliveryCallback,
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> None:
        self._check_open()
        if self._has_gap:
            raise KafkaFailure(Code.FATAL, "Unable to produce message: Local: Fatal error")
        row = Row(key, value, list(headers) if headers else None, timestamp_ms or self._now_ms())
        size = len(key or b"") + len(value or b"")
        if size > self._bytes_max:
            raise KafkaFailure(
                Code.MSG_SIZE_TOO_LARGE, "Unable to produce message: Broker: Message size too large"
            )
        if self._count >= self._records_max or self._bytes + size > self._queue_bytes_max:
            raise BufferError("Local: Queue full")
        count = self._believed(topic)
        if count is not None:
            partition = self._placed(count, partition, key)
        deadline_ns = self._scheduler.now_ns + self._delivery_ns
        sent = Sent(topic, partition, row, on_delivery, deadline_ns)
        self._count += 1
        self._bytes += size
        self._enqueue((topic, -1 if count is None else partition), sent)

    def poll(self, wait_s: float) -> int:
        self._check_open()
        served = self._serve()
        if not served:
            self._wait(lambda: bool(self._reports or self._news), max(0.0, wait_s))
            served = self._serve()
        return served

    def flush(self, timeout_s: float) -> int:
        deadline_ns = self._deadline(timeout_s)
        self.poll(0)
        while self._count and (left_s := self._left_s(deadline_ns)):
            self.poll(left_s)
        return self._count

    def purge(self) -> None:
        self._check_open()
        self._purge_waiting()
        self._purge_in_flight()

    def close(self) -> None:
        with suppress(KafkaFailure, RuntimeError):  # a broken client raises its error again
            self.purge()
            self.poll(0)
        self._was_closed = True

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        return self._seen_topics(timeout_s)

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        """Return True, also for a writer without queued records."""
        return True

    def _check_open(self) -> None:
        self._scheduler.check(self.process)
        if self._was_closed:
            raise RuntimeError("the Kafka client is closed")

    def _delivery_ms(self) -> int:
        """Return a record's delivery time-out in ms; the setting 0 means none."""
        return self.number("message.timeout.ms", _DELIVERY_MS, "delivery.timeout.ms") or _NEVER_MS

    def _serve(self) -> int:
        served = self._serve_news()
        while self._reports:
            sent = self._reports.popleft()
            self._count -= 1
            self._bytes -= len(sent.row.key or b"") + len(sent.row.value or b"")
            served += 1
            if sent.on_delivery is not None:
                sent.on_delivery(sent.failure, sent)
        return served

    def _now_ms(self) -> int:
        return BEGAN_MS + self._scheduler.now_ns // NS_PER_MS + self.process.skew_ms


# librdkafka's defaults.
_BATCH_BYTES = 1_000_000
_BATCH_RECORDS = 10_000
_REQUEST_MS = 30_000
_PROPAGATION_MS = 30_000
# How long a client keeps the partition count of a topic after it has changed.
_REFRESH_AGAIN_NS = 10_000 * NS_PER_MS
_OUT_OF_ORDER_SEQUENCE = 45  # Kafka's error code
_DUPLICATE_SEQUENCE = 46  # likewise
_RETRIED = frozenset((Code.NOT_ENOUGH_REPLICAS, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND))


class Sent(Placed):
    """A record given to the writer, and its delivery report for `on_delivery`."""

    __slots__ = ("deadline_ns", "failure", "on_delivery", "row")

    def __init__(
        self, topic: str, partition: int, row: Row, on_delivery: DeliveryCallback, deadline_ns: int
    ) -> None:
        super().__init__(topic, partition, None)
        self.row = row
        self.on_delivery = on_delivery
        self.deadline_ns = deadline_ns
        self.failure: KafkaFailure | None = None

    def put(self, partition: int) -> None:
        self._partition = partition

    def stored(self, offset: int | None, timestamp: tuple[int, int]) -> None:
        """Set offset and timestamp; without an offset the client only infers that it is stored."""
        self._offset, self._timestamp = offset, timestamp

    def key(self) -> bytes | None:
        return self.row.key

    def value(self) -> bytes | None:
        return self.row.value

    def error(self) -> KafkaFailure | None:
        return self.failure
