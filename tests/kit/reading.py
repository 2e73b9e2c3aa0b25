"""A consumer of a test's own, which reads what is committed and stores no offsets."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, TopicPartition


def reader_of(servers: str, topics: Iterable[str], *, partitions: int, **settings: Any) -> Consumer:
    """Return a consumer at offset 0 of these topics; settings as fetch_wait_max_ms=5."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test-reader",  # required by the client, never joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    places = [TopicPartition(topic, each, 0) for topic in topics for each in range(partitions)]
    consumer.assign(places)
    return consumer
