"""When the collector asks pairs for plans, and what the reporter reports of them."""

from math import inf
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.checker.core.plan import Plan
from halfbridge.checker.loop import report
from halfbridge.checker.loop.blame import Blame
from halfbridge.checker.loop.collector import IDLE_COMMIT_S, IDLE_PLAN_S, Collector
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.publish import Sizes
from halfbridge.checker.loop.report import Reporter
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.loop.topic_watch import TopicWatch
from halfbridge.checker.metrics import Metrics
from halfbridge.checker.status import Status
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.progress import START
from halfbridge.serde.records import OpKind, OpSource
from tests.fake_ports import Clock
from tests.ledger_log import BEGIN_MS, HOUR_MS, SECOND_MS, SETTINGS, UNLIMITED, metadata, op_record

CONFIG = CheckerConfig()
TOPIC = CONFIG.names.half


class End:
    """The end of a log as the client returns it."""

    def topic(self) -> str:
        return TOPIC

    def offset(self) -> int:
        return 1


class Cluster:
    """Brokers that grant every right; at first without a topic."""

    def __init__(self) -> None:
        self.there: list[str] = []
        self.asked: list[list[str]] = []

    def topics(self) -> dict[str, SeenTopic]:
        return dict.fromkeys(self.there, SeenTopic(1, 1))

    def may_write(self, topics: list[str]) -> dict[str, bool | None]:
        self.asked.append(topics)
        return dict.fromkeys(topics, True)


@pytest.fixture
def brokers() -> Cluster:
    """The brokers of the collector."""
    return Cluster()


@pytest.fixture
def collector(brokers: Cluster) -> Collector:
    """A collector that finds no real topic, unless the test adds one."""
    nothing: Any = None
    cluster: Any = brokers
    routes, sizes = Routes(0), Sizes(lambda _: None)
    clock = Clock()
    topics = TopicWatch(cluster, routes, CONFIG, Status(), clock=clock)
    blame = Blame(CONFIG.names, routes, sizes, nothing, limit_max=CONFIG.batch_records_max)
    return Collector(CONFIG, blame=blame, topics=topics, reporter=Reporter(Metrics(), clock))


@pytest.fixture
def pair() -> Pair:
    """A pair with an empty log, not asked for a plan yet."""
    nothing: Any = None
    return Pair(3, SETTINGS, START, nothing, began=0.0)


def test_a_pair_without_news_is_asked_at_an_interval(collector: Collector, pair: Pair) -> None:
    """A pair without news is asked at once, then every IDLE_PLAN_S."""
    pairs = {pair.partition: pair}
    asked_at = []
    for now in (0.0, IDLE_PLAN_S / 2, IDLE_PLAN_S, IDLE_PLAN_S * 1.5, IDLE_PLAN_S * 2):
        assert not collector.collect(pairs, now).pairs
        asked_at.append(pair.idle_at)
    assert asked_at == [0.0, 0.0, IDLE_PLAN_S, IDLE_PLAN_S, IDLE_PLAN_S * 2]


def test_a_pair_with_news_is_asked_at_once(collector: Collector, pair: Pair) -> None:
    """A log end, op end or half end has the pair asked before the interval is over."""
    pairs = {pair.partition: pair}
    later = 0.0
    for tell in (
        lambda: pair.add_end(End(), is_half=True),
        lambda: pair.op_end(0, BEGIN_MS),
        lambda: pair.half_end(0, 0),
    ):
        later += IDLE_PLAN_S / 100
        tell()
        assert pair.has_news
        assert not collector.collect(pairs, later).pairs
        assert (pair.has_news, pair.idle_at) == (False, later)


def test_offsets_that_moved_are_committed_without_news(collector: Collector, pair: Pair) -> None:
    """The offsets of a ROLLBACK, which writes nothing, are committed after IDLE_COMMIT_S."""
    pairs = {pair.partition: pair}
    pair.ledger.plan(0, records_max=1, size_bytes_max=1)
    pair.ledger.half(HalfRead(0, BEGIN_MS, metadata("A"), "", 1, None))
    pair.ledger.op(OpRead(0, BEGIN_MS, op_record("A", OpKind.ROLLBACK, half_offset=0)))
    assert not collector.collect(pairs, 0.0).pairs
    batch = collector.collect(pairs, IDLE_COMMIT_S)
    assert [*batch.pairs] == [pair]
    assert batch.plans[pair.partition].records == 0
    # The pair holds the plan until the kafka_txn is committed, and is collected again.
    assert collector.collect(pairs, IDLE_COMMIT_S) == batch


def test_rights_are_asked_for_before_a_plan_and_by_none(
    brokers: Cluster, collector: Collector, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights on all topics are queried once, before the first plan, which delivers at once.

    A query during the plan would block the ledger.
    """
    brokers.there = [CONFIG.names.dead, "real", "other"]
    asked_before_plans: list[list[list[str]]] = []
    make = pair.ledger.plan

    def plan(*args: Any, **kwargs: Any) -> Plan:
        asked_before_plans.append([*brokers.asked])
        made = make(*args, **kwargs)
        assert brokers.asked == asked_before_plans[-1]
        return made

    monkeypatch.setattr(pair.ledger, "plan", plan)
    assert not pair.ledger.is_rebuilt
    for offset, name in enumerate("AB"):
        half = metadata(name)._replace(real_topic=("real", "other")[offset])
        pair.ledger.half(HalfRead(offset, BEGIN_MS, half, "", 1, None))
        op = op_record(name, OpKind.COMMIT, half_offset=offset)
        pair.ledger.op(OpRead(offset, BEGIN_MS, op))
    batch = collector.collect({pair.partition: pair}, 1.0)
    assert [each.transaction_id for each in batch.plans[pair.partition].deliveries] == ["A", "B"]
    assert asked_before_plans == [[["other", "real"]]]
    assert brokers.asked == [["other", "real"]]


# --- gauges and log lines about the pairs that are served ----------------------------------

HALF_MS, OP_MS = 7 * HOUR_MS, 9 * HOUR_MS


class Message:
    """A record with a timestamp only, which sets the partition time."""

    def timestamp(self) -> tuple[int, int]:
        """Return an append time."""
        return 2, BEGIN_MS + HOUR_MS


@pytest.fixture
def served() -> Pair:
    """A rebuilt pair whose time is an hour after BEGIN_MS."""
    nothing: Any = None
    served = Pair(3, SETTINGS, START, nothing, began=0.0)
    served.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
    served._take_time(Message(), 0.0)
    return served


def left_s(served: Pair, half_ms: int | None = HALF_MS, op_ms: int | None = OP_MS) -> float | None:
    """Return the gauge's value with these retentions."""
    metrics = Metrics()
    Reporter(metrics, Clock()).state([served], 0.0, (half_ms, op_ms))
    value = metrics.registry.get_sample_value
    return value("halfbridge_retention_left_seconds", {"partition": "3"})


def add_half(served: Pair, name: str, offset: int, append_ms: int) -> None:
    """Give the ledger a half message."""
    served.ledger.half(HalfRead(offset, append_ms, metadata(name), "", 1, None))


def test_retention_counts_from_the_oldest_undecided_half_message(served: Pair) -> None:
    """The gauge counts from the oldest undecided half message, and is infinite without one."""
    assert left_s(served) == inf
    add_half(served, "A", 0, BEGIN_MS)
    add_half(served, "B", 1, BEGIN_MS + SECOND_MS)
    assert left_s(served) == (HALF_MS - HOUR_MS) / 1000
    for offset, (name, wanted) in enumerate((("A", (HALF_MS - HOUR_MS) / 1000 + 1), ("B", inf))):
        op = op_record(name, OpKind.ROLLBACK, half_offset=offset)
        served.ledger.op(OpRead(offset, BEGIN_MS + HOUR_MS, op))
        served.ledger.plan(BEGIN_MS, records_max=UNLIMITED, size_bytes_max=UNLIMITED)
        assert left_s(served) == wanted


def test_retention_counts_from_the_oldest_op_that_is_not_applied(served: Pair) -> None:
    """The gauge counts from the oldest waiting op until it is applied."""
    served.ledger.op(OpRead(0, BEGIN_MS, op_record("A", OpKind.COMMIT, half_offset=5)))
    served.ledger.op(OpRead(1, BEGIN_MS + 1, op_record("B", OpKind.COMMIT, half_offset=5)))
    assert left_s(served) == (OP_MS - HOUR_MS) / 1000
    add_half(served, "A", 0, BEGIN_MS)
    assert left_s(served) == (HALF_MS - HOUR_MS) / 1000


@pytest.mark.parametrize("kept_ms", [-1, None])
def test_what_is_kept_for_ever_or_for_nobody_knows_how_long(
    served: Pair, kept_ms: int | None
) -> None:
    """With unlimited or unknown retention the gauge is infinite."""
    add_half(served, "A", 0, BEGIN_MS)
    assert left_s(served, half_ms=kept_ms) == inf


def test_a_record_without_an_append_time_counts_for_nothing(served: Pair) -> None:
    """A half message without an append time leaves the gauge infinite."""
    add_half(served, "A", 0, -1)
    assert left_s(served) == inf


def test_lines_about_records_of_others_are_counted_beyond_a_pace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At most LINES_A_SECOND_MAX lines a second are logged; the others are counted."""
    clock = Clock()
    lines = report.LimitedLog(clock)
    for number in range(report.LINES_A_SECOND_MAX + 7):
        lines.log("line %d", number)
    assert len(caplog.messages) == report.LINES_A_SECOND_MAX
    clock.now += 1.0
    lines.log("the next second")
    assert caplog.messages[-2:] == ["7 more lines like these were left out", "the next second"]


def test_a_failed_attempt_is_distinguished_from_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Failed attempts are counted as FAILED; the reason is logged once per REPORTED_AGAIN_S."""
    metrics = Metrics()
    reporter = Reporter(metrics, Clock())
    answer = op_record("A", OpKind.UNKNOWN, half_offset=0)._replace(
        source=OpSource.CHECK, check_number=1, producer_group="orders"
    )
    failed = answer._replace(check_number=0, actor="host:7", reason="checker raised\nOSError()")
    reporter.answered([answer, failed, failed], 0.0)
    reporter.answered([failed], report.REPORTED_AGAIN_S - 1)
    value = metrics.registry.get_sample_value
    for resolution, count in (("UNKNOWN", 1), ("FAILED", 3)):
        labels = {"group": "orders", "resolution": resolution}
        assert value("halfbridge_checks_answered_total", labels) == count
    (line,) = caplog.messages
    assert line == (
        "transaction A stays undecided: the checker of group orders, at host:7, failed:"
        " checker raised\\nOSError()"
    )
    reporter.answered([failed], report.REPORTED_AGAIN_S)
    assert len(caplog.messages) == 2
