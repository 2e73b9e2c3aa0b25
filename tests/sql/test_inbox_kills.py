"""The reference consumer of the document: unchanged, and while it is killed."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from halfbridge import Message, Resolution
from halfbridge.serde.delivery import Delivery
from halfbridge.testkit.children import Children, Interrupts
from halfbridge.testkit.stack import HalfbridgeStack
from tests.integration.installation import Installation
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.inbox_scene import GROUP, NAIVE, InboxScene, reference_consumer

pytestmark = pytest.mark.broker

LINES_MAX = 27  # with imports and settings; twenty without them
KILLS = 3
DAEMON_KILLS = 15
BURST = 25
SEED = 20261123


@pytest.fixture
def scene(
    kafka_bootstrap_servers: str, topic_prefix: str, database: Database, tmp_path: Path
) -> Iterator[InboxScene]:
    """A topic and a database, without consumers yet."""
    with (
        closing(Installation(kafka_bootstrap_servers, topic_prefix)) as installation,
        Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children,
    ):
        yield InboxScene(installation, database, children, tmp_path, seed=SEED)


def test_killed_consumers_take_each_message_once(scene: InboxScene) -> None:
    """Consumers killed at random, messages delivered twice: the work of each is done once.

    The same consumer without the inbox does some of it twice.
    """
    scene.start((GROUP, "one"), (GROUP, "two"), (NAIVE, "three"))
    scene.run(kills=KILLS, burst=BURST)
    scene.finish()
    assert scene.done(GROUP) == Counter(scene.sent)
    assert scene.repeated > 0
    assert scene.count(NAIVE) >= len(scene.sent) + scene.repeated


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_reference_consumer_as_it_stands(
    scene: InboxScene, halfbridge_stack: HalfbridgeStack
) -> None:
    """With only addresses and names replaced, it takes delivered and repeated messages once."""
    with halfbridge_stack.producer(
        "order-service", checker=lambda _: Resolution.UNKNOWN, topics=[scene.topic]
    ) as producer:
        for number in range(4):
            with producer.begin() as tx:
                for index in range(3):
                    tx.send(Message(scene.topic, key=b"k", value=b"%d/%d" % (number, index)))
    halfbridge_stack.wait_until_decided()
    last = scene.send_again(halfbridge_stack.read_committed(scene.topic, count=12))
    scene.start_as_it_stands()
    until("all was read", lambda: last in scene.done(GROUP))
    expected = [f"{number}/{index}" for number in range(4) for index in range(3)]
    assert scene.done(GROUP) == Counter([*expected, last])


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_daemon_that_delivers_at_least_once_and_an_inbox_are_exactly_once(
    scene: InboxScene, kafka_bootstrap_servers: str
) -> None:
    """Daemon and consumers are killed at random: the work of each message is done once."""
    draw = random.Random(SEED)
    scene.start((GROUP, "one"), (GROUP, "two"))
    expected: list[str] = []
    delivery = Delivery.AT_LEAST_ONCE.value
    with (
        HalfbridgeStack(kafka_bootstrap_servers, delivery=delivery) as stack,
        stack.producer(
            "order-service", checker=lambda _: Resolution.UNKNOWN, topics=[scene.topic]
        ) as producer,
    ):
        for round_number in range(DAEMON_KILLS):
            for number in range(draw.randint(1, 4 * BURST)):
                with producer.begin() as tx:
                    for index in range(draw.choice((1, 1, 2, 3))):
                        item = f"{round_number}/{number}/{index}"
                        key = b"%d" % draw.randrange(100)
                        tx.send(Message(scene.topic, key=key, value=item.encode()))
                        expected.append(item)
            stack.daemon.kill()
            scene.kill_one()
            stack.daemon.start()
        stack.wait_until_decided()
        scene.await_count(GROUP, len(expected))
        records = stack.read_committed(scene.topic, count=len(expected))
        scene.await_records(GROUP, records)
    assert {each.value.decode() for each in records if each.value} == set(expected)
    assert scene.done(GROUP) == Counter(expected)


def test_the_reference_consumer_is_short() -> None:
    """It has at most LINES_MAX lines that are not blank."""
    lines = [line for line in reference_consumer().splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX
