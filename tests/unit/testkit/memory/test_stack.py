"""An installation in a test's own process."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from halfbridge import Message, MessageView, ProducerClosedError, Resolution
from halfbridge.serde.records import DeadReason
from halfbridge.serde.units import MS_PER_S
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer

TOPIC = "orders"
HOUR_S = 3_600


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC)
        yield started


def unknown(_: MessageView) -> Resolution:
    """Answer as a checker that never knows."""
    return Resolution.UNKNOWN


def place(producer: MemoryProducer, value: bytes) -> str:
    """Send and commit a message; return the transaction's id."""
    with producer.begin() as tx:
        tx.send(Message(TOPIC, key=b"k", value=value))
    return tx.id


def lose(producer: MemoryProducer, value: bytes) -> str:
    """Send a message and decide nothing; return the transaction's id."""
    tx = producer.begin()
    tx.send(Message(TOPIC, key=b"k", value=value))
    return tx.id


def values(stack: MemoryStack) -> list[bytes | None]:
    """Return what consumers see."""
    return [each.value for each in stack.read_committed(TOPIC)]


def test_it_is_up_at_once() -> None:
    """Below 50 ms of processor time, the imports not counted; the best of five."""
    taken = []
    for _ in range(5):
        began = time.process_time()
        with MemoryStack():
            taken.append(time.process_time() - began)
    assert min(taken) < 0.05


def test_what_nobody_answers_is_given_up_for_age() -> None:
    """At its limit, and not in the hour before; nothing is lost by long strides."""
    with MemoryStack(transaction_age_ms_max=6 * HOUR_S * MS_PER_S) as stack:
        stack.create_topic(TOPIC)
        with stack.producer("order-service", checker=unknown) as producer:
            lost = lose(producer, b"one")
        stack.advance(seconds=5 * HOUR_S)
        assert stack.undecided() == [lost]
        stack.advance(seconds=2 * HOUR_S)
        assert stack.undecided() == []
        (dead,) = stack.dead_letters()
        assert dead.letter.reason is DeadReason.AGE


@pytest.mark.more
def test_days_without_work_are_short(stack: MemoryStack) -> None:
    """A day takes a third of a second of processor time, whatever else the machine does."""
    with stack.producer("order-service", checker=unknown) as producer:
        began = time.process_time()
        stack.advance(seconds=24 * HOUR_S)
        assert time.process_time() - began < 4
        place(producer, b"still served")
        assert values(stack) == [b"still served"]


def test_a_closed_producer_is_not_started_again(stack: MemoryStack) -> None:
    """It would look started, and refuse each call; a second start of an open one does nothing."""
    producer = stack.producer("order-service", checker=unknown)
    producer.start()
    producer.start()
    producer.close()
    with pytest.raises(ProducerClosedError, match="make another"):
        producer.start()


def test_several_workers_share_partitions() -> None:
    """Settings are those of the daemon."""
    with MemoryStack(partitions=4, workers=2, topic_prefix="eu-") as stack:
        stack.create_topic(TOPIC, partitions=2)
        with stack.producer("order-service", checker=unknown) as producer:
            for number in range(20):
                with producer.begin() as tx:
                    tx.send(Message(TOPIC, key=b"%d" % number, value=b"v"))
            assert len(stack.read_committed(TOPIC, count=20)) == 20
        assert stack.topic_prefix == "eu-"
        assert stack.bootstrap_servers == "memory"


def test_waits_have_an_end(stack: MemoryStack) -> None:
    """In virtual time, with the reason."""
    with pytest.raises(TimeoutError, match="0 of 1 records within 5 s"):
        stack.read_committed(TOPIC, count=1, timeout_s=5)
    with stack.producer("order-service", checker=unknown) as producer:
        lose(producer, b"one")
        with pytest.raises(TimeoutError, match="is done up to"):
            stack.wait_until_decided(timeout_s=60)


def test_a_stack_that_is_not_started_says_so() -> None:
    """In place of an AttributeError."""
    stack = MemoryStack()
    with pytest.raises(RuntimeError, match="not started"):
        stack.create_topic(TOPIC)
    stack.stop()


def test_a_restart_needs_a_crash(stack: MemoryStack) -> None:
    """To restart a client that lives is an error."""
    with pytest.raises(RuntimeError, match="no client has died"):
        stack.restart()


def test_a_killed_client_takes_nobody_along(stack: MemoryStack) -> None:
    """Each producer is a process of its own."""
    with (
        stack.producer("order-service", checker=unknown) as dying,
        stack.producer("billing", checker=unknown) as living,
    ):
        stack.machine.scheduler.kill(dying.process)
        place(living, b"one")
        assert values(stack) == [b"one"]
        assert stack.has_crashed
        place(stack.restart(), b"two")
        assert values(stack) == [b"one", b"two"]


@pytest.mark.process
def test_greenlet_is_named_where_it_is_missing() -> None:
    """The error says what to install."""
    script = (
        "import sys; sys.modules['greenlet'] = None\n"
        "try:\n"
        "    from halfbridge.testkit.memory import MemoryStack\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'halfbridge[memory]'" in done.stdout
