"""When plans wait for topics: looks from after their ops, at a bounded pace, and rights."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Delivery, Plan
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.loop.topic_watch import (
    FIRST_REFRESHES_S,
    FRESH_S,
    MISSING_MAX,
    REFRESH_SHARE,
    RIGHTS_S,
    TopicWatch,
)
from halfbridge.checker.status import Status
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.progress import START
from halfbridge.serde.records import new_half
from tests.fake_ports import Clock
from tests.ledger_log import BEGIN_MS, SETTINGS

GRACE_MS = 60_000
NAMES = CheckerConfig().names
STEP_S = 0.1


class _Cluster:
    """Answers as brokers do."""

    def __init__(self) -> None:
        self.there = {NAMES.half: 4, NAMES.op: 4, NAMES.dead: 1, "orders": 3}
        self.forbidden: set[str] = set()
        self.is_silent = False
        self.asked: list[list[str]] = []
        self.looks = 0
        self.look_s = 0.0
        self.clock = Clock()

    def topics(self) -> dict[str, SeenTopic]:
        self.looks += 1
        self.clock.now += self.look_s
        return {name: SeenTopic(count, 1) for name, count in self.there.items()}

    def may_write(self, topics: list[str]) -> dict[str, bool | None]:
        self.asked.append(topics)
        if self.is_silent:
            raise InputLostError("nobody says")
        return {topic: topic not in self.forbidden for topic in topics}


class _Scene:
    """A pair and what watches its topics; `now` is the worker's clock, seconds."""

    def __init__(self) -> None:
        self.cluster: Any = _Cluster()
        self.routes = Routes(GRACE_MS)
        self.topics = TopicWatch(
            self.cluster,
            self.routes,
            CheckerConfig(topic_gone_ms=GRACE_MS),
            Status(),
            clock=self.cluster.clock,
        )
        publisher: Any = None
        self.pair = Pair(0, SETTINGS, START, publisher, began=0.0)
        self.pair._newest_ms, self.pair._newest_at = BEGIN_MS, 0.0

    def waits(self, topic: str, *, now: float, op_at: float, again: bool = True) -> bool:
        """Tell whether the delivery of a COMMIT to `topic`, appended at `op_at`, must wait."""
        metadata = new_half(
            transaction_id="t", born_timestamp=0, producer_group="g", real_topic=topic
        )
        half = HalfRead(0, 0, metadata, "", 0, None)
        append_ms = BEGIN_MS + int(op_at * 1000)
        if self.topics.awaits(self.pair, now)((half,), append_ms, again):
            return True
        plan = Plan([Delivery("t", "g", (half,), 0, 0, 0, append_ms)], records=1)
        assert not self.topics.must_wait(self.pair, plan, now)
        return False


@pytest.fixture
def scene() -> _Scene:
    """A cluster with one real topic, nothing looked up yet."""
    return _Scene()


def test_no_op_is_judged_by_a_look_from_before_it_was_read(scene: _Scene) -> None:
    """The COMMIT is old, and the topic was made a moment before the COMMIT was read."""
    scene.topics.refresh(100.0)
    scene.cluster.there["new"] = 1
    assert scene.waits("new", now=110.0, op_at=0.0, again=False)
    scene.topics.refresh_if_due(110.0)
    assert not scene.waits("new", now=110.0, op_at=0.0)


def test_a_topic_is_looked_up_when_its_first_half_message_is_read(scene: _Scene) -> None:
    """Once: the topic of a message that is never decided causes no look-ups without end."""
    scene.topics.refresh(0.0)
    looks = scene.cluster.looks
    scene.cluster.there["new"] = 1
    for step in range(100):
        scene.topics.expect({"orders", "new", "none"}, step / 100)
        scene.topics.refresh_if_due(step / 100)
    assert scene.cluster.looks == looks + 1
    assert not scene.waits("new", now=1.0, op_at=1.0, again=False)


def test_looks_take_a_part_of_the_time_only(scene: _Scene) -> None:
    """Whoever names missing topics without end does not keep the loop looking them up."""
    scene.topics.refresh(0.0)
    scene.cluster.look_s = 0.5
    before = scene.cluster.looks
    for turn in range(1_000, 3_000):
        now = turn / 100
        assert scene.waits("none", now=now, op_at=now)
        scene.topics.refresh_if_due(now)
    assert 3 <= scene.cluster.looks - before <= 20 / 0.5 / REFRESH_SHARE + 1


def test_nothing_is_given_up_by_the_first_looks_of_a_process(scene: _Scene) -> None:
    """The op is an hour old, for the daemon was away; brokers may have just begun as well."""
    scene.topics.refresh(3600.0)
    assert scene.waits("none", now=3600.1, op_at=0.0)
    scene.topics.refresh(3600.0 + FIRST_REFRESHES_S)
    assert not scene.waits("none", now=3600.0 + FIRST_REFRESHES_S, op_at=0.0)


def test_rights_are_learned_before_the_first_delivery(scene: _Scene) -> None:
    """A kafka_txn that fails over them has all pairs of the worker read again."""
    scene.cluster.there["closed"] = 1
    scene.cluster.forbidden.add("closed")
    scene.topics.refresh(0.0)
    for _ in range(2):
        assert not scene.waits("orders", now=0.1, op_at=0.1)
        assert scene.waits("closed", now=0.1, op_at=0.1)
    assert scene.cluster.asked == [["orders"], ["closed"]]
    assert scene.routes.refused_topics == ["closed"]


def test_a_refused_topic_is_not_tried_before_the_right_is_there(scene: _Scene) -> None:
    """Every 10 s a kafka_txn failed to find out that nothing had changed."""
    scene.cluster.there["closed"] = 1
    scene.cluster.forbidden.add("closed")
    scene.topics.refresh(0.0)
    assert scene.waits("closed", now=0.1, op_at=0.1)
    for number in range(1, 60):
        scene.topics.refresh_if_due(5.0 + number * RIGHTS_S)
        assert scene.routes.refused_topics == ["closed"]
    scene.cluster.forbidden.clear()
    scene.topics.refresh_if_due(5.0 + 60 * RIGHTS_S)
    assert scene.routes.refused_topics == []


def test_where_nobody_tells_of_rights_it_is_tried(scene: _Scene) -> None:
    """Brokers that do not answer such questions are written to all the same."""
    scene.cluster.is_silent = True
    scene.topics.refresh(0.0)
    assert not scene.waits("orders", now=0.1, op_at=0.1)
    assert scene.routes.refused_topics == []
    assert not scene.waits("orders", now=0.2, op_at=0.2)
    assert scene.cluster.asked == [["orders"]]


def _watch(cluster: _Cluster) -> TopicWatch:
    scene = _Scene()
    scene.topics._questions = cluster
    scene.topics.refresh(0.0)
    return scene.topics


def _times(seconds: float, start: float = 0.0) -> list[float]:
    return [start + STEP_S * step for step in range(1, round(seconds / STEP_S))]


def test_a_missing_check_topic_is_looked_for_more_and_more_seldom() -> None:
    """Ten minutes of checks that nobody can be sent: some two dozen looks, not 1,200."""
    cluster = _Cluster()
    watch = _watch(cluster)
    assert not any(watch.finds("check-a", now) for now in _times(600))
    assert 20 <= cluster.looks <= 26


def test_a_new_group_is_asked_at_once_beside_one_that_is_missing() -> None:
    """Its topic was made after the last look; somebody else's missing topic delays nothing."""
    cluster = _Cluster()
    watch = _watch(cluster)
    assert not any(watch.finds("check-a", now) for now in _times(601))
    looks = cluster.looks
    cluster.there["check-b"] = 4
    now = 601.0 + FRESH_S / 2
    assert watch.finds("check-b", now)
    assert (watch.partitions("check-b"), cluster.looks) == (4, looks + 1)


def test_a_topic_that_is_found_and_lost_again_is_looked_for_at_once() -> None:
    """What was known of it while it was missing is forgotten."""
    cluster = _Cluster()
    watch = _watch(cluster)
    assert not any(watch.finds("check-a", now) for now in _times(600))
    cluster.there["check-a"] = 4
    watch.refresh(700.0)
    assert watch.finds("check-a", 700.1)
    del cluster.there["check-a"]
    watch.refresh(701.0)
    looks = cluster.looks
    assert not watch.finds("check-a", 701.6)
    assert cluster.looks == looks + 1


def test_invented_groups_are_not_looked_for_without_end() -> None:
    """More missing topics than are remembered cause no looks beyond the usual ones."""
    cluster = _Cluster()
    watch = _watch(cluster)
    now = 0.0
    for number in range(MISSING_MAX):
        now += 1.0
        assert not watch.finds(f"check-{number}", now)
    looks = cluster.looks
    for number in range(1_000):
        now += 1.0
        assert not watch.finds(f"other-{number}", now)
    assert cluster.looks - looks <= 1_000 / FRESH_S + 1
