"""A writer, as `ports.Writer`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.testkit.memory.log import Row
from halfbridge.testkit.memory.process import NS_PER_MS
from halfbridge.testkit.memory.scheduler import BEGAN_MS
from halfbridge.testkit.memory.send_queue import SendQueue
from halfbridge.testkit.memory.sent import Sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.ports import SeenTopic
    from halfbridge.serde.headers import Headers

# librdkafka's defaults.
_MESSAGE_BYTES_MAX = 1_000_000
_QUEUE_RECORDS_MAX = 100_000
_QUEUE_KBYTES_MAX = 1_048_576
_DELIVERY_MS = 300_000
_NEVER_MS = 1 << 40  # 35 years


class MemoryWriter(SendQueue):
    """Writes to the brokers in memory."""

    def __init__(self, *arguments: Any) -> None:
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
        on_delivery: Callable[[Any, Any], None],
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Hand a record over."""
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
        """Serve acknowledgements, waiting for the first of them; return how many came."""
        self._check_open()
        served = self._serve()
        if not served:
            self._wait(lambda: bool(self._reports or self._news), max(0.0, wait_s))
            served = self._serve()
        return served

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is awaited; return how many still are."""
        deadline_ns = self._deadline(timeout_s)
        self.poll(0)
        while self._count and (left_s := self._left_s(deadline_ns)):
            self.poll(left_s)
        return self._count

    def purge(self) -> None:
        """Give up what is not acknowledged."""
        self._check_open()
        self._purge_waiting()
        self._purge_in_flight()

    def close(self) -> None:
        """Give up what is not acknowledged."""
        with suppress(KafkaFailure, RuntimeError):  # a broken client raises its error again
            self.purge()
            self.poll(0)
        self._was_closed = True

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""
        return self._seen_topics(timeout_s)

    def __len__(self) -> int:
        """Return how many records are not acknowledged, or their callbacks not served."""
        return self._count

    def __bool__(self) -> bool:
        """A writer without records is a writer all the same."""
        return True

    def _check_open(self) -> None:
        self._scheduler.check(self.process)
        if self._was_closed:
            raise RuntimeError("the Kafka client is closed")

    def _delivery_ms(self) -> int:
        """Return how long a record may wait for its acknowledgement; with 0, for ever."""
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
