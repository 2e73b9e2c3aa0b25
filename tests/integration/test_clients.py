"""A member that is closed while its group gives it partitions: the end comes all the same."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from halfbridge import Message
from tests.integration.installation import GROUP, Installation
from tests.integration.producing import Cluster
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

# librdkafka 2.16 hung in about 4 of 10 such closes.
_CLOSES = 15
_PATIENCE_S = 60.0
_ROOT = Path(__file__).resolve().parents[2]

# A process of its own: a call that hangs keeps the interpreter's lock, so no Python code runs.
_MEMBERS = """
import sys
from concurrent.futures import TimeoutError
from contextlib import suppress
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from halfbridge.kafka.adapter import system_ports
from tests.kit.waiting import until

servers, topic, group, how, closes = sys.argv[1:]
common = {"bootstrap.servers": servers}
admin = AdminClient(common)


def members():
    while True:
        with suppress(KafkaException, TimeoutError):  # the coordinator is being found
            return admin.describe_consumer_groups([group])[group].result(20).members


for number in range(int(closes)):
    properties = {**common, "group.id": group, "session.timeout.ms": 6_000}
    if how == "stays":
        properties["group.instance.id"] = f"slot-{number}"
    member = system_ports().kafka.member(properties)
    if how == "stays":
        member.join([topic], lambda *_: None, lambda *_: None)
    else:
        member.join_and_read([topic])
    # The broker has given partitions, and then answered another question: the client knows them.
    until("an assignment", lambda: any(one.assignment.topic_partitions for one in members()))
    members()
    member.close()
    if how == "leaves":
        until("the member has left", lambda: not members())
    else:
        group += "x"
    print(number, flush=True)
"""


@pytest.mark.parametrize("how", ["stays", "leaves"])
def test_a_member_with_a_new_assignment_is_closed(cluster: Cluster, how: str) -> None:
    """The daemon's static member stays in its group; the one that answers checks leaves it.

    Neither has been polled since the assignment came, so it is still to be called back.
    """
    group = cluster.names.daemon_group
    words = (cluster.servers, cluster.orders, group, how, str(_CLOSES))

    closed = subprocess.run(
        (sys.executable, "-c", _MEMBERS, *words),
        cwd=_ROOT,
        check=False,
        stdout=subprocess.PIPE,
        timeout=_PATIENCE_S,
        text=True,
    )

    assert closed.returncode == 0
    assert closed.stdout.split() == [str(number) for number in range(_CLOSES)]


# --- what is closed frees its Kafka clients at once, and does not wait for the collector of cycles


def _living() -> dict[int, Any]:
    # By their types: isinstance() asks an object for its class, and a lazy one of Django's raises.
    clients = (Consumer, Producer)
    return {id(each): each for each in gc.get_objects() if issubclass(type(each), clients)}


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
