"""A writer whose client has met a fatal error."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import KafkaFailure
from halfbridge.kafka.ports import NewTopic
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule

pytestmark = pytest.mark.broker

TOPIC = "orders"
INVALID_RECORD = 87  # Kafka's code: a writer without gaps takes it for fatal
CALL_S = 20.0
CALLS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProxiedCluster]:
    """A broker behind a proxy."""
    with ProxiedCluster(1) as cluster:
        kafka = system_ports().kafka
        admin = kafka.admin({"bootstrap.servers": cluster.proxied_servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1, {})], CALL_S)[TOPIC].result()
        yield cluster


@pytest.mark.parametrize("call", ["flush", "poll"])
def test_whoever_waits_for_acknowledgements_hears_of_it(cluster: ProxiedCluster, call: str) -> None:
    """By a KafkaFailure: the client's own flush raises SystemError, or what is no exception."""
    properties = {
        "bootstrap.servers": cluster.proxied_servers,
        "acks": "all",
        "enable.idempotence": True,
        "enable.gapless.guarantee": True,
        "error_cb": lambda _: None,
        "log_level": 2,
    }
    writer = system_ports().kafka.writer(properties)
    reported: list[Any] = []
    cluster.proxy.add(Rule(api=Api.PRODUCE, act=Act.FAIL, error=INVALID_RECORD, times=1))
    writer.produce(TOPIC, b"row", None, 0, lambda error, _: reported.append(error))
    with pytest.raises(KafkaFailure) as failure:
        _repeat(getattr(writer, call))
    assert failure.value.is_fatal
    writer.purge()
    assert writer.flush(CALL_S) == 0
    assert [error is not None for error in reported] == [True]


def _repeat(call: Callable[[float], int]) -> None:
    """Call again: a poll that serves another event first returns, and the next poll raises."""
    for _ in range(CALLS):
        call(CALL_S)
