"""Which pairs are asked for a plan, and when."""

from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.events import HalfRead, OpRead
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
from halfbridge.serde.records import OpKind
from tests.fake_ports import Clock
from tests.ledger_log import BEGIN_MS, SETTINGS, metadata, op_record

CONFIG = CheckerConfig()
TOPIC = CONFIG.names.half


class End:
    """The end of a log, as the client hands it over."""

    def topic(self) -> str:
        return TOPIC

    def offset(self) -> int:
        return 1


class Cluster:
    """Answers as brokers without a topic do."""

    def topics(self) -> dict[str, SeenTopic]:
        return {}

    def may_write(self, topics: list[str]) -> dict[str, bool | None]:
        """Return no right, for no topic is there to be asked about."""
        return dict.fromkeys(topics)


@pytest.fixture
def collector() -> Collector:
    """A collector that finds no real topic: nothing here is delivered."""
    nothing: Any = None
    cluster: Any = Cluster()
    routes, sizes = Routes(0), Sizes(lambda _: None)
    clock = Clock()
    topics = TopicWatch(cluster, routes, CONFIG, Status(), clock=clock)
    blame = Blame(CONFIG.names, routes, sizes, nothing, limit_max=CONFIG.batch_records_max)
    return Collector(CONFIG, blame=blame, topics=topics, reporter=Reporter(Metrics(), clock))


@pytest.fixture
def pair() -> Pair:
    """A pair that was never asked, with nothing in its log."""
    nothing: Any = None
    return Pair(3, SETTINGS, START, nothing, began=0.0)


def test_a_pair_without_news_is_asked_at_an_interval(collector: Collector, pair: Pair) -> None:
    """At first at once; after that only time can have changed what it has to write."""
    pairs = {pair.partition: pair}
    asked_at = []
    for now in (0.0, IDLE_PLAN_S / 2, IDLE_PLAN_S, IDLE_PLAN_S * 1.5, IDLE_PLAN_S * 2):
        assert not collector.collect(pairs, now).pairs
        asked_at.append(pair.idle_at)
    assert asked_at == [0.0, 0.0, IDLE_PLAN_S, IDLE_PLAN_S, IDLE_PLAN_S * 2]


def test_a_pair_with_news_is_asked_at_once(collector: Collector, pair: Pair) -> None:
    """Whoever tells the pair something need not wait for the interval."""
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
    """A ROLLBACK writes nothing; its offsets wait for IDLE_COMMIT_S, and nothing more comes."""
    pairs = {pair.partition: pair}
    pair.ledger.plan(0, records_max=1, size_bytes_max=1)
    pair.ledger.half(HalfRead(0, BEGIN_MS, metadata("A"), "", 1, None))
    pair.ledger.op(OpRead(0, BEGIN_MS, op_record("A", OpKind.ROLLBACK, half_offset=0)))
    assert not collector.collect(pairs, 0.0).pairs
    batch = collector.collect(pairs, IDLE_COMMIT_S)
    assert [*batch.pairs] == [pair]
    assert batch.plans[pair.partition].records == 0
    # The pair holds the plan until the kafka_txn stands, and is not passed over meanwhile.
    assert collector.collect(pairs, IDLE_COMMIT_S) == batch
