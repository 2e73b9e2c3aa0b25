"""Writers: the client library's Producer behind the ports."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

from halfbridge.bridge.kafka.admin import seen_topics
from halfbridge.bridge.kafka.errors import failure_of, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.bridge.ports import SeenTopic
    from halfbridge.serde.headers import Headers


class KafkaWriter:
    """A Producer, as `ports.Writer`.

    Args:
        producer: Of the client library.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._produce = producer.produce
        self._poll = producer.poll

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
        """Hand a record over."""
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
        """Serve acknowledgements, waiting for the first of them; return how many came."""
        try:
            served: int = self._poll(wait_s)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error
        return served

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is awaited; return how many still are.

        By `poll`, so that `linger.ms` holds. The client's own flush (2.16) goes on behind a fatal
        error with that exception set. It then ends with a SystemError of some callback, or raises
        a KafkaError, which is no exception: no `except` clause that names a class catches it.
        """
        deadline = monotonic() + timeout_s
        self.poll(0)
        while (left := len(self._producer)) and (left_s := deadline - monotonic()) > 0:
            self.poll(left_s)
        return left

    def purge(self) -> None:
        """Give up what is not acknowledged; the callbacks say so in `poll`."""
        self._call(self._producer.purge)

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""
        return seen_topics(self._call(self._producer.list_topics, timeout=timeout_s))

    def __len__(self) -> int:
        """Return how many records are not acknowledged, or their callbacks not served."""
        return len(self._producer)

    def __bool__(self) -> bool:
        """A writer without records is a writer all the same."""
        return True

    def _call(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error


class KafkaTransactionalWriter(KafkaWriter):
    """A transactional Producer, as `ports.TransactionalWriter`."""

    def init(self, timeout_s: float) -> None:
        """Take the transactional id over; what its predecessor has open is aborted."""
        self._call(self._producer.init_transactions, timeout_s)

    def begin(self) -> None:
        """Begin a kafka_txn."""
        self._call(self._producer.begin_transaction)

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        """Have (topic, partition, offset, metadata) committed with the kafka_txn."""
        positions = [TopicPartition(*each) for each in offsets]
        self._call(self._producer.send_offsets_to_transaction, positions, member, timeout_s)

    def commit(self, timeout_s: float) -> None:
        """Commit."""
        self._call(self._producer.commit_transaction, timeout_s)

    def abort(self, timeout_s: float) -> None:
        """Abort."""
        self._call(self._producer.abort_transaction, timeout_s)
