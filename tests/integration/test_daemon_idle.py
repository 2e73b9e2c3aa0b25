"""An idle daemon: it fetches nothing for nothing, and is awake at once."""

import resource
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from halfbridge.checker.loop.worker import Worker
from halfbridge.checker.policy import Policy
from halfbridge.checker.process.slots import slot_ids
from halfbridge.checker.status import Status
from halfbridge.kafka.adapter import system_ports
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

# Far above both what is usual (5 ms) and what a busy machine adds.
PROMPT_S = 5.0
# How long nothing comes before a worker is idle.
IDLE_S = 1.5


@pytest.fixture
def worker(installation: Installation, caplog: pytest.LogCaptureFixture) -> Iterator[Worker]:
    """A worker in a thread, on two partitions; it ends without a warning."""
    installation.make(partitions=2)
    config = installation.config()
    made = Worker(
        config,
        Policy(config.names),
        ids=slot_ids("w-0", topic_prefix=config.topic_prefix),
        status=Status(),
        ports=system_ports(),
    )
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(stop,), daemon=True)
    thread.start()
    yield made
    caplog.clear()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert [one.message for one in caplog.records if one.levelname == "WARNING"] == []


def _until_idle(worker: Worker) -> None:
    until("the worker is ready", lambda: worker._status.snapshot().ready)
    threading.Event().wait(IDLE_S)


def test_an_idle_worker_delivers_promptly(installation: Installation, worker: Worker) -> None:
    """After a pause each transaction still comes out at once."""
    orders = installation.topic("orders")
    tail = installation.tail(orders)
    for count in range(1, 4):
        _until_idle(worker)
        began = monotonic()
        installation.pass_through(orders, partition=count % 2)
        tail.until(count)
        assert monotonic() - began < PROMPT_S


def test_an_idle_worker_needs_next_to_no_cpu(installation: Installation, worker: Worker) -> None:
    """Far below what hundreds of empty fetches a second would take."""
    _until_idle(worker)
    woke = threading.Event()
    before = resource.getrusage(resource.RUSAGE_SELF)
    woke.wait(2)
    after = resource.getrusage(resource.RUSAGE_SELF)

    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s < 0.3
