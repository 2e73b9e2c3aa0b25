"""Fixtures that several integration tests share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from halfbridge.kafka.admin import AdminClient
from halfbridge.serde import TopicNames
from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.brokers import AUTHORIZER, started
from tests.integration.producing import GROUP, PARTITIONS, TIMEOUT_S, Cluster
from tests.integration.shop import Shop
from tests.sql.servers import PostgresServer, Template


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


@pytest.fixture
def shop(kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Iterator[Shop]:
    """The examples, with the topics made and the daemon running."""
    made = Shop(kafka_bootstrap_servers, topic_prefix, tmp_path)
    server = ("--bootstrap-servers", kafka_bootstrap_servers)
    group = ("--producer-group", "order-service", "--producer-group", "billing-service")
    try:
        made.run("-m", "halfbridge", "topics", "create", *server, *group)
        made.run("make_topic.py")
        made.start("-m", "halfbridge", "checker", "run", *server)
        yield made
    finally:
        made.stop()
        admin = AdminClient({"bootstrap.servers": kafka_bootstrap_servers})
        for future in admin.delete_topics([made.topic, made.bills]).values():
            future.exception()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    with closing(Template(PostgresServer)) as made, PostgresServer(made, durable=False) as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    """A Redis server."""
    from tests.integration.celery_tasks import redis_server  # noqa: PLC0415  (others need no Celery)

    with redis_server() as made:
        yield made
