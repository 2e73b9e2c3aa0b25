"""A consumer that fetches nothing more, without an error, and a log that goes on."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from checker import stall_watch, worker
from halfbridge.testkit.cluster import EmbeddedCluster
from halfbridge.testkit.proxy import Act, Api, Rule
from tests.integration.brokers import started
from tests.integration.installation import Installation
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.broker

WATCHED = "watched-client"
NEVER_MS = 600_000
WINDOW = 3
# So many looks in a row that find nothing: more than fit into the time that a stall takes.
CALM = 50


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Yield a broker behind a proxy."""
    with started(EmbeddedCluster(1, proxied=True), "no broker") as made:
        yield made


def test_a_consumer_that_stands_still_is_replaced(
    cluster: EmbeddedCluster, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was well, and delivered nothing of a partition until it was started again."""
    monkeypatch.setattr(stall_watch, "LOOK_S", 0.5)
    monkeypatch.setattr(stall_watch, "STALLED_S", 2.0)
    monkeypatch.setattr(worker, "DOZE_S", 3600.0)  # the bell's fetches are not the ones to lose
    kafka = {"client.id": WATCHED}  # left alone, it would ask anew after a minute
    with closing(Installation(cluster.proxied_servers, topic_prefix)) as installation:
        installation.make()
        daemon = installation.start(kafka=kafka)
        orders = installation.topic("orders")
        installation.pass_through(orders)
        tail = installation.tail(orders)
        tail.until(1)

        lost = Rule(api=Api.FETCH, act=Act.HOLD, delay_ms=NEVER_MS, text=WATCHED, times=1)
        cluster.proxy.add(lost)
        until("a fetch is lost", lambda: cluster.proxy.hits(lost.act, Api.FETCH))
        installation.pass_through(orders)

        daemon.counts("halfbridge_consumer_stalls_total", 1)
        tail.until(2)
        daemon.counts("halfbridge_consumer_stalls_total", 1)


def test_a_daemon_that_has_read_all_keeps_its_consumer(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Awake and dozing; what lies behind the last record of its partitions are markers."""
    found: list[dict[tuple[str, int], stall_watch.Behind]] = []
    compare = stall_watch.compare

    def watched(*given: Any) -> dict[tuple[str, int], stall_watch.Behind]:
        found.append(compare(*given))
        return found[-1]

    monkeypatch.setattr(stall_watch, "compare", watched)
    monkeypatch.setattr(stall_watch, "LOOK_S", 0.02)
    monkeypatch.setattr(stall_watch, "STALLED_S", 0.5)
    monkeypatch.setattr(worker, "DOZE_S", 0.2)
    installation.make()
    daemon = installation.start(republish_window_records=WINDOW, batch_records_max=WINDOW)
    orders = installation.topic("orders")
    installation.half(orders)
    for _ in range(4 * WINDOW):  # the undecided one is put back, in kafka_txns
        installation.pass_through(orders)
    installation.tail(orders).until(4 * WINDOW)
    until("it is put back", installation.copies)

    until("all is read", lambda: len(found) >= CALM and not any(found[-CALM:]))
    assert daemon.metric("halfbridge_consumer_stalls_total") == 0
