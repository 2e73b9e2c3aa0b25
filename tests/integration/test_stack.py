"""The stack that services test with: Kafka, topics and a daemon in one object."""

import re
from collections.abc import Iterator

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.kafka.admin import AdminClient
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.stack import DaemonError, DaemonProgress, HalfbridgeStack, OwnTopics

pytestmark = pytest.mark.broker

CALL_S = 20.0


@pytest.fixture
def own_stack(kafka_bootstrap_servers: str) -> Iterator[HalfbridgeStack]:
    with HalfbridgeStack(kafka_bootstrap_servers) as stack:
        yield stack


def unknown(_view: MessageView) -> Resolution:
    """Answer that nothing is known."""
    return Resolution.UNKNOWN


def topics(servers: str) -> set[str]:
    """Return the topics that a cluster has."""
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=CALL_S).topics)


@pytest.mark.feature
def test_decisions_are_visible_once_it_says_so(
    halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """After `wait_until_decided` one look is enough: commits are there, rollbacks are not."""
    topic = halfbridge_topics.create("orders", partitions=2)
    assert re.fullmatch(r"t[0-9a-f]{8}-orders", topic)
    with halfbridge_stack.producer("orders-service", checker=unknown, topics=[topic]) as producer:
        for number in range(20):
            with producer.begin() as tx:
                tx.send(Message(topic, value=b"%d" % number))
                if number % 2:
                    tx.rollback()
    halfbridge_stack.wait_until_decided()
    read = {record.value for record in halfbridge_stack.read_committed(topic)}
    assert read == {b"%d" % number for number in range(0, 20, 2)}


def test_what_is_left_is_named(own_stack: HalfbridgeStack) -> None:
    """Nobody decides: waiting ends with the partition in which something is undecided."""
    topic = own_stack.create_topic(f"{own_stack.topic_prefix}orders")
    with own_stack.producer("orders-service", checker=unknown) as producer:
        receipt = producer.begin().send(Message(topic, value=b"v"))
    half = f"{own_stack.config.names.half}[{receipt.half_partition}] is done up to 0"
    with pytest.raises(TimeoutError, match=re.escape(half)):
        own_stack.wait_until_decided(timeout_s=0.2)
    with pytest.raises(TimeoutError, match="0 of 1 records"):
        own_stack.read_committed(topic, count=1, timeout_s=0.2)


def test_topics_that_are_not_there_are_not_done(kafka_bootstrap_servers: str) -> None:
    """A broker that does not know them yet has nothing undecided to show, and must not be believed.

    Waiting would end at once otherwise, right after a restart of the brokers.
    """
    with DaemonProgress(kafka_bootstrap_servers, TopicNames("nobody-made-these-")) as progress:
        left = progress.left()
    assert len(left) == 2
    assert all(line.endswith("is not there") for line in left)


def test_the_daemon_can_be_killed_and_started_again(own_stack: HalfbridgeStack) -> None:
    """A service's test may ask what happens while the daemon is away: decisions wait for it."""
    topic = own_stack.create_topic(f"{own_stack.topic_prefix}orders")
    with own_stack.producer("orders-service", checker=unknown) as producer:
        own_stack.daemon.kill()
        with producer.begin() as tx:
            tx.send(Message(topic, value=b"meanwhile"))
        with pytest.raises(DaemonError, match="does not run"):
            own_stack.wait_until_decided()
        own_stack.daemon.start()
        own_stack.wait_until_decided()
    assert [record.value for record in own_stack.read_committed(topic)] == [b"meanwhile"]


def test_nothing_is_left_in_the_cluster(kafka_bootstrap_servers: str) -> None:
    """A cluster that somebody gave has the topics that it had."""
    with HalfbridgeStack(kafka_bootstrap_servers) as stack:
        real = stack.create_topic(f"{stack.topic_prefix}orders")
        assert {real, stack.config.names.half} <= topics(kafka_bootstrap_servers)
    left = {name for name in topics(kafka_bootstrap_servers) if stack.topic_prefix in name}
    assert left == set()
    with pytest.raises(RuntimeError, match="not started"):
        _ = stack.bootstrap_servers


def test_a_daemon_that_does_not_start_says_why(kafka_bootstrap_servers: str) -> None:
    """The end of its log is in the error, and a wrong setting is refused before anything starts."""
    with pytest.raises(ConfigError, match="check_count_max"):
        HalfbridgeStack(kafka_bootstrap_servers, check_count_max=0).start()
    stack = HalfbridgeStack(kafka_bootstrap_servers, metrics_host="203.0.113.1")
    with pytest.raises(DaemonError, match="give another --metrics-port"):
        stack.start()
