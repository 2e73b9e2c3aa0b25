"""The figures of a service's producer, in the registry of the service."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from halfbridge import Message, MessageView, Resolution
from halfbridge.bridge.client_metrics import DESCRIPTIONS
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


def test_counts_stay_when_a_producer_is_closed(stack: MemoryStack) -> None:
    """No counter falls, neither of messages nor of checks."""
    producer = stack.producer("g", checker=commit)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(producer.collector())
    with producer:
        producer.begin().send(MESSAGE)
        stack.wait_until_decided()
    assert sample(registry, "checks_total", outcome="answered") == 1
    assert sample(registry, "half_messages_total", outcome="stored") == 1


def test_producers_of_one_group_are_summed(stack: MemoryStack) -> None:
    """A registry takes each series once."""
    first, second = (stack.producer("g", checker=commit) for _ in range(2))
    registry = CollectorRegistry(auto_describe=True)
    registry.register(first.collector(second))
    with first, second:
        for each in (first, second):
            with each.begin() as tx:
                tx.send(MESSAGE)
        name = f'{PREFIX}half_messages_total{{outcome="stored",producer_group="g"}}'
        text = generate_latest(registry).decode()
        assert [line for line in text.splitlines() if line.startswith(name)] == [f"{name} 2.0"]


def test_an_asynchronous_producer_has_the_same_metrics(stack: MemoryStack) -> None:
    """Its collector is that of the blocking one, and one collector may have both kinds."""

    async def commit_later(_: MessageView) -> Resolution:
        return Resolution.COMMIT

    producer = stack.async_producer("g", checker=commit_later)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(producer.collector(stack.producer("h", checker=commit)))

    async def send() -> None:
        async with producer:
            async with producer.begin() as tx:
                await tx.send(MESSAGE)
            assert sample(registry, "half_messages_total", outcome="stored") == 1
            figures = producer.figures()
            assert figures
            assert figures.outcomes[HALF_MESSAGE, STORED] == 1

    stack.run(send())


def points(reader: InMemoryMetricReader) -> dict[tuple[str, ...], object]:
    """Return (name of the instrument, attributes beside the group) -> value, of the group g."""
    data = reader.get_metrics_data()
    assert data
    found: dict[tuple[str, ...], object] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            attributes = {name: str(value) for name, value in (point.attributes or {}).items()}
            assert isinstance(point, NumberDataPoint)
            assert attributes.pop("halfbridge.producer_group") == "g"
            found[(metric.name, *attributes.values())] = point.value
    return found


def test_instruments_of_opentelemetry_have_the_same_figures(stack: MemoryStack) -> None:
    """Two producers, one of which is asynchronous and not started; counters and gauges."""

    async def commit_later(_: MessageView) -> Resolution:
        return Resolution.COMMIT

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    producer = stack.producer("g", checker=commit)
    producer.register_meters(stack.async_producer("h", checker=commit_later), provider=provider)
    assert reader.get_metrics_data() is None, "a producer that is not started has no points"
    with producer:
        for _ in range(2):
            with producer.begin() as tx:
                tx.send(MESSAGE)
        stack.wait_until_decided()
        found = points(reader)
    provider.shutdown()
    assert found["halfbridge.client.half_messages", "stored"] == 2
    assert found["halfbridge.client.decisions", "COMMIT", "stored"] == 2
    assert found["halfbridge.client.decisions", "ROLLBACK", "stored"] == 0
    assert found["halfbridge.client.checks", "answered"] == 0
    assert found[("halfbridge.client.in_flight",)] == 0
    assert {name for name, *_ in found} == {f"halfbridge.client.{name}" for name in DESCRIPTIONS}


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


# A service process: one message is stored, one decision is committed.
_SERVICE = """
from prometheus_client import REGISTRY
from halfbridge.bridge import Message, Resolution
from halfbridge.testkit.memory.stack import MemoryStack

with MemoryStack() as stack:
    stack.create_topic("orders")
    with stack.producer("g", checker=lambda _: Resolution.COMMIT) as producer:
        REGISTRY.register(producer.collector())
        with producer.begin() as tx:
            tx.send(Message("orders", value=b"v"))
        stack.advance(seconds=2)  # the figures are copied each second
"""


@pytest.mark.process
def test_multiprocess_mode_sums_the_figures_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is scraped shows the figures of others, which have ended."""
    monkeypatch.setitem(os.environ, "PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for _ in range(2):
        subprocess.run([sys.executable, "-c", _SERVICE], check=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    assert sample(registry, "half_messages_total", outcome="stored") == 2
    assert sample(registry, "decisions_total", decision="COMMIT", outcome="stored") == 2
    assert sample(registry, "in_flight") == 0
