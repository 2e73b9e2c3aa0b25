"""The figures of a service's producer, in the registry of the service."""

import logging
import os
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from halfbridge import Message, MessageView, Resolution
from halfbridge.bridge.delivery import HALF_MESSAGE, STORED, Outcomes
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.testkit.memory import MemoryStack
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

PREFIX = "halfbridge_client_"
MESSAGE = Message("orders", key=b"k", value=b"v")


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic("orders")
        yield started


def commit(_: MessageView) -> Resolution:
    """Answer as a checker that finds every row."""
    return Resolution.COMMIT


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return one figure of the registry."""
    return registry.get_sample_value(PREFIX + name, {"producer_group": "g", **labels})


def test_a_registry_shows_what_a_producer_has_done(stack: MemoryStack) -> None:
    """Sends, decisions by kind, and answered checks; without a restart of the collector."""
    producer = stack.producer("g", checker=commit)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(producer.collector())
    assert sample(registry, "in_flight") is None
    with producer:
        assert sample(registry, "half_messages_total", outcome="stored") == 0
        with producer.begin() as tx:
            tx.send(MESSAGE)
            tx.send(MESSAGE)
        lost = producer.begin()
        lost.send(MESSAGE)
        gone = producer.begin()
        gone.send(MESSAGE)
        gone.rollback(wait=True)
        stack.wait_until_decided()
        assert sample(registry, "half_messages_total", outcome="stored") == 4
        for decision in ("COMMIT", "ROLLBACK"):
            assert sample(registry, "decisions_total", decision=decision, outcome="stored") == 1
        assert sample(registry, "checks_total", outcome="answered") == 1
        assert sample(registry, "checks_total", outcome="failed") == 0
        assert sample(registry, "checkers_hung") == 0
        assert sample(registry, "decisions_failed_total") == 0
        assert sample(registry, "in_flight") == 0


def test_failures_are_counted_apart() -> None:
    """A half message and a decision that no broker acknowledged; records under way are seen."""
    writer = FakeWriter()
    shared = shared_around(writer)
    tx = Transaction(shared)
    tx.send_async(MESSAGE)
    assert shared.in_flight == 1
    writer.answers = [KafkaFailure(Code.MSG_TIMED_OUT)]
    shared.server.serve(0)
    other = Transaction(shared)
    other.send_async(MESSAGE)
    writer.answers = [None]
    shared.server.serve(0)
    other.commit_async()
    writer.answers = [KafkaFailure(Code.MSG_TIMED_OUT)]
    shared.server.serve(0)
    counts = {key: count for key, count in shared.outcomes.counts().items() if count}
    assert counts == {
        (HALF_MESSAGE, "failed"): 1,
        (HALF_MESSAGE, "stored"): 1,
        ("COMMIT", "failed"): 1,
    }
    assert (shared.in_flight, shared.failures.count) == (0, 1)


def test_one_collector_serves_several_producers(stack: MemoryStack) -> None:
    """Each producer group has series of its own; a second collector is refused by the registry."""
    first = stack.producer("g", checker=commit)
    second = stack.producer("h", checker=commit)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(first.collector(second))
    with first, second:
        with second.begin() as tx:
            tx.send(MESSAGE)
        assert sample(registry, "half_messages_total", outcome="stored") == 0
        name = f"{PREFIX}half_messages_total"
        labels = {"producer_group": "h", "outcome": "stored"}
        assert registry.get_sample_value(name, labels) == 1
        text = generate_latest(registry).decode()
        assert text.count(f"# TYPE {name} counter") == 1
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(second.collector())


def test_no_count_of_concurrent_callbacks_is_lost() -> None:
    """Acknowledgements may be handed over by several threads at a time."""
    outcomes = Outcomes()
    many = 5_000

    def add() -> None:
        for _ in range(many):
            outcomes.half_stored()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcomes.counts()[HALF_MESSAGE, STORED] for _ in range(3)] == [4 * many] * 3


def test_multiprocess_mode_is_warned_of(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There prometheus_client shows no custom collector; one line says so."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    producer = stack.producer("g", checker=commit)
    with caplog.at_level(logging.WARNING):
        producer.collector()
        assert not caplog.records
        monkeypatch.setitem(os.environ, "PROMETHEUS_MULTIPROC_DIR", "anywhere")
        producer.collector()
    (line,) = caplog.records
    assert "multiprocess mode" in line.getMessage()
