"""What is closed frees its Kafka clients at once, and does not wait for the collector of cycles.

A client has threads, connections and a key for thread-local storage. A process has 1,024 such keys
on Linux. The collector runs seldom where many objects live.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from halfbridge import Message
from tests.integration.installation import GROUP, Installation
from tests.integration.producing import Cluster
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def _living() -> dict[int, Any]:
    return {id(each): each for each in gc.get_objects() if isinstance(each, (Consumer, Producer))}


@contextmanager
def _freed_at_the_end() -> Iterator[None]:
    """Check that no client which the block makes outlives the block, without a collection."""
    gc.collect()
    before = set(_living())
    gc.disable()
    try:
        yield
        until("all clients are freed", lambda: set(_living()) <= before)
    finally:
        gc.enable()


def test_a_closed_producer_frees_its_clients(cluster: Cluster) -> None:
    """Writer, check responder and reader of settings are gone once `close` has returned."""
    with _freed_at_the_end(), cluster.producer() as producer, producer.begin() as tx:
        tx.send(Message(cluster.orders, value=b"1"))


def test_a_stopped_worker_frees_its_clients(installation: Installation) -> None:
    """Input, transactional producers, barriers and sender of checks are gone."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    tail = installation.tail(orders)
    with _freed_at_the_end():
        daemon = installation.start()
        installation.pass_through(orders)
        tail.until(1)
        daemon.stop()
        installation.daemons.clear()
