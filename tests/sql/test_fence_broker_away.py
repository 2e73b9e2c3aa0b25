"""Blocks of a fence whose broker goes away before any half message is acknowledged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest

from halfbridge.bridge import Answer, Resolution, State
from halfbridge.kafka.errors import BridgeError, HalfNotStoredError
from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.brokers import started
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.fence_scene import Scene, new_cluster, on, work

pytestmark = pytest.mark.broker

SEND_MS = 3_000
# A wait for a ROLLBACK, or for the broker that is asked before one, would take this long.
DECISION_MS = 60_000
# For a busy machine; far below DECISION_MS.
FACTOR = 4


class BrokenError(Exception):
    """An error that a block raises."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker to freeze and to kill."""
    with started(EmbeddedBroker(), "no broker") as made:
        yield made


@pytest.fixture
def away(broker: EmbeddedBroker, database: Database) -> Iterator[Scene]:
    """Yield a service whose producer waits much longer for a decision than for a half message."""
    cluster = new_cluster(broker.bootstrap_servers)
    with cluster.producer(send_timeout_ms=SEND_MS, decision_timeout_ms=DECISION_MS) as producer:
        yield Scene(database, cluster=cluster, producer=producer)


@contextmanager
def frozen(broker: EmbeddedBroker) -> Iterator[None]:
    """Keep the broker alive and silent."""
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


@contextmanager
def dead(broker: EmbeddedBroker) -> Iterator[None]:
    """Kill the broker meanwhile."""
    broker.kill()
    try:
        yield
    finally:
        broker.restart()


def in_a_block(scene: Scene, txs: list[Any]) -> None:
    """Wait for the send, as is usual."""
    with (
        pytest.raises(HalfNotStoredError),
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        txs.append(tx)
        tx.send(scene.message())
        work(connection, 1)


def with_the_send_outstanding(scene: Scene, txs: list[Any]) -> None:
    """Work while the send is on its way: the end of the block waits for it."""
    with (
        pytest.raises(HalfNotStoredError),
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        txs.append(tx)
        tx.send_async(scene.message())
        work(connection, 1)


def by_an_exception(scene: Scene, txs: list[Any]) -> None:
    """Leave the block while the send is on its way."""
    with pytest.raises(BrokenError), scene.fence.transaction(scene.producer) as (tx, _):
        txs.append(tx)
        tx.send_async(scene.message())
        raise BrokenError


def without_a_fence(scene: Scene, txs: list[Any]) -> None:
    """Leave a block by an exception that proves that nothing was committed."""
    proof = scene.producer.begin(rollback_on=(BrokenError,), context=scene.fence.context())
    with pytest.raises(BrokenError), proof as tx:
        txs.append(tx)
        tx.send_async(scene.message())
        raise BrokenError


def in_one_call(scene: Scene, _txs: list[Any]) -> None:
    """The local transaction of `send_in_transaction` does not run."""
    with pytest.raises(HalfNotStoredError):
        scene.producer.send_in_transaction(scene.message(), lambda *_: pytest.fail("it ran"))


WAYS = (in_a_block, with_the_send_outstanding, by_an_exception, without_a_fence, in_one_call)


@on("sqlite")
@pytest.mark.parametrize("gone", [frozen, dead])
def test_a_request_meets_one_send_timeout(
    broker: EmbeddedBroker, away: Scene, gone: Callable[[EmbeddedBroker], Any]
) -> None:
    """No way waits for a ROLLBACK; a check rolls back messages that were stored nevertheless."""
    with away.block() as (tx, connection):  # opens all connections
        work(connection, 0)
    away.check_committed(tx, 0)
    txs: list[Any] = []
    took_s: dict[str, float] = {}
    with gone(broker):
        for way in WAYS:
            began = monotonic()
            way(away, txs)
            took_s[way.__name__] = monotonic() - began
    assert all(each < FACTOR * SEND_MS / 1_000 for each in took_s.values()), took_s
    assert [each.state for each in txs] == [State.SEND_FAILED] * (len(WAYS) - 1)
    assert away.worked() == [0]
    rolled_back = Answer(Resolution.ROLLBACK)
    assert all(away.fence.check(away.view(each.id)) == rolled_back for each in txs)

    def goes_on() -> Any:
        try:
            with away.block() as (tx, connection):
                work(connection, 1)
        except BridgeError:  # the broker is not back yet
            return None
        return tx

    later = until("the service continues", goes_on)
    assert away.producer.flush() == 0
    assert away.worked() == [0, 1]
    assert away.decisions(later.id) == [("COMMIT", 1)]
    assert all(away.decisions(each.id) == [] for each in txs)
