"""An installation for tests of the producer client: topics, readers, writers, check requests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from halfbridge.bridge import MessageView, Resolution, TransactionProducer
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde import CHECK_REQUEST, OP, CheckRequest, Op, TopicNames
from halfbridge.serde.headers import CHECK
from tests.kit.waiting import until

PARTITIONS = 2
ASKED_PARTITION = 1
TIMEOUT_S = 20.0
GROUP = "orders-service"


@dataclass
class Cluster:
    """One installation, with readers and writers of its own."""

    servers: str
    names: TopicNames
    topics: list[str] = field(default_factory=list)

    @property
    def orders(self) -> str:
        """The real topic."""
        return self.names.prefix + "orders"

    def create(self, *topics: tuple[str, int]) -> None:
        """Create topics with broker timestamps."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        config = {"message.timestamp.type": "LogAppendTime"}
        made = admin.create_topics([NewTopic(n, p, 1, config=config) for n, p in topics])
        for each in made.values():
            each.result(TIMEOUT_S)
        self.topics.extend(name for name, _ in topics)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, and wait until the broker tells of them."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)
        shown = admin.list_topics
        until(
            f"{topic} has grown",
            lambda: len(shown(topic, TIMEOUT_S).topics[topic].partitions) >= partitions,
        )

    def visible(self) -> set[str]:
        """Return the topics that the broker's metadata shows."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        return set(admin.list_topics(timeout=TIMEOUT_S).topics)

    def producer(self, checker: Callable[[MessageView], Any] | None = None, **given: Any) -> Any:
        """Return a producer, not started yet."""
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.servers,
            "producer_group": GROUP,
            "topic_prefix": self.names.prefix,
            "topics": [self.orders],
            **given,
        }
        return TransactionProducer(checker=checker or answer_unknown, **arguments)

    def read(self, topic: str, count: int | None = None) -> list[Any]:
        """Return the records of a topic: until `count` are there, or else to its end now."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        records: list[Any] = []
        ended: set[int] = set()
        deadline = monotonic() + TIMEOUT_S
        try:
            while len(records) < count if count is not None else len(ended) < len(partitions):
                assert monotonic() < deadline, f"only {len(records)} records in {topic}"
                for record in consumer.consume(1000, 0.05):
                    if record.error() is None:
                        records.append(record)
                    else:
                        ended.add(record.partition())
        finally:
            consumer.close()
        return records

    def ops(self, count: int | None = None) -> list[tuple[Any, Op]]:
        """Return op records with their decoded values."""
        return [(record, OP.decode(record.value())) for record in self.read(self.names.op, count)]

    def ask(self, *requests: CheckRequest, key: bytes = b"k", value: bytes = b"v") -> None:
        """Write check requests as the daemon does, and before them one half record at least."""
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.names.half, value, key, partition=ASKED_PARTITION)
        assert producer.flush(TIMEOUT_S) == 0
        for request in requests:
            headers = [("h", b"1"), ("h", None), (CHECK, CHECK_REQUEST.encode(request))]
            producer.produce(self.names.check(GROUP), value, key, headers=headers, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


def answer_unknown(view: MessageView) -> Resolution:
    """Answer a check."""
    return Resolution.UNKNOWN


def request_of(cluster: Cluster, number: int = 1, **given: Any) -> CheckRequest:
    """Return a check request as the daemon would make it."""
    values: dict[str, Any] = {
        "transaction_id": f"{number:032x}",
        "sent_timestamp": 1,
        "half_offset": 0,
        "half_partition": ASKED_PARTITION,
        "resume_count": 0,
        "message_index": 0,
        "producer_group": GROUP,
        "real_topic": cluster.orders,
        "real_partition": -1,
        "check_number": 3,
        "attempt": 1,
        "born_timestamp": 77,
        **given,
    }
    return CheckRequest(**values)
