"""That roles are found where they are: a fault aimed at the wrong broker proves nothing."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from halfbridge.kafka.admin import AdminClient
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule
from tests.kit.roles import Roles

pytestmark = [pytest.mark.broker, pytest.mark.long]

_CALL_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    """Yield three brokers behind a proxy."""
    with ProxiedCluster(3) as started:
        yield started


def test_leaders_are_found_and_moved(cluster: ProxiedCluster, topic_prefix: str) -> None:
    """A replica that did not lead a partition does, each time it is asked for."""
    topic = f"{topic_prefix}moving"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(_CALL_S)
    roles = Roles(cluster.bootstrap_servers)

    leaders = [roles.leader(topic, 0)]
    for _ in range(3):
        assert roles.move_leader(topic, 0) != leaders[-1]
        leaders.append(roles.leader(topic, 0))

    assert set(leaders) <= {1, 2, 3}


def test_transaction_coordinators_are_where_they_are_computed(
    cluster: ProxiedCluster, topic_prefix: str
) -> None:
    """The request that only the coordinator gets passes the proxy in front of that broker."""
    roles = Roles(cluster.bootstrap_servers)
    servers = {"bootstrap.servers": cluster.proxied_servers}
    Producer({**servers, "transactional.id": "first"}).init_transactions(_CALL_S)
    for number in range(6):
        transactional_id = f"{topic_prefix}{number}"
        node = roles.transaction_coordinator(transactional_id)
        before = cluster.proxy.hits(Act.HOLD, Api.INIT_PRODUCER_ID)
        cluster.proxy.add(Rule(api=Api.INIT_PRODUCER_ID, act=Act.HOLD, nodes=(node,)))
        Producer({**servers, "transactional.id": transactional_id}).init_transactions(_CALL_S)
        cluster.proxy.heal()

        assert cluster.proxy.hits(Act.HOLD, Api.INIT_PRODUCER_ID) > before
