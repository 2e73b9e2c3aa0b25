"""The brokers of the testkit, and the Kafka that the fixture gives."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.broker import BrokerStartError, EmbeddedBroker, EmbeddedCluster
from tests.kit.caches import ARCHIVE_S_MAX, archives, maps, own_cache
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

LIMIT_S = 60.0


def create(servers: str, topic: str, *, replicas: int = 1) -> None:
    """Create a topic of one partition."""
    admin = AdminClient({"bootstrap.servers": servers})
    (made,) = admin.create_topics([NewTopic(topic, 1, replicas)]).values()
    made.result(LIMIT_S)


def produce(servers: str, topic: str, *values: bytes) -> None:
    """Produce with acks=all; every record is acknowledged when this returns."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    errors: list[object] = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: errors.append(error) if error else None
        )
    assert producer.flush(LIMIT_S) == 0
    assert errors == []


def read(servers: str, topic: str) -> list[bytes | None]:
    """Return the values of the only partition, up to its end now, `read_committed`."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = monotonic() + LIMIT_S
    try:
        while monotonic() < deadline:
            record = consumer.poll(0.5)
            if record is None:
                continue
            if record.error() is None:
                values.append(record.value())
            elif not record.error().retriable():  # the end of the partition, or a failure
                return values
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} after {LIMIT_S} s: {values}")


def group_is_gone(leader: int) -> bool:
    """Tell whether no process of the group that `leader` led is there."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Three nodes."""
    with EmbeddedCluster(3) as running:
        yield running


def test_produce_and_consume(kafka_bootstrap_servers: str, topic_prefix: str) -> None:
    """What was acknowledged is read back in order."""
    topic = topic_prefix + "orders"
    create(kafka_bootstrap_servers, topic)
    produce(kafka_bootstrap_servers, topic, b"1", b"2", b"3")
    assert read(kafka_bootstrap_servers, topic) == [b"1", b"2", b"3"]


def test_kafka_txn_is_seen_when_committed(kafka_bootstrap_servers: str, topic_prefix: str) -> None:
    """A read_committed consumer gets the committed kafka_txn, not the aborted one before it."""
    topic = topic_prefix + "orders"
    create(kafka_bootstrap_servers, topic)
    producer = Producer(
        {"bootstrap.servers": kafka_bootstrap_servers, "transactional.id": topic_prefix}
    )
    producer.init_transactions(LIMIT_S)
    for value, end in ((b"aborted", producer.abort_transaction), (b"kept", None)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(LIMIT_S) == 0
        (end or producer.commit_transaction)(LIMIT_S)
    assert read(kafka_bootstrap_servers, topic) == [b"kept"]


def test_topics_are_not_created_by_mistake(kafka_bootstrap_servers: str, topic_prefix: str) -> None:
    """Producing to a topic that nobody created fails instead of making one."""
    producer = Producer({"bootstrap.servers": kafka_bootstrap_servers, "message.timeout.ms": 3000})
    errors: list[object] = []
    producer.produce(topic_prefix + "absent", b"x", on_delivery=lambda e, _: errors.append(e))
    producer.flush(LIMIT_S)
    assert len(errors) == 1
    assert errors[0] is not None


def test_kill_and_restart_keep_data_and_address(tmp_path: Path) -> None:
    """SIGKILL loses nothing acknowledged; a stopped broker's directory can be used again."""
    with EmbeddedBroker(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        create(servers, "orders")
        produce(servers, "orders", b"1")
        broker.kill()
        assert broker.process_id is None
        broker.restart()
        assert broker.bootstrap_servers == servers
        assert read(servers, "orders") == [b"1"]
        assert broker.log_path.stat().st_size > 0
    with EmbeddedBroker(tmp_path / "data") as broker:
        assert read(broker.bootstrap_servers, "orders") == [b"1"]


def test_pause_stops_answers_and_resume_brings_them_back() -> None:
    """A paused broker is alive and silent; nothing is lost when it resumes."""
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.list_topics(timeout=LIMIT_S)
        broker.pause()
        assert broker.process_id is not None
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=0.5)
        broker.resume()
        assert len(admin.list_topics(timeout=LIMIT_S).brokers) == 1


def test_stop_leaves_no_process_and_no_directory() -> None:
    """Not even when it was paused."""
    broker = EmbeddedBroker().start()
    directory, process_id = broker.directory, broker.process_id
    assert process_id is not None
    broker.pause()
    broker.stop()
    assert group_is_gone(process_id)
    assert not directory.exists()
    broker.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_owner_that_dies_leaves_nothing(number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and SIGKILL of the process that started a broker end the broker too."""
    script = (
        "import select, sys; from halfbridge.testkit.broker import EmbeddedBroker\n"
        "with EmbeddedBroker() as broker:\n"
        "    print(broker.process_id, broker.directory, flush=True)\n"
        # Python looks for signals before a call that blocks, and after it: one that comes between
        # look and call would wait for the end of a plain read.
        "    while not select.select([sys.stdin], [], [], 0.1)[0]: pass"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        process_id, directory = owner.stdout.readline().split()
        owner.send_signal(number)
        owner.wait(LIMIT_S)
        # The last thing that the watchdog does.
        until("the directory is gone", lambda: not Path(directory).exists(), within_s=LIMIT_S)
    assert group_is_gone(int(process_id)) or is_zombie(int(process_id))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_broker_maps_the_archive_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_bootstrap_servers: str
) -> None:
    """The first broker's classes are in an archive soon, which the next broker's JVM maps."""
    monkeypatch.setenv("HALFBRIDGE_CACHE_DIR", str(own_cache(tmp_path)))
    with EmbeddedBroker():
        until("the archive is made", lambda: archives(tmp_path), within_s=ARCHIVE_S_MAX)
    (archive,) = archives(tmp_path)
    with EmbeddedBroker() as broker:
        assert broker.process_id is not None
        assert maps(broker.process_id, archive)


def is_zombie(process_id: int) -> bool:
    """Tell whether it is dead and merely not reaped, where the init process does not do that."""
    status = Path(f"/proc/{process_id}/status")
    return status.exists() and "State:\tZ" in status.read_text()


def test_a_cluster_id_may_begin_with_a_dash(tmp_path: Path) -> None:
    """One random id in 64 does; Kafka's storage tool took it for an option, and nothing started."""
    (tmp_path / "cluster.id").write_text("-3FBYW-oTd2GaPjd3A4iVA", "utf-8")
    with EmbeddedBroker(tmp_path) as broker:
        create(broker.bootstrap_servers, "orders")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        assert admin.describe_cluster().result(LIMIT_S).cluster_id == "-3FBYW-oTd2GaPjd3A4iVA"


def test_failed_start_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    """A setting that Kafka refuses is in the error, in Kafka's own words."""
    with pytest.raises(BrokerStartError, match=r"(?s)ended with status 1.*num\.io\.threads"):
        EmbeddedBroker(tmp_path, properties={"num.io.threads": "0"}).start()


def test_cluster_works_without_one_node(cluster: EmbeddedCluster) -> None:
    """With acks=all and two in sync, one killed node costs nothing; it comes back with all."""
    servers = cluster.bootstrap_servers
    create(servers, "orders", replicas=3)
    produce(servers, "orders", b"1")
    victim = AdminClient({"bootstrap.servers": servers}).list_topics("orders", LIMIT_S)
    leader = victim.topics["orders"].partitions[0].leader
    cluster.node(leader).kill()
    produce(servers, "orders", b"2")
    assert read(servers, "orders") == [b"1", b"2"]
    cluster.node(leader).restart()
    assert read(cluster.node(leader).bootstrap_servers, "orders") == [b"1", b"2"]


def test_cluster_works_with_one_node_paused(cluster: EmbeddedCluster) -> None:
    """A node that hangs is voted out like a dead one, and rejoins when it resumes."""
    servers = cluster.bootstrap_servers
    create(servers, "paused", replicas=3)
    cluster.node(1).pause()
    produce(servers, "paused", b"1")
    cluster.node(1).resume()
    cluster.node(1).wait_ready(brokers_min=3)
    assert read(servers, "paused") == [b"1"]
