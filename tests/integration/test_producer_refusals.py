"""The producer client on a real broker: what it refuses."""

import os
import threading

import pytest

from halfbridge.bridge import (
    BackpressureError,
    ConfigError,
    ForkedProcessError,
    HalfNotStoredError,
    IllegalTransitionError,
    InvalidMessageError,
    Message,
    ProducerClosedError,
    State,
    TopicSetupError,
)
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde import TopicNames
from tests.integration.producing import GROUP, TIMEOUT_S, Cluster

pytestmark = pytest.mark.broker


# --- validation --------------------------------------------------------------------------------


def test_messages_that_cannot_be_delivered_are_refused(cluster: Cluster) -> None:
    """Unbound, internal and missing topics, partitions, immunity, size: nothing is sent."""
    cluster.create((cluster.names.prefix + "unbound", 1))
    limit = 1_048_588 - 64 * 1024
    refused: list[tuple[Message, str]] = [
        (Message(cluster.names.prefix + "unbound"), "not bound"),
        (Message(cluster.names.half), "internal"),
        (Message("__consumer_offsets"), "internal"),
        (Message(cluster.orders, partition=3), "no partition 3"),
        (Message(cluster.orders, immunity_ms=129_600_001), "transaction_age_ms_max"),
        (Message(cluster.orders, value=b"x" * (limit + 1)), "64 KiB"),
        (Message(cluster.orders, value=b"x" * (limit - 1), headers=[("a", b"")]), "64 KiB"),
    ]
    with cluster.producer() as producer:
        for message, text in refused:
            tx = producer.begin()
            with pytest.raises(InvalidMessageError, match=text):
                tx.send(message)
            assert tx.state is State.INIT
        assert cluster.read(cluster.names.half) == []
        tx.send(Message(cluster.orders, value=b"x" * limit))
    ((record),) = cluster.read(cluster.names.half, 1)
    assert len(record.value()) == limit


def test_without_bound_topics_each_send_is_checked(cluster: Cluster) -> None:
    """topics=(): any real topic that exists, also one created after the start."""
    with cluster.producer(topics=()) as producer:
        late = cluster.names.prefix + "late"
        with pytest.raises(TopicSetupError, match="late"):
            producer.begin().send(Message(late))
        cluster.create((late, 1))
        while late not in cluster.visible():
            pass
        assert producer.begin().send(Message(late)).half_offset == 0


def test_a_transaction_holds_1000_messages_and_8_mib(cluster: Cluster) -> None:
    """All in one half partition, in order; one more of either is refused before it is sent."""
    with cluster.producer() as producer:
        tx = producer.begin()
        for number in range(1_000):
            future = tx.send_async(Message(cluster.orders, value=b"%d" % number))
        future.result()
        with pytest.raises(IllegalTransitionError, match="not acknowledged"):
            producer.begin().send_async(Message(cluster.orders)).transaction.commit()
        with pytest.raises(InvalidMessageError, match="1000 messages"):
            tx.send(Message(cluster.orders))
        tx.commit()
        big = producer.begin()
        for _ in range(8):
            big.send(Message(cluster.orders, value=b"x" * 900_000))
        big.send(Message(cluster.orders, value=b"x" * 900_000))
        with pytest.raises(InvalidMessageError, match="8 MiB"):
            big.send(Message(cluster.orders, value=b"x" * 900_000))
    records = [r for r in cluster.read(cluster.names.half) if len(r.value() or b"") in (1, 2, 3)]
    assert [int(r.value()) for r in records] == list(range(1_000))
    assert len({r.partition() for r in records}) == 1
    op = next(op for _, op in cluster.ops() if op.transaction_id == tx.id)
    assert (op.message_count, op.half_offset) == (1_000, records[-1].offset())


def test_a_checker_that_must_be_awaited_is_refused(cluster: Cluster) -> None:
    """Else every answer would be a coroutine that nobody awaits, and nothing would ever settle."""

    async def checker(_: object) -> None:
        """Answer the waiting caller."""

    with pytest.raises(ConfigError, match="plain function"):
        cluster.producer(checker)


@pytest.mark.parametrize(
    ("name", "value"), [("max.poll.interval.ms", "5000"), ("group.protocol", "consumer")]
)
def test_a_setting_that_no_check_consumer_can_have_is_refused_at_the_start(
    cluster: Cluster, name: str, value: str
) -> None:
    """Else only the log would say that no check is ever answered; no thread is left behind."""
    before = set(threading.enumerate())
    producer = cluster.producer(kafka={name: value})
    with pytest.raises(ConfigError, match="kafka"):
        producer.start()
    assert {each.name for each in set(threading.enumerate()) - before} == set()
    producer.close()


def test_wrong_topics_name_the_command(kafka_bootstrap_servers: str, topic_prefix: str) -> None:
    """Missing or unequal half and op topics, and missing real ones, are clear errors."""
    cluster = Cluster(kafka_bootstrap_servers, TopicNames(topic_prefix))
    command = f"halfbridge topics create --topic-prefix {topic_prefix} --producer-group {GROUP}"
    with pytest.raises(TopicSetupError, match=command):
        cluster.producer().start()
    cluster.create((cluster.names.half, 2), (cluster.names.op, 1))
    with pytest.raises(TopicSetupError, match=f"2 partitions .* has 1; .*{command}"):
        cluster.producer().start()


def test_missing_real_topic_and_created_check_topic(
    kafka_bootstrap_servers: str, topic_prefix: str
) -> None:
    """A bound topic must exist; the group's check topic is made where it is missing."""
    cluster = Cluster(kafka_bootstrap_servers, TopicNames(topic_prefix))
    cluster.create((cluster.names.half, 1), (cluster.names.op, 1))
    with pytest.raises(TopicSetupError, match="orders"):
        cluster.producer().start()
    with pytest.raises(InvalidMessageError, match="internal"):
        cluster.producer(topics=[cluster.names.dead]).start()
    topics = AdminClient({"bootstrap.servers": cluster.servers}).list_topics(timeout=TIMEOUT_S)
    assert len(topics.topics[cluster.names.check(GROUP)].partitions) == 4


def test_use_before_start_and_after_close(cluster: Cluster) -> None:
    """Both are ProducerClosedError; closing twice is nothing."""
    producer = cluster.producer()
    with pytest.raises(ProducerClosedError, match="not started"):
        producer.begin()
    with producer:
        tx = producer.begin()
        tx.send(Message(cluster.orders))
    producer.close()
    for use in (producer.begin, tx.commit, lambda: tx.send(Message(cluster.orders))):
        with pytest.raises(ProducerClosedError, match="closed"):
            use()


def test_no_room_after_all_is_a_half_message_that_was_not_stored(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction has counted it: it is no BackpressureError, whose call may be repeated."""
    monkeypatch.setattr("halfbridge.bridge.config._QUEUE_KBYTES_MAX", 1024)
    large = Message(cluster.orders, value=bytes(600_000))
    with cluster.producer(linger_ms=1000, send_timeout_ms=50) as producer:
        tx = producer.begin()
        first = tx.send_async(large)
        with pytest.raises(HalfNotStoredError) as caught:
            tx.send_async(large)
        assert isinstance(caught.value.__cause__, BackpressureError)
        assert caught.value.transaction_id == tx.id
        with pytest.raises(IllegalTransitionError, match="only rollback"):
            tx.commit()
        first.result(TIMEOUT_S)
        tx.rollback()


def test_a_forked_child_is_refused(cluster: Cluster) -> None:
    """Threads of librdkafka are not in the child: a clear error instead of a hang."""
    with cluster.producer() as producer:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.begin()
            except ForkedProcessError:
                producer.close()
                os.write(writer, b"refused")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        assert os.read(reader, 10) == b"refused"
        os.close(reader)
        with producer.begin() as tx:
            tx.send(Message(cluster.orders))
