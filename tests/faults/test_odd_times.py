"""A stranger's kafka_txn that hangs, a real topic that grows, and a long time of nothing."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from halfbridge.kafka.admin import AdminClient
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.pytest_plugin import leave_out
from tests.faults.scene import HEALED_S
from tests.faults.stage import Stage, seed_of_run
from tests.faults.threads import main_thread_stopped
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

_CALL_S = 20.0
# More than the daemon's kafka_txn time-out (5 s), by which it could judge a stranger's.
_HANGS_S = 8
_EXPIRES_MS = 5_000
_POLL_MS_MAX = 7_000  # more than the session, as the client demands
_GIVEN_UP_S = 25.0  # 7 s without a poll, 6 s without a heartbeat
_ATTEMPTS_MAX = 8
_POLL_S = 0.5
_ROUNDS = 3
_BACK_S = 60.0
_IDLE_S = 15.0  # three times as long as anything is remembered
# A broker that forgets what idle clients rely on: transactional ids and the ids of idempotent
# producers. Offsets of a group with members never expire; their least retention is a minute.
FORGETFUL = {
    "transactional.id.expiration.ms": str(_EXPIRES_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.ms": str(_EXPIRES_MS),
    "producer.id.expiration.check.interval.ms": "1000",
}


def test_case_33_a_real_topic_grows(stage: Stage) -> None:
    """A real topic gets more partitions under load: messages find them, none is lost on the way.

    Keys move when a topic grows, in Kafka as here: order by key is judged per real partition.
    """
    seed = seed_of_run()
    stage.make()
    # Producers of the daemon notice it when they ask for metadata, by default every 5 min.
    daemon = stage.daemon("--workers", "2", "--kafka", "topic.metadata.refresh.interval.ms=1000")
    clients = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    stage.await_more(300)
    admin = AdminClient({"bootstrap.servers": stage.direct})
    topic, before = stage.real_topics[0], 4
    for count in (5, 8):
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(_CALL_S)
        stage.injected["real topic grows"] += 1
        fresh = {(topic, partition) for partition in range(before, count)}
        until(
            f"messages find {len(fresh)} new partitions",
            lambda fresh=fresh: fresh <= {(r.topic, r.partition) for r in stage.witnessed()},
            within_s=HEALED_S,
        )
        before = count

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0


def test_case_38_a_strangers_kafka_txn_hangs_on_the_half_topic(stage: Stage) -> None:
    """Readers of committed records, the daemon among them, stop before it until it is aborted.

    The other partitions go on meanwhile, and afterwards everything is there. What the stranger
    wrote was aborted: it is never seen.
    """
    seed = seed_of_run()
    draw = random.Random(seed)
    stage.make()
    daemon = stage.daemon("--workers", "2")
    clients = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    stage.await_more(300)
    stranger: Any = Producer(
        {
            "bootstrap.servers": stage.servers,
            "transactional.id": f"{stage.prefix}stranger",
            "transaction.timeout.ms": _HANGS_S * 1000,
        }
    )
    stranger.init_transactions(_CALL_S)
    stranger.begin_transaction()
    stranger.produce(stage.names.half, b"never committed", partition=draw.randrange(4))
    assert stranger.flush(_CALL_S) == 0
    stage.injected["kafka_txn of a stranger hangs on a half partition"] += 1
    stage.await_more(200)
    time.sleep(_HANGS_S)
    stage.await_more(300)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0


def test_case_39_a_worker_that_does_not_poll(stage: Stage) -> None:
    """The worker's own thread is blocked for longer than max.poll.interval.ms, three times.

    Its client's threads go on with heartbeats until then. The group gives it up, the other worker
    takes its partitions, and its requests after it wakes are refused.
    """
    seed = seed_of_run()
    draw = random.Random(seed)
    stage.make()
    flags = ("--workers", "2", "--kafka", f"max.poll.interval.ms={_POLL_MS_MAX}")
    daemon = stage.daemon(*flags)
    clients = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    stage.await_members(2)
    for round_ in range(_ROUNDS):
        for _attempt in range(_ATTEMPTS_MAX):
            stage.await_more(200)
            time.sleep(draw.uniform(0, 0.2))  # the fault itself: a moment nobody chose
            with _held(daemon.await_workers(2)[round_ % 2]):
                if _is_given_up(stage):
                    stage.await_members(1, within_s=_GIVEN_UP_S)
                    stage.await_more(200)
                    break
        else:
            pytest.fail("the worker's thread was in its client's poll each time")
        stage.injected["worker's thread stopped beyond max.poll.interval.ms"] += 1
        stage.await_members(2, within_s=_BACK_S)

    stage.end_judged(clients)
    assert stage.stop(daemon) == 0


def _is_given_up(stage: Stage) -> bool:
    """Tell whether the group gives a member up in time.

    It does not when its thread is blocked inside the client's poll: to the client it is polling.
    """
    deadline = time.monotonic() + _GIVEN_UP_S
    while time.monotonic() < deadline:
        if len(stage.members()) == 1:
            return True
        time.sleep(_POLL_S)
    return False


@contextmanager
def _held(pid: int) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(main_thread_stopped(pid))
        except (PermissionError, AttributeError) as error:
            leave_out(f"threads of other processes cannot be stopped here: {error}")
        yield


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker that forgets idle producers soon."""
    with EmbeddedBroker(properties=FORGETFUL) as started:
        yield started


def test_case_30_idle_for_longer_than_ids_are_kept(own_stage: Stage) -> None:
    """Nothing happens for longer than the broker remembers producers; then clients go on.

    The clients' idempotent producers and the daemon's transactional ones are forgotten meanwhile.
    """
    seed = seed_of_run()
    stage = own_stage.make()
    daemon = stage.daemon("--workers", "2")
    first = stage.client("first", seed=seed, rate=100)
    lasting = stage.client("paused", seed=seed, rate=50)
    stage.await_more(200)
    stage.quiet([first])
    os.kill(lasting.process.pid, signal.SIGSTOP)
    stage.settle()
    time.sleep(_IDLE_S)
    stage.injected["idle for longer than ids are kept"] += 1
    os.kill(lasting.process.pid, signal.SIGCONT)
    stage.await_more(200)

    stage.end_judged([lasting])
    assert stage.stop(daemon) == 0
