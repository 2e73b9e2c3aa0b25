"""What taking turns rests on: of two transactional offset commits the newer one is in force.

The daemon alternates between transactional producers, each commit acknowledged before the next
kafka_txn begins. The markers of two such kafka_txns may still arrive in any order at the group's
coordinator; a broker that let the older marker win would make the daemon deliver twice.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.broker import EmbeddedBroker
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

_PARTITIONS = 4
_ROUNDS = 800
_ROUNDS_BEFORE_RESTART = 100
_CALL_S = 30.0


class Group:
    """A group with one member, and two transactional producers that commit its offsets."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.topic = f"{prefix}in"
        self.group = f"{prefix}group"
        self.servers = servers
        self.admin: Any = AdminClient({"bootstrap.servers": servers})
        made = self.admin.create_topics([NewTopic(self.topic, _PARTITIONS, 1)])
        made[self.topic].result(_CALL_S)
        self._member = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._joined = threading.Event()
        self._member.subscribe([self.topic], on_assign=lambda *_: self._joined.set())
        until("the member joins", lambda: (self._member.poll(0.05), self._joined.is_set())[1])
        self._producers = [
            Producer(
                {
                    "bootstrap.servers": servers,
                    "transactional.id": f"{prefix}turn-{turn}",
                    "retry.backoff.ms": 1,
                }
            )
            for turn in range(2)
        ]
        for producer in self._producers:
            producer.init_transactions(_CALL_S)

    def commit(self, number: int) -> None:
        """Commit offset `number` on every partition, by the producer whose turn it is."""
        producer = self._producers[number % 2]
        producer.begin_transaction()
        # A record as well, as the daemon has: its markers go to more brokers than the group's.
        producer.produce(self.topic, b"", partition=number % _PARTITIONS)
        positions = [
            TopicPartition(self.topic, partition, number, f"v{number}")
            for partition in range(_PARTITIONS)
        ]
        metadata = self._member.consumer_group_metadata()
        producer.send_offsets_to_transaction(positions, metadata, _CALL_S)
        producer.commit_transaction(_CALL_S)

    def keep_alive(self) -> None:
        """Stay a member: polled in time, without taking anything in."""
        self._member.poll(0)

    def close(self) -> None:
        """Leave the group and delete the topic."""
        self._member.close()
        self.admin.delete_topics([self.topic])[self.topic].result(_CALL_S)


class Asker:
    """Asks for the committed offsets, stable ones only, as a new owner of partitions does."""

    def __init__(self, group: Group) -> None:
        self._places = [TopicPartition(group.topic, each) for each in range(_PARTITIONS)]
        self._consumer = Consumer(
            {
                "bootstrap.servers": group.servers,
                "group.id": group.group,
                "isolation.level": "read_committed",
            }
        )

    def committed(self) -> list[int]:
        """Return the committed offset of each partition; checks that metadata belongs to it."""
        answered: list[Any] = self._consumer.committed(self._places, timeout=_CALL_S)
        for one in answered:
            assert one.error is None
            assert one.offset < 0 or one.metadata == f"v{one.offset}"
        return [one.offset for one in answered]

    def is_answered(self) -> bool:
        try:
            self.committed()
        except (KafkaException, AssertionError):
            return False
        return True

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def group(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Group]:
    """Yield a group on the session's Kafka."""
    made = Group(kafka_bootstrap_servers, topic_prefix)
    yield made
    made.close()


def test_committed_never_shows_an_older_offset(group: Group) -> None:
    """800 kafka_txns in turn: no query sees an offset go back.

    After each commit was acknowledged, a question shows exactly that offset.
    """
    steps_back: list[tuple[list[int], list[int]]] = []
    stop = threading.Event()
    asked = 0

    def watch() -> None:
        nonlocal asked
        asker = Asker(group)
        before = [-(10**9)] * _PARTITIONS
        while not stop.is_set():
            after = asker.committed()
            asked += 1
            if any(new < old for new, old in zip(after, before, strict=True)):
                steps_back.append((before, after))
            before = after
        asker.close()

    thread = threading.Thread(target=watch)
    thread.start()
    asker = Asker(group)
    try:
        for number in range(1, _ROUNDS + 1):
            group.commit(number)
            if number % 4 == 0:
                assert asker.committed() == [number] * _PARTITIONS
            group.keep_alive()
    finally:
        stop.set()
        thread.join()
        asker.close()

    assert steps_back == []
    assert asked > _ROUNDS // 10


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_restarted_broker_still_shows_the_newest_offset(
    broker: EmbeddedBroker, topic_prefix: str, kill: bool
) -> None:
    """The coordinator reads the same order back from its log: the newest one is in force."""
    group = Group(broker.bootstrap_servers, topic_prefix)
    for number in range(1, _ROUNDS_BEFORE_RESTART + 1):
        group.commit(number)
    if kill:
        broker.kill()
    broker.restart()

    asker = Asker(group)
    try:
        until("the coordinator has read its log", asker.is_answered)
        assert asker.committed() == [_ROUNDS_BEFORE_RESTART] * _PARTITIONS
    finally:
        asker.close()
        group.close()
