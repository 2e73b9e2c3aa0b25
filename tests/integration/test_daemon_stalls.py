"""A consumer that fetches nothing more, without an error, and a log that grows."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from halfbridge.checker.loop import assignment, pair, worker
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.pair import BodyReader
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.stalls import LaggingPartition
from tests.integration.brokers import started
from tests.integration.installation import Installation
from tests.kit.cluster import ProxiedCluster
from tests.kit.proxy import Act, Api, Rule
from tests.kit.waiting import CALL_S, until

pytestmark = pytest.mark.broker

WATCHED = "watched-client"
NEVER_MS = 600_000
WINDOW = 3
# A stall takes this long here (30 s usually). So many looks in a row that find nothing are more
# than fit into it: one takes two turns of an idle loop, 0.2 s.
STALLED_S = 3.0
CALM = 20


@pytest.fixture
def cluster() -> Iterator[ProxiedCluster]:
    """Yield a broker behind a proxy."""
    with started(ProxiedCluster(1), "no broker") as made:
        yield made


@pytest.fixture
def proxied(cluster: ProxiedCluster, topic_prefix: str) -> Iterator[Installation]:
    """Yield an installation on that broker, with one pair."""
    with closing(Installation(cluster.proxied_servers, topic_prefix)) as made:
        made.make()
        yield made


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the daemon look more often."""
    monkeypatch.setattr(worker, "POLL_S", 0.2)
    monkeypatch.setattr(worker, "POLL_BEHIND_S", 0.2)
    monkeypatch.setattr(worker, "STALLED_S", 2.0)


def _hold_fetches(cluster: ProxiedCluster, times: int) -> None:
    """Have so many fetches of the daemon, 0: all, never arrive; left alone, it waits a minute."""
    rule = Rule(api=Api.FETCH, act=Act.HOLD, delay_ms=NEVER_MS, text=WATCHED, times=times)
    before = cluster.proxy.hits(rule.act, Api.FETCH)
    cluster.proxy.add(rule)
    until("a fetch is held", lambda: cluster.proxy.hits(rule.act, Api.FETCH) > before)


def test_a_consumer_that_receives_nothing_is_replaced(
    cluster: ProxiedCluster, proxied: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was well, and delivered nothing of a partition until it was started again."""
    daemon = proxied.start(kafka={"client.id": WATCHED})
    orders = proxied.topic("orders")
    proxied.pass_through(orders)
    proxied.tail(orders).until(1)

    _hold_fetches(cluster, times=1)
    proxied.pass_through(orders)

    daemon.counts("halfbridge_consumer_stalls_total", 1)
    proxied.tail(orders).until(2)
    daemon.counts("halfbridge_consumer_stalls_total", 1)


def test_a_pair_that_new_consumers_read_no_better_is_left_out(
    cluster: ProxiedCluster, proxied: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not make the worker rebuild all pairs each minute; /healthz shows it."""
    monkeypatch.setattr(assignment, "UNHEALTHY_S", 0.0)
    daemon = proxied.start(kafka={"client.id": WATCHED})
    orders = proxied.topic("orders")
    half = proxied.half(orders)

    _hold_fetches(cluster, times=0)
    proxied.commit(half)

    assert "although the log has more" in daemon.stopped(0)
    daemon.counts("halfbridge_partitions_waiting", 1)
    assert daemon.metric("halfbridge_consumer_stalls_total") >= 2
    cluster.proxy.heal()
    proxied.tail(orders).until(1)
    daemon.counts("halfbridge_partitions_waiting", 0)


def test_a_reader_of_bodies_that_receives_nothing_is_replaced(
    cluster: ProxiedCluster, proxied: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt to deliver what the ledger let go would have failed as the first one did."""
    monkeypatch.setattr(pair, "QUESTION_S", 1.0)
    half = proxied.half(proxied.topic("orders"))
    config = proxied.config(kafka={"client.id": WATCHED})
    with closing(BodyReader(config, system_ports())) as reader:
        held = Rule(api=Api.FETCH, act=Act.HOLD, delay_ms=NEVER_MS, text=WATCHED, times=1)
        cluster.proxy.add(held)
        with pytest.raises(InputLostError, match="cannot be read again"):
            reader.read(0, [half.offset])
        assert cluster.proxy.hits(held.act, Api.FETCH) == 1

        monkeypatch.setattr(pair, "QUESTION_S", CALL_S)  # the old one would wait a minute
        assert reader.read(0, [half.offset])[half.offset].offset() == half.offset


def test_a_daemon_that_has_read_all_keeps_its_consumer(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only markers follow the last record of its partitions."""
    found: list[dict[tuple[str, int], LaggingPartition]] = []
    compare = worker.compare

    def watched(*given: Any) -> dict[tuple[str, int], LaggingPartition]:
        found.append(compare(*given))
        return found[-1]

    monkeypatch.setattr(worker, "compare", watched)
    monkeypatch.setattr(worker, "POLL_S", 0.02)
    monkeypatch.setattr(worker, "STALLED_S", STALLED_S)
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
