"""A pair that cannot be had at present waits; the other pairs of its worker start, and go on."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from halfbridge.checker.admin.shape import Layout, wanted_topics
from halfbridge.checker.loop import assignment
from halfbridge.testkit.broker import EmbeddedBroker, EmbeddedCluster
from tests.integration.brokers import started
from tests.integration.installation import HALF_RETENTION_MS, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

STAYS, DIES = 1, 3  # nodes
SOUND, WAITS = 0, 1


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Yield a cluster of its own, of which the test may kill a node."""
    with started(EmbeddedCluster(3), "no broker to kill") as made:
        yield made


@pytest.fixture
def installation(cluster: EmbeddedCluster, topic_prefix: str) -> Iterator[Installation]:
    """Yield an installation with two pairs, of which one op partition is on the node that dies."""
    with closing(Installation(cluster.bootstrap_servers, topic_prefix)) as made:
        layout = Layout(partitions=2, replication_factor=1, retention_ms=HALF_RETENTION_MS)
        shapes = {shape.name: shape for shape in wanted_topics(made.names, layout)}
        for topic, nodes in {made.names.half: (STAYS, STAYS), made.names.op: (STAYS, DIES)}.items():
            settings = {each.key: each.value for each in shapes[topic].settings}
            _place(made, topic, nodes, settings)
        _place(made, made.real("orders"), (STAYS,), {})
        made.make(partitions=2)
        yield made


def _place(made: Installation, topic: str, nodes: Sequence[int], settings: dict[str, str]) -> None:
    """Make a topic, each partition on the node of its place."""
    replicas = [[node] for node in nodes]
    new = NewTopic(topic, len(nodes), replica_assignment=replicas, config=settings)
    made.admin.create_topics([new])[topic].result()
    until(f"{topic} is led", lambda: made.is_led(topic, len(nodes)))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Yield a broker of its own, whose files the test may spoil."""
    with started(EmbeddedBroker(directory=tmp_path), "no broker to spoil") as made:
        yield made


@pytest.fixture
def alone(broker: EmbeddedBroker, topic_prefix: str) -> Iterator[Installation]:
    with closing(Installation(broker.bootstrap_servers, topic_prefix)) as made:
        yield made


def test_a_pair_waits_for_its_leader_and_the_others_go_on(
    cluster: EmbeddedCluster, installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nobody could ask about kept every pair of its worker from starting."""
    monkeypatch.setattr(assignment, "UNHEALTHY_S", 3.0)
    orders = installation.real("orders")
    for partition in (SOUND, WAITS):
        installation.pass_through(orders, partition=partition)
    cluster.node(DIES).kill()
    until("it is not led", lambda: not installation.is_led(installation.names.op, 2))

    daemon = installation.start()
    installation.tail(orders).until(1)
    daemon.counts("halfbridge_partitions_waiting", 1)
    daemon.counts("halfbridge_partitions_stopped", 0)
    assert installation.names.op in daemon.stopped(WAITS)
    assert daemon.healthz()[0] == 503
    installation.pass_through(orders, partition=SOUND)
    installation.tail(orders).until(2)

    cluster.node(DIES).restart()
    installation.tail(orders).until(3)
    daemon.counts("halfbridge_partitions_waiting", 0)
    until("health is green", lambda: daemon.healthz()[0] == 200)


def test_a_pair_that_cannot_be_read_waits_and_the_others_go_on(
    broker: EmbeddedBroker, alone: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged record had all pairs of the worker rebuilt, every few seconds, for ever."""
    monkeypatch.setattr(assignment, "UNHEALTHY_S", 0.0)
    alone.make(partitions=2)
    orders = alone.topic("orders")
    _spoil(broker, alone, WAITS)

    daemon = alone.start()
    assert alone.names.half in daemon.stopped(WAITS)
    daemon.counts("halfbridge_partitions_waiting", 1)
    for count in range(1, 4):
        alone.pass_through(orders, partition=SOUND)
        alone.tail(orders).until(count)


def test_a_worker_whose_only_pair_cannot_be_read_is_ill(
    broker: EmbeddedBroker, alone: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seemed healthy at each probe, because it had just begun again."""
    monkeypatch.setattr(assignment, "UNHEALTHY_S", 0.0)
    alone.make(partitions=1)
    alone.half(alone.topic("orders"), partition=SOUND)
    _spoil(broker, alone, SOUND)

    daemon = alone.launch()
    assert alone.names.half in daemon.stopped(SOUND)
    daemon.counts("halfbridge_partitions_waiting", 1)
    until("health is red", lambda: daemon.healthz()[0] == 503)


def _spoil(broker: EmbeddedBroker, alone: Installation, partition: int) -> None:
    """Append a record to a half partition, and damage the record while the broker is down.

    After a record whose checksum is wrong, librdkafka 2.16 continues at a wrong place: up to some
    hundred bytes before the end of that record. There it may meet what ends the process (its
    rd_slice_narrow_copy). 10,000 times "x" are refused in any place: 120 is no version of a record.
    """
    value = b"x" * 10_000
    alone.write(alone.names.half, value, partition=partition)
    broker.node().terminate()
    (path,) = broker.directory.glob(f"**/{alone.names.half}-{partition}/*.log")
    content = path.read_bytes()
    assert value in content
    path.write_bytes(content.replace(value, b"y" + value[1:]))
    broker.restart()
