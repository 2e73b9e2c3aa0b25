"""Real topics for tests, with records of the daemon and of other producers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.headers import Headers, real_headers
from tests.kit.waiting import until

TIMEOUT_S = 60.0
BORN_MS = 1_700_000_000_000
DAY_1_MS = 1_760_000_000_000  # 2025-10-09T08:53:20Z
DAY_2_MS = DAY_1_MS + 86_400_000


@dataclass(frozen=True, kw_only=True)
class Real:
    """One record of a delivery."""

    transaction_id: str
    partition: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Headers = field(default_factory=lambda: [("trace", b"\x00\xff")])
    timestamp_ms: int = DAY_1_MS
    index: int = 0  # of the message in its transaction


@dataclass(frozen=True)
class RealTopic:
    """A topic of a test's own."""

    servers: str
    name: str

    def begin(self, records: Iterable[Real], *, slot: int = 0) -> Producer:
        """Write the records in a kafka_txn that stays open."""
        producer = self._producer(slot)
        producer.begin_transaction()
        for each in records:
            producer.produce(
                self.name,
                each.value,
                each.key,
                partition=each.partition,
                headers=real_headers(each.headers, each.transaction_id, BORN_MS, each.index),
                timestamp=each.timestamp_ms,
            )
        assert producer.flush(TIMEOUT_S) == 0
        return producer

    def commit(self, *records: Real) -> None:
        """Write records that consumers see."""
        self.end(self.begin(records))

    def abort(self, *records: Real) -> None:
        """Write records that consumers must not see."""
        self.begin(records).abort_transaction(TIMEOUT_S)
        self._producer(0)

    def end(self, producer: Producer, *, slot: int = 0) -> None:
        """Commit, and return once consumers see it: the broker answers before it writes markers."""
        producer.commit_transaction(TIMEOUT_S)
        self._producer(slot)  # init_transactions waits for the markers

    def write_plain(
        self, value: bytes | None, *, key: bytes | None = None, partition: int = 0
    ) -> None:
        """Write a record without halfbridge's headers."""
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.name, value, key, partition=partition, timestamp=DAY_1_MS)
        assert producer.flush(TIMEOUT_S) == 0

    def _producer(self, slot: int) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "transactional.id": f"{self.name}-{slot}",
                "linger.ms": 0,
                # On a busy machine the default of one minute may expire before the test has read.
                "transaction.timeout.ms": 900_000,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def delete(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.servers})
        for deleted in admin.delete_topics([self.name]).values():
            deleted.result(TIMEOUT_S)
        # The controller answers before each broker knows it.
        until("the topic is gone", lambda: self.name not in admin.list_topics().topics)

    def make_anew(self) -> None:
        """Delete the topic and create it again, empty."""
        self.delete()
        make_topic(self.servers, self.name)

    def delete_before(self, offset: int, partition: int) -> None:
        """Delete the records of a partition below `offset`."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        where = TopicPartition(self.name, partition, offset)
        for deleted in admin.delete_records([where]).values():
            assert deleted.result(TIMEOUT_S).low_watermark == offset


def make_topic(servers: str, name: str, *, partitions: int = 2) -> RealTopic:
    """Return a new, empty topic with unlimited retention: the days above are long past."""
    admin = AdminClient({"bootstrap.servers": servers})
    new = NewTopic(name, partitions, 1, config={"retention.ms": "-1"})
    for made in admin.create_topics([new]).values():
        made.result(TIMEOUT_S)
    # The controller answers before each broker knows the topic.
    until("the topic is known", lambda: name in admin.list_topics().topics)
    return RealTopic(servers, name)
