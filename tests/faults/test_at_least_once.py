"""Workers that deliver at least once die by SIGKILL: nothing is lost, and repeats are repeats."""

import itertools
import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing

import pytest

from halfbridge import Message, Resolution
from halfbridge.checker.loop.at_least_once import FIRST_KAFKA_TXNS
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.headers import real_identity
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.reader import TopicReader
from halfbridge.testkit.stack import HalfbridgeStack
from tests.faults.stage import Stage, seed_of_run
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

KILLS_LONG = 60
DEATHS_MAX = 40
BATCHED = 4000
TRANSACTIONS = 240
KILL_AT = (80, 160)
KEYS = 5


@pytest.fixture
def stack(kafka_bootstrap_servers: str) -> Iterator[HalfbridgeStack]:
    """An installation that delivers at least once."""
    with HalfbridgeStack(kafka_bootstrap_servers, delivery=Delivery.AT_LEAST_ONCE.value) as made:
        yield made


@pytest.mark.feature
def test_what_is_taken_once_is_all_of_it_in_order(stack: HalfbridgeStack) -> None:
    """The daemon dies while it delivers: each message comes, and in the order of its key."""
    topic = stack.create_topic("orders", partitions=3)
    sent: dict[bytes, list[bytes]] = defaultdict(list)
    with stack.producer("orders", checker=lambda _: Resolution.UNKNOWN, topics=[topic]) as producer:
        for number in range(TRANSACTIONS):
            if number in KILL_AT:
                stack.daemon.kill()
                stack.daemon.start()
            key = b"%d" % (number % KEYS)
            with producer.begin() as tx:
                for index in range(2):
                    value = b"%d/%d" % (number, index)
                    tx.send(Message(topic, key=key, value=value))
                    sent[key].append(value)
        stack.wait_until_decided()
    assert _taken(stack.read_committed(topic)) == sent


def _taken(records: list[ReadRecord]) -> dict[bytes, list[bytes]]:
    """Return the values by key, each message once, by transaction id and index."""
    seen = set()
    taken: dict[bytes, list[bytes]] = defaultdict(list)
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        identity = real_identity(list(record.headers))
        if identity not in seen:
            seen.add(identity)
            taken[record.key or b""].append(record.value or b"")
    return taken


@pytest.mark.long
def test_a_worker_that_dies_before_its_offsets_repeats_messages(stack: HalfbridgeStack) -> None:
    """The daemon dies amid a batch, until one death came before the offsets: none is lost.

    The first batches of a daemon are kafka_txns. Those behind are visible record by record, some
    milliseconds before their offsets are committed, so most deaths repeat some.
    """
    topic = stack.create_topic("orders")
    numbers = itertools.count()
    sent: set[bytes | None] = set()
    with (
        closing(TopicReader(stack.bootstrap_servers, [topic])) as witness,
        stack.producer("orders", checker=lambda _: Resolution.UNKNOWN, topics=[topic]) as producer,
    ):
        for _death in range(DEATHS_MAX):
            values = [b"%d" % each for each in itertools.islice(numbers, BATCHED)]
            for value in values[:FIRST_KAFKA_TXNS]:
                with producer.begin() as tx:
                    tx.send(Message(topic, value=value))
                until("the message is there", witness.poll, every_s=0)
            for value in values[FIRST_KAFKA_TXNS:]:
                sending = producer.begin().send_async(Message(topic, value=value))
                sending.add_done_callback(lambda future: future.transaction.commit_async())
            sent |= set(values)
            until("some of them are there", witness.poll, every_s=0)
            stack.daemon.kill()
            producer.flush()
            stack.daemon.start()
            stack.wait_until_decided()
            read = [each.value for each in stack.read_committed(topic)]
            assert set(read) == sent
            if len(read) > len(sent):
                return
            for _ in witness.drain():
                pass
    pytest.fail(f"none of {DEATHS_MAX} deaths repeated a message")


@pytest.mark.long
def test_sigkills_under_load_lose_nothing(stage: Stage) -> None:
    """Many SIGKILLs of two workers: a clean history but for repeats."""
    seed = seed_of_run()
    draw = random.Random(seed)
    stage.delivery = Delivery.AT_LEAST_ONCE
    stage.make()
    daemon = stage.daemon("--workers", "2")
    lasting = stage.usual_clients(seed=seed, pipelined=200, blocking=100)
    for _ in range(KILLS_LONG):
        stage.await_more(draw.randrange(1, 40))
        victim = draw.choice(daemon.await_workers(2))
        os.kill(victim, signal.SIGKILL)
        until("a worker is gone", lambda victim=victim: victim not in daemon.workers())
        stage.injected["worker killed"] += 1
    stage.await_more(100)
    daemon.await_workers(2)
    stage.end_judged(lasting)
    assert stage.verdict is not None
    assert stage.stop(daemon) == 0
