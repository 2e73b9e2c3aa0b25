"""Fixtures that several integration tests share."""

from collections.abc import Iterator

import pytest

from halfbridge.kafka.admin import AdminClient
from halfbridge.serde import TopicNames
from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.brokers import AUTHORIZER, started
from tests.integration.producing import GROUP, PARTITIONS, TIMEOUT_S, Cluster


@pytest.fixture
def cluster(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[Cluster]:
    """An installation with half, op and check topics and one real topic."""
    made = Cluster(kafka_bootstrap_servers, TopicNames(topic_prefix))
    made.create(
        (made.names.half, PARTITIONS),
        (made.names.op, PARTITIONS),
        (made.names.check(GROUP), 1),
        (made.orders, 3),
    )
    yield made
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap_servers})
    for each in admin.delete_topics(made.topics).values():
        each.result(TIMEOUT_S)


@pytest.fixture(scope="module")
def guarded_servers() -> Iterator[str]:
    """A broker that enforces ACLs; where there is none on a resource, all is allowed."""
    properties = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    broker = EmbeddedBroker(properties=properties, heap_mib=512)
    with started(broker, "no broker that checks rights"):
        yield broker.bootstrap_servers
