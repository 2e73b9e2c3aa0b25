"""The proxy in front of a real broker."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from halfbridge.kafka.admin import AdminClient
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule

pytestmark = pytest.mark.broker

LIMIT_S = 60.0
TOPIC = "proxied"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    """Yield one broker behind a proxy."""
    with ProxiedCluster(1) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(LIMIT_S)
        yield started


def produced(servers: str, *, timeout_ms: int = 60_000) -> bool:
    """Tell whether a record was acknowledged."""
    errors: list[object] = []
    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "message.timeout.ms": timeout_ms}
    )
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(LIMIT_S) == 0
    (error,) = errors
    return error is None


def test_clients_stay_behind_the_proxy(cluster: ProxiedCluster) -> None:
    """A client of the proxy gets addresses of the proxy; other clients do not."""
    for servers in (cluster.proxied_servers, cluster.bootstrap_servers):
        (broker,) = AdminClient({"bootstrap.servers": servers}).list_topics().brokers.values()
        assert f"{broker.host}:{broker.port}" == servers


@pytest.mark.parametrize("fault", ["cut", "blackhole", "drop_answers"])
def test_a_fault_holds_until_it_is_healed(cluster: ProxiedCluster, fault: str) -> None:
    """Nothing is acknowledged by the proxy, everything past it, and again everything after."""
    getattr(cluster.proxy, fault)()
    assert not produced(cluster.proxied_servers, timeout_ms=1500)
    assert produced(cluster.bootstrap_servers)
    cluster.proxy.heal()
    assert produced(cluster.proxied_servers)


def test_an_answer_of_one_kind_is_lost(cluster: ProxiedCluster) -> None:
    """A commit succeeds, and its producer gets the answer only when it asks again."""
    producer = Producer(
        {"bootstrap.servers": cluster.proxied_servers, "transactional.id": "lost-answer"}
    )
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"y")
    cluster.proxy.add(Rule(api=Api.END_TXN, act=Act.SWALLOW))
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(2)
    assert raised.value.args[0].retriable()
    cluster.proxy.heal()
    producer.commit_transaction(LIMIT_S)
    assert cluster.proxy.hits(Act.SWALLOW, Api.END_TXN) == 1


def test_a_request_is_refused_in_the_brokers_stead(cluster: ProxiedCluster) -> None:
    """The client takes the error for the broker's, aborts, and the next kafka_txn succeeds."""
    producer = Producer({"bootstrap.servers": cluster.proxied_servers, "transactional.id": "no"})
    producer.init_transactions(LIMIT_S)
    group = Consumer({"bootstrap.servers": cluster.proxied_servers, "group.id": "no"})
    code = KafkaError.GROUP_AUTHORIZATION_FAILED
    rule = Rule(api=Api.ADD_OFFSETS_TO_TXN, act=Act.REFUSE, times=1, text="no", error=code)
    cluster.proxy.add(rule)

    def send_offsets() -> None:
        producer.begin_transaction()
        positions = [TopicPartition(TOPIC, 0, 1)]
        metadata = group.consumer_group_metadata()
        producer.send_offsets_to_transaction(positions, metadata, LIMIT_S)

    with pytest.raises(KafkaException) as raised:
        send_offsets()
    assert raised.value.args[0].code() == code
    assert raised.value.args[0].txn_requires_abort()
    producer.abort_transaction(LIMIT_S)
    send_offsets()
    producer.commit_transaction(LIMIT_S)
    assert cluster.proxy.hits(Act.REFUSE, Api.ADD_OFFSETS_TO_TXN) == 1
    group.close()
