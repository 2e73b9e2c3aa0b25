"""The loop's wait for records, and a worker's health, gauges and log."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge import Message, MessageView, Resolution
from halfbridge.checker.loop.worker import DUE_S, IDLE_S, idle_s
from halfbridge.checker.metrics import Metrics
from halfbridge.checker.status import Health
from halfbridge.kafka.ports import NewTopic
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.programs import MemoryProducer

NOW = 100.0
NEVER = float("inf")


def _pair(
    *, due_in_ms: int | None = None, has_work: bool = False, waits: bool = False, held: Any = None
) -> Any:
    due_ms = None if due_in_ms is None else 5_000 + due_in_ms
    ledger = SimpleNamespace(waits_for_half=waits, next_due_ms=lambda: due_ms)
    return SimpleNamespace(has_work=has_work, held=held, ledger=ledger, now_ms=lambda _now: 5_000)


@pytest.mark.parametrize(
    ("pair", "wanted_s"),
    [
        (_pair(), IDLE_S),
        (_pair(has_work=True), 0.0),
        (_pair(has_work=True, held="plan"), IDLE_S),
        (_pair(due_in_ms=20), 0.02),
        (_pair(due_in_ms=5_000), IDLE_S),
        (_pair(due_in_ms=-1), DUE_S),
        (_pair(waits=True), DUE_S),
    ],
)
def test_the_wait_ends_when_something_is_due(pair: Any, wanted_s: float) -> None:
    """The wait ends at the next due time; something overdue makes it DUE_S, not 0."""
    assert idle_s([_pair(), pair], NOW, NEVER) == wanted_s


def test_a_refresh_that_is_due_ends_the_wait() -> None:
    """The wait ends at the refresh, and is 0 if the refresh is overdue."""
    assert idle_s([], NOW, NOW + 0.05) == pytest.approx(0.05)
    assert idle_s([], NOW, NOW - 1) == 0.0


# --- what a worker reports about its waits; the shipped worker on brokers in memory --------

# A refresh and the gauges' interval; the limit for health, log and alert is 10 s.
NAMED_S = 7.0
GAUGE = "halfbridge_real_topics_missing"


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    with MemoryStack() as started:
        yield started


def unknown(_: MessageView) -> Resolution:
    """Return UNKNOWN."""
    return Resolution.UNKNOWN


def send(producer: MemoryProducer, topic: str) -> str:
    """Commit a transaction of one message; return its id."""
    with producer.begin() as tx:
        tx.send(Message(topic, key=b"k", value=b"v"))
    return tx.id


def health(stack: MemoryStack) -> Health:
    """Return the content of /healthz."""
    (worker,) = stack.daemon._workers
    return worker.status.snapshot()


def gauge(stack: MemoryStack, topic: str) -> float | None:
    """Return the number of pairs that wait for a topic."""
    (worker,) = stack.daemon._workers
    metrics: Metrics = worker.status.metrics
    return metrics.registry.get_sample_value(GAUGE, {"topic": topic})


def test_a_pair_that_waits_for_a_real_topic_says_so(
    stack: MemoryStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Log, gauge and health report the missing topic, with its command, until it exists."""
    with stack.producer("order-service", checker=unknown) as producer:
        tx = producer.begin()
        tx.send(Message(stack.create_topic("late"), key=b"k", value=b"v"))
        stack.machine.broker.delete_topic("late")
        tx.commit()
        stack.advance(10)
        assert not health(stack).all_well
        said = health(stack).reason
        assert "deliveries of 1 pair wait, because topic late does not exist; create it" in said
        assert "halfbridge topics create late --type transaction" in said
        assert gauge(stack, "late") == 1
        (line,) = [each for each in caplog.messages if "topic late does not exist" in each]
        assert "After 60 s" in line
        stack.machine.broker.create_topic(NewTopic("late", 1, 1, {}))
        stack.advance(10)
        assert health(stack).all_well
        assert gauge(stack, "late") == 0
        assert len(stack.read_committed("late")) == 1


def test_a_partition_of_its_own_that_is_away_is_named(
    stack: MemoryStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Health, gauge and log name an offline half partition within 7 s, until it is back."""
    broker, half = stack.machine.broker, stack.config.names.half
    broker.go_away((half, 1), is_leaderless=True)
    stack.advance(NAMED_S)
    (worker,) = stack.daemon._workers
    labels = {"topic": half, "partition": "1", "cause": "has no leader"}
    named = f"partition 1 of topic {half} has no leader"
    assert named in health(stack).reason
    assert len([line for line in caplog.messages if line.startswith(named)]) == 1
    metrics: Metrics = worker.status.metrics
    assert metrics.registry.get_sample_value("halfbridge_partition_unavailable", labels) == 1
    broker.come_back((half, 1))
    stack.advance(NAMED_S)
    assert health(stack).all_well
    assert not metrics.registry.get_sample_value("halfbridge_partition_unavailable", labels)


TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACED = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a JSON line of this record would have."""
    return dict(record.__dict__.get("halfbridge_fields", {}))


def test_a_dead_letter_of_a_committed_transaction_says_that_it_was_committed(
    stack: MemoryStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Each dead letter has one line with id, group, topic and reason, and the trace as a field."""
    with stack.producer("order-service", checker=unknown) as producer:
        stack.create_topic("gone")
        committed = producer.begin()
        committed.send(Message("gone", key=b"k", value=b"v", headers=[TRACED]))
        stack.machine.broker.delete_topic("gone")
        committed.commit()
        lost = producer.begin()
        lost.send(Message(stack.create_topic("orders"), value=b"v"))
        stack.advance(3_600)
        assert len(stack.dead_letters()) == 2
    reported = {
        each: [line for line in caplog.messages if line.startswith("dead letter") and each in line]
        for each in (committed.id, lost.id)
    }
    ((of_committed,), (of_lost,)) = reported.values()
    for words in ("UNDELIVERABLE", "order-service", "gone", "COMMITTED", "does not exist"):
        assert words in of_committed
    assert "CHECK_TIMES" in of_lost
    assert "COMMITTED" not in of_lost
    of_letters = [fields(each) for each in caplog.records if each.message.startswith("dead letter")]
    assert {each["transaction_id"]: each.get("trace_id") for each in of_letters} == {
        committed.id: TRACE,
        lost.id: None,
    }


def test_debug_tells_the_life_of_a_transaction_by_its_id(
    stack: MemoryStack, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG, check, answer, decision and delivery are logged; at other levels they are not."""
    topic = stack.create_topic("orders")

    def commit(_: MessageView) -> Resolution:
        return Resolution.COMMIT

    with stack.producer("order-service", checker=commit) as producer:
        quiet = send(producer, topic)
        stack.advance(10)
        caplog.set_level(logging.DEBUG, "halfbridge.checker")
        decided = send(producer, topic)
        asked = producer.begin()
        asked.send(Message(topic, value=b"v", headers=[TRACED]))
        stack.advance(60)
        assert len(stack.read_committed(topic)) == 3
    events = {
        each: [
            fields(record)["event"]
            for record in caplog.records
            if record.levelno == logging.DEBUG and each in record.getMessage()
        ]
        for each in (quiet, decided, asked.id)
    }
    assert events == {
        quiet: [],
        decided: ["decision", "delivery"],
        asked.id: ["check", "answer", "delivery"],
    }
    traced = [fields(each) for each in caplog.records if "trace_id" in fields(each)]
    assert {(each["event"], each["trace_id"]) for each in traced} == {
        ("check", TRACE),
        ("delivery", TRACE),
    }
