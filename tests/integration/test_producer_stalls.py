"""A consumer of checks that fetches nothing more, without an error, while the daemon asks on."""

from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge.bridge import MessageView, Resolution, check_requests
from halfbridge.serde import TopicNames
from tests.integration.brokers import started
from tests.integration.producing import GROUP, PARTITIONS, Cluster, request_of
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

NEVER_MS = 600_000
# So many looks in a row that find nothing: more than fit into the time that a stall takes.
CALM = 15


@pytest.fixture(scope="module")
def brokers() -> Iterator[ProxiedCluster]:
    """Yield a broker behind a proxy."""
    with started(ProxiedCluster(1), "no broker") as made:
        yield made


@pytest.fixture
def proxied(brokers: ProxiedCluster, topic_prefix: str) -> Iterator[Cluster]:
    """Yield an installation on that broker; what is asked and read does not go by the proxy."""
    made = Cluster(brokers.bootstrap_servers, TopicNames(topic_prefix))
    names = made.names
    made.create(
        *((names.half, PARTITIONS), (names.op, PARTITIONS), (names.check(GROUP), 1)),
        (made.orders, 1),
    )
    yield made
    brokers.proxy.heal()


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client look more often."""
    monkeypatch.setattr(check_requests, "POLL_S", 0.02)
    monkeypatch.setattr(check_requests, "STALLED_S", 2.0)


@pytest.mark.parametrize("before", [0, 1], ids=["from the first one", "later"])
def test_checks_that_a_consumer_does_not_fetch_are_answered(
    brokers: ProxiedCluster, proxied: Cluster, before: int
) -> None:
    """This member answered none of them until it was started again, and the group others only."""
    fetch = {"api": Api.FETCH, "act": Act.HOLD, "delay_ms": NEVER_MS, "times": 1}
    held = Rule(**fetch, text=f"halfbridge-{GROUP}")
    hits = brokers.proxy.hits(Act.HOLD, Api.FETCH)
    if not before:
        brokers.proxy.add(held)
    servers = brokers.proxied_servers
    with proxied.producer(_commit, bootstrap_servers=servers) as producer:
        for number in range(before):
            proxied.ask(request_of(proxied, number))
            proxied.ops(number + 1)
        if before:
            brokers.proxy.add(held)
        until("a fetch is held", lambda: brokers.proxy.hits(Act.HOLD, Api.FETCH) == hits + 1)

        asked = request_of(proxied, before)
        proxied.ask(asked)

        until("it is answered", lambda: producer.check_counts().answered > before)
        assert producer.check_counts().errors == 1
        assert asked.transaction_id in {op.transaction_id for _, op in proxied.ops(before + 1)}


def test_a_consumer_that_has_read_all_is_kept(
    brokers: ProxiedCluster, proxied: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log without records, and of one that it has read to its end."""
    found: list[dict[Any, Any]] = []  # what is behind, each time that the broker answered
    compare = check_requests.compare

    def watched(*given: Any) -> dict[Any, Any]:
        behind = compare(*given)
        ends = given[2]
        if ends:
            found.append(behind)
        return behind

    def calm() -> bool:
        return len(found) >= CALM and not any(found[-CALM:])

    monkeypatch.setattr(check_requests, "compare", watched)
    with proxied.producer(_commit) as producer:
        until("nothing is missing of an empty log", calm)
        proxied.ask(request_of(proxied))
        proxied.ops(1)
        found.clear()
        until("nothing is missing of one that was read", calm)
        assert producer.check_counts().errors == 0


def _commit(_: MessageView) -> Resolution:
    return Resolution.COMMIT
