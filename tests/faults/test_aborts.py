"""kafka_txns that fail: timed out by the broker, cut off by its restart or its silence."""

import os
import random
import signal
import time

import pytest

from halfbridge.testkit.broker import EmbeddedBroker
from tests.faults.stage import Stage, seed_of_run

pytestmark = pytest.mark.broker

# More than the kafka_txn time-out of that test (1 s) and the coordinator's interval (1 s).
_SLEEP_S = 2.5
# A kafka_txn time-out (stage.LIMITS): those that are open then are aborted.
_SILENCE_S = 5.0
_NAPS = 6


def test_kafka_txns_that_the_broker_times_out(stage: Stage) -> None:
    """Workers asleep for longer than a kafka_txn may last: aborted, read again, nothing doubled.

    The session is longer than the nap, so that the group notices nothing: only the transaction
    coordinator does.
    """
    seed = seed_of_run()
    draw = random.Random(seed)
    stage.make()
    flags = ("--kafka-txn-timeout-ms", "1000", "--session-timeout-ms", "30000")
    daemon = stage.daemon("--workers", "2", *flags)
    clients = stage.usual_clients(seed=seed, pipelined=300, blocking=100)
    stage.await_members(2)
    for nap in range(_NAPS):
        stage.await_more(200)
        time.sleep(draw.uniform(0, 0.2))  # the fault itself: a moment nobody chose
        sleeper = daemon.await_workers(2)[nap % 2]
        os.kill(sleeper, signal.SIGSTOP)
        stage.injected["worker stopped beyond the kafka_txn timeout"] += 1
        time.sleep(_SLEEP_S)
        os.kill(sleeper, signal.SIGCONT)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0


@pytest.mark.long
def test_a_broker_that_restarts_dies_and_falls_silent(
    broker: EmbeddedBroker, own_stage: Stage
) -> None:
    """In mid load the only broker is restarted, killed and stopped for 5 s: a clean history.

    Commits of unknown outcome come of it, of the daemon and of its clients.
    """
    stage = own_stage.make()
    seed = seed_of_run()
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    stage.await_more(300)
    broker.restart()
    stage.injected["broker restarted"] += 1
    stage.await_more(300)
    broker.pause()
    stage.injected["broker stopped for 5 s"] += 1
    time.sleep(_SILENCE_S)
    broker.resume()
    stage.await_more(300)
    broker.kill()
    broker.restart()
    stage.injected["broker killed and started again"] += 1
    stage.await_more(300)

    stage.end_judged(clients)
    assert len(daemon.await_workers(2)) == 2
    assert stage.stop(daemon) == 0
