"""Implements the writing ports by the client library's Producer."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

from halfbridge.bridge.failure import KafkaFailure
from halfbridge.bridge.kafka.admin import seen_topics
from halfbridge.bridge.kafka.closed import Closed, refuse
from halfbridge.bridge.kafka.errors import failure_of, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.bridge.ports import SeenTopic
    from halfbridge.serde.headers import Headers


class KafkaWriter:
    """A Producer: implements `ports.Writer`.

    Args:
        producer: The client library's Producer.
    """

    def __init__(self, producer: Any) -> None:
        self._producer: Any = producer
        self._produce: Callable[..., Any] = producer.produce
        self._poll: Callable[..., Any] = producer.poll

    def produce(  # noqa: PLR0917  (once a record: keywords cost)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Hand a record to the client."""
        try:
            self._produce(
                topic,
                value,
                key,
                partition,
                on_delivery,
                timestamp=timestamp_ms,
                headers=headers,
            )
        except KafkaException as error:
            raise failure_of(error) from error

    def poll(self, wait_s: float) -> int:
        """Serve acknowledgements, waiting for the first one; return how many were served."""
        try:
            served: int = self._poll(wait_s)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error
        return served

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is outstanding; return how many still are.

        This calls `poll`, so that `linger.ms` applies. The client's own flush (2.16) continues
        after a fatal error with an exception pending. It then ends with a SystemError of some
        callback, or raises a KafkaError, which no `except` clause that names a class can catch.
        """
        deadline = monotonic() + timeout_s
        self.poll(0)
        while (left := len(self._producer)) and (left_s := deadline - monotonic()) > 0:
            self.poll(left_s)
        return left

    def purge(self) -> None:
        """Give up unacknowledged records; `poll` calls their callbacks with an error."""
        self._call(self._producer.purge)

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""
        return seen_topics(self._call(self._producer.list_topics, timeout=timeout_s))

    def close(self) -> None:
        """Give up unacknowledged records without waiting, and free the client."""
        # A broken client raises its error again, and a closed one refuses. The client's own `close`
        # would wait for records.
        with suppress(KafkaFailure, RuntimeError):
            self.purge()
            self.poll(0)
        self._producer = Closed()
        self._produce = self._poll = refuse

    def __len__(self) -> int:
        """Return how many records have no acknowledgement, or a callback that was not served."""
        return len(self._producer)

    def __bool__(self) -> bool:
        """Return True: a writer is true even if `len` is 0."""
        return True

    def _call(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error


class KafkaTransactionalWriter(KafkaWriter):
    """A transactional Producer: implements `ports.TransactionalWriter`."""

    def init(self, timeout_s: float) -> None:
        """Take over the transactional id; an open kafka_txn of the id is aborted."""
        self._call(self._producer.init_transactions, timeout_s)

    def begin(self) -> None:
        """Begin a kafka_txn."""
        self._call(self._producer.begin_transaction)

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        """Add offsets (topic, partition, offset, metadata) to the kafka_txn."""
        positions = [TopicPartition(*each) for each in offsets]
        self._call(self._producer.send_offsets_to_transaction, positions, member, timeout_s)

    def commit(self, timeout_s: float) -> None:
        """Commit."""
        self._call(self._producer.commit_transaction, timeout_s)

    def abort(self, timeout_s: float) -> None:
        """Abort."""
        self._call(self._producer.abort_transaction, timeout_s)
