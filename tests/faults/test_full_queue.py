"""A producer whose own queue has hardly any room."""

import os
import signal
import time

import pytest

from tests.faults.stage import Stage, seed_of_run

pytestmark = [pytest.mark.broker, pytest.mark.long]

# A batch has up to 200 records of up to 2 KB here: the queue is full many times in each.
_TINY = (
    *("--kafka", "queue.buffering.max.messages=40"),
    *("--kafka", "queue.buffering.max.kbytes=64"),
)
_NAPS = 4
# Shorter than the session (6 s): the workers fall behind, and stay members.
_NAP_S = 2.0


def test_case_20_the_queue_is_full_in_each_kafka_txn(stage: Stage) -> None:
    """Room for forty records: writing waits for acknowledgements in between, and drops nothing.

    Between naps of the workers batches are as large as they get.
    """
    seed = seed_of_run()
    stage.make()
    daemon = stage.daemon("--workers", "2", *_TINY)
    clients = stage.usual_clients(seed=seed, pipelined=150, blocking=60)
    stage.await_members(2, within_s=60)
    stage.await_more(100)
    for _ in range(_NAPS):
        workers = daemon.await_workers(2)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(_NAP_S)
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        stage.injected["a backlog meets a queue with room for 40 records"] += 1
        stage.await_more(int(_NAP_S * 150))

    stage.end_judged(clients)
    assert "queue was full" not in daemon.log(), "it waited in vain"
    assert stage.stop(daemon) == 0
