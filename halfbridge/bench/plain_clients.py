"""The bench's own Kafka clients: a read_committed consumer with little load, a plain producer.

They are the client library's, without a port in between: the baseline is what it alone does
(exception E-002 of DESIGN.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from halfbridge.serde.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

_SERVE_EVERY = 200  # messages: a poll costs more than a send
_ACK_S_MAX = 60.0  # a run that takes longer has failed


def make_consumer(bootstrap_servers: str, topic: str, *, partitions: int, lively: bool) -> Any:
    """Return a consumer that reads all of `topic`, without a group.

    A `lively` one fetches records at once (for low rates). The other one collects them for a few
    milliseconds in each fetch, so that the measurement does not load the broker's CPU.
    """
    gather = {} if lively else {"fetch.min.bytes": MIB, "fetch.wait.max.ms": 5}
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "halfbridge-bench",  # required by the client, never joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 100_000,
            "check.crcs": False,
            **gather,
        }
    )
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
    return consumer


def consume(consumer: Any, count_max: int, timeout_s: float) -> list[Any]:
    """Return the available messages, after a wait of up to `timeout_s` for the first.

    Raises:
        KafkaException: the topic cannot be read, and the run has failed; the user runs it again.
    """
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    messages = [first, *consumer.consume(count_max, 0)]
    for message in messages:
        error = message.error()
        if error is not None and not error.retriable():
            raise KafkaException(error)
    return [message for message in messages if message.error() is None]


def make_plain_producer(bootstrap_servers: str, *, linger_ms: float = 5) -> Any:
    """Return an idempotent producer with acks=all; its linger is tuned for throughput."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": 100_000,
        }
    )


def produce_all(producer: Any, records: Iterable[tuple[Any, ...]]) -> bool:
    """Call `produce` with each record's arguments, at full speed; tell whether all arrived."""
    for number, record in enumerate(records):
        while True:
            try:
                producer.produce(*record)
                break
            except BufferError:
                producer.poll(0.01)
        if number % _SERVE_EVERY == 0:
            producer.poll(0)
    return not producer.flush(_ACK_S_MAX)
