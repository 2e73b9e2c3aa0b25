"""Topics that not every broker has heard of yet."""

from collections.abc import Iterator
from concurrent.futures import Future
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import Layout, TopicShape
from halfbridge.checker.admin.topics import create_topics
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.clients import Questions
from halfbridge.checker.loop.topic_watch import TopicSettings
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.topics import TopicNames
from tests.integration.brokers import started
from tests.integration.installation import Installation
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule
from tests.kit.waiting import until

pytestmark = pytest.mark.broker
RETENTION_MS = 7 * 24 * 3_600_000
TIMES = 3


@pytest.fixture
def cluster() -> Iterator[ProxiedCluster]:
    """Yield a broker behind a proxy."""
    with started(ProxiedCluster(1), "no broker") as made:
        yield made


def test_a_broker_that_has_not_heard_of_a_new_topic_is_asked_again(cluster: ProxiedCluster) -> None:
    """Any broker may be asked for a topic's settings, the one that made it or another."""
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    cluster.proxy.add(Rule(api=Api.DESCRIBE_CONFIGS, act=Act.FAIL, error=unknown, times=TIMES))
    layout = Layout(partitions=1, replication_factor=1, retention_ms=RETENTION_MS)
    report = create_topics(Cluster(cluster.proxied_servers), TopicNames(), layout)
    assert cluster.proxy.hits(Act.FAIL, Api.DESCRIBE_CONFIGS) == TIMES
    assert TopicNames().half in report.created
    assert report.problems == ()


def test_a_topic_whose_making_was_not_answered_is_made_and_new(
    cluster: ProxiedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client drops what it asked of a broker that the others' metadata no longer names.

    Metadata that leave a broker out come at moments that no test can choose, so the client's words
    are put in its mouth, over a request that came through.
    """
    admin = Cluster(cluster.bootstrap_servers)
    create = AdminClient.create_topics
    lost: list[str] = []

    def dropped(client: AdminClient, topics: list[Any], **options: Any) -> dict[str, Future[None]]:
        made: dict[str, Future[None]] = create(client, topics, **options)
        (name,) = made
        if lost:
            return made
        made[name].result()
        lost.append(name)
        failed: Future[None] = Future()
        failed.set_exception(KafkaException(KafkaError(KafkaError._DESTROY_BROKER)))
        return {name: failed}

    monkeypatch.setattr(AdminClient, "create_topics", dropped)
    shape = TopicShape("orders", 1, ())
    assert admin.create(shape, replication_factor=1)
    assert lost == ["orders"]
    assert not admin.create(shape, replication_factor=1), "it is there already"


# --- the settings of topics as a broker tells them -----------------------------------------


def test_limits_of_internal_and_real_topics(installation: Installation) -> None:
    """A topic's own limit, a default of the broker, and none of a topic that is missing."""
    installation.make()
    names = installation.names
    installation.alter(names.half, max_message_bytes="2000000")
    small = installation.topic("small", max_message_bytes="1000")
    missing = installation.real("missing")
    config = CheckerConfig(bootstrap_servers=installation.servers, topic_prefix=names.prefix)
    settings = TopicSettings(Questions(config, system_ports()), (names.half, names.dead))

    def found() -> list[int | None]:
        settings.poll(monotonic())
        topics = (names.half, names.dead, small, installation.real("fence"), missing)
        return [settings.max_bytes(topic) for topic in topics]

    wanted = [2_000_000, 1_048_588 + 128 * 1024, 1_000, 1_048_588, None]
    until("all limits are known", lambda: found() == wanted)
