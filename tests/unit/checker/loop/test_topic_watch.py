"""Waits of plans for topics: refreshes after their ops, the refresh rate, and write rights."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from halfbridge.checker.admin.real_topics import SHOWN_MAX
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Delivery, Plan
from halfbridge.checker.loop.clients import SettingsAnswer
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.loop.topic_watch import (
    AGAIN_S,
    ASKED_TOGETHER_MAX,
    FIRST_REFRESHES_S,
    FLAWED_S,
    FLAWS_LOGGED_S,
    FORGOTTEN_S,
    FRESH_S,
    MISSING_MAX,
    NEW_S,
    OWN_LOGGED_S,
    REFRESH_SHARE,
    RIGHTS_S,
    SETTINGS_POLL_S,
    TOPICS_MAX,
    UNHEALTHY_S,
    OwnTopics,
    TopicGuard,
    TopicSettings,
    TopicWatch,
)
from halfbridge.checker.status import Status
from halfbridge.kafka.ports import SeenTopic
from halfbridge.serde.progress import START
from halfbridge.serde.records import new_half
from halfbridge.serde.topics import TopicNames
from tests.fake_ports import Clock
from tests.ledger_log import BEGIN_MS, SETTINGS

GRACE_MS = 60_000
NAMES = CheckerConfig().names
STEP_S = 0.1


class _Cluster:
    """Brokers with topics and rights."""

    def __init__(self) -> None:
        self.there = {NAMES.half: 4, NAMES.op: 4, NAMES.dead: 1, "orders": 3}
        self.forbidden: set[str] = set()
        self.is_silent = False
        self.asked: list[list[str]] = []
        self.refreshes = 0
        self.refresh_s = 0.0
        self.clock = Clock()

    def topics(self) -> dict[str, SeenTopic]:
        self.refreshes += 1
        self.clock.now += self.refresh_s
        return {name: SeenTopic(count, 1) for name, count in self.there.items()}

    def may_write(self, topics: list[str]) -> dict[str, bool | None]:
        self.asked.append(topics)
        if self.is_silent:
            raise InputLostError("nobody says")
        return {topic: topic not in self.forbidden for topic in topics}


class _Scene:
    """A pair and the watch of its topics; `now` is the worker's clock in seconds."""

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
        """Return whether the delivery of a COMMIT to `topic`, appended at `op_at`, must wait."""
        metadata = new_half(
            transaction_id="t", born_timestamp=0, producer_group="g", real_topic=topic
        )
        half = HalfRead(0, 0, metadata, "", 0, None)
        append_ms = BEGIN_MS + int(op_at * 1000)
        self.topics.learn_rights({topic}, now)
        gate = self.topics.delivery_gate(self.pair, now)
        must_wait = gate((half,), append_ms, again)
        self.topics.apply(gate)
        if must_wait:
            return True
        plan = Plan([Delivery("t", "g", (half,), 0, 0, 0, append_ms)], records=1)
        assert not self.topics.plan_must_wait(self.pair, plan, now)
        return False


@pytest.fixture
def scene() -> _Scene:
    """A cluster with one real topic, before the first refresh."""
    return _Scene()


def test_no_op_is_judged_by_a_refresh_from_before_it_was_read(scene: _Scene) -> None:
    """A topic created after the last refresh is waited for, and found by the next refresh."""
    scene.topics.refresh(100.0)
    scene.cluster.there["new"] = 1
    assert scene.waits("new", now=110.0, op_at=0.0, again=False)
    scene.topics.refresh_if_due(110.0)
    assert not scene.waits("new", now=110.0, op_at=0.0)


def test_a_topic_is_looked_up_when_its_first_half_message_is_read(scene: _Scene) -> None:
    """A new topic causes one refresh, however often it is expected."""
    scene.topics.refresh(0.0)
    refreshes = scene.cluster.refreshes
    scene.cluster.there["new"] = 1
    for step in range(100):
        scene.topics.expect({"orders", "new", "none"}, step / 100)
        scene.topics.refresh_if_due(step / 100)
    assert scene.cluster.refreshes == refreshes + 1
    assert not scene.waits("new", now=1.0, op_at=1.0, again=False)


def test_refreshes_take_a_part_of_the_time_only(scene: _Scene) -> None:
    """Refreshes for missing topics take at most one part in REFRESH_SHARE of the time."""
    scene.topics.refresh(0.0)
    scene.cluster.refresh_s = 0.5
    before = scene.cluster.refreshes
    for turn in range(1_000, 3_000):
        now = turn / 100
        assert scene.waits("none", now=now, op_at=now)
        scene.topics.refresh_if_due(now)
    assert 3 <= scene.cluster.refreshes - before <= 20 / 0.5 / REFRESH_SHARE + 1


def test_nothing_is_given_up_by_the_first_refreshes_of_a_process(scene: _Scene) -> None:
    """A missing topic is waited for until FIRST_REFRESHES_S after start, also for old ops."""
    scene.topics.refresh(3600.0)
    assert scene.waits("none", now=3600.1, op_at=0.0)
    scene.topics.refresh(3600.0 + FIRST_REFRESHES_S)
    assert not scene.waits("none", now=3600.0 + FIRST_REFRESHES_S, op_at=0.0)


def test_a_gate_asks_nobody_and_changes_nothing(scene: _Scene) -> None:
    """A gate only records the needed refresh and doubts; `apply` executes them."""
    scene.topics.refresh(0.0)
    gate = scene.topics.delivery_gate(scene.pair, 1.0)
    for topic, partition in (("orders", -1), ("orders", 3), ("none", -1)):
        metadata = new_half(
            transaction_id="t",
            born_timestamp=0,
            producer_group="g",
            real_topic=topic,
            real_partition=partition,
        )
        must_wait = (topic, partition) != ("orders", -1)
        assert gate([HalfRead(0, 0, metadata, "", 0, None)], BEGIN_MS, False) == must_wait
    assert (scene.cluster.asked, scene.cluster.refreshes) == ([], 1)
    assert scene.topics.refresh_at == float("inf")
    assert (gate.refresh_at, gate.too_few) == (1.0, {"orders"})
    scene.topics.apply(gate)
    assert scene.topics.refresh_at == 1.0


def test_rights_are_learned_before_the_first_delivery(scene: _Scene) -> None:
    """Rights on each topic are queried once, before the first delivery to it."""
    scene.cluster.there["closed"] = 1
    scene.cluster.forbidden.add("closed")
    scene.topics.refresh(0.0)
    for _ in range(2):
        assert not scene.waits("orders", now=0.1, op_at=0.1)
        assert scene.waits("closed", now=0.1, op_at=0.1)
    assert scene.cluster.asked == [["orders"], ["closed"]]
    assert scene.routes.refused_topics == ["closed"]


def test_a_refused_topic_is_not_tried_before_the_right_is_there(scene: _Scene) -> None:
    """A refused topic stays refused until a query reports the right."""
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
    """If brokers do not answer about rights, the topic is written to."""
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


def test_a_missing_check_topic_is_searched_for_more_and_more_seldom() -> None:
    """Ten minutes of polls for a missing check topic cause 20 to 26 refreshes, not 1,200."""
    cluster = _Cluster()
    watch = _watch(cluster)
    assert not any(watch.finds("check-a", now) for now in _times(600))
    assert 20 <= cluster.refreshes <= 26


def test_a_new_group_is_asked_at_once_beside_one_that_is_missing() -> None:
    """A new group's topic is found by an immediate refresh, also if another one is missing."""
    cluster = _Cluster()
    watch = _watch(cluster)
    assert not any(watch.finds("check-a", now) for now in _times(601))
    refreshes = cluster.refreshes
    cluster.there["check-b"] = 4
    now = 601.0 + FRESH_S / 2
    assert watch.finds("check-b", now)
    assert (watch.partitions("check-b"), cluster.refreshes) == (4, refreshes + 1)


def test_a_topic_that_is_found_and_lost_again_is_searched_for_at_once() -> None:
    """Once the topic was found, its earlier back-off is forgotten."""
    cluster = _Cluster()
    watch = _watch(cluster)
    assert not any(watch.finds("check-a", now) for now in _times(600))
    cluster.there["check-a"] = 4
    watch.refresh(700.0)
    assert watch.finds("check-a", 700.1)
    del cluster.there["check-a"]
    watch.refresh(701.0)
    refreshes = cluster.refreshes
    assert not watch.finds("check-a", 701.6)
    assert cluster.refreshes == refreshes + 1


def test_invented_groups_are_not_searched_for_without_end() -> None:
    """Missing topics beyond MISSING_MAX cause no refreshes beyond the usual ones."""
    cluster = _Cluster()
    watch = _watch(cluster)
    now = 0.0
    for number in range(MISSING_MAX):
        now += 1.0
        assert not watch.finds(f"check-{number}", now)
    refreshes = cluster.refreshes
    for number in range(1_000):
        now += 1.0
        assert not watch.finds(f"other-{number}", now)
    assert cluster.refreshes - refreshes <= 1_000 / FRESH_S + 1


# --- when pairs stop for the settings of their topics, and how often flaws are logged ------

HALF, OP = TopicNames().half, TopicNames().op
RIGHT = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
}


class Settings:
    """The brokers' answers, set by the test."""

    def __init__(self) -> None:
        self.known = {HALF: dict(RIGHT), OP: dict(RIGHT)}
        self.refused: dict[str, str] = {}
        self.paces: list[float] = []

    def read(self, _wait_s: float) -> None:
        """Do nothing."""

    def poll(self, _now: float, pace_s: float) -> bool:
        """Return that there is an answer."""
        self.paces.append(pace_s)
        return True


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def status() -> Status:
    """The status of the worker."""
    return Status()


@pytest.fixture
def guard(settings: Settings, status: Status) -> TopicGuard:
    """The guard after its first read of the settings."""
    given: Any = settings
    guard = TopicGuard(CheckerConfig(), given, status)
    guard.before_start(0.0)
    return guard


def test_pairs_begin_anew_when_they_must_stop_and_when_they_may_go_on(
    guard: TopicGuard, settings: Settings
) -> None:
    """Pairs restart only when a flaw appears or ends; polls are more frequent in between."""
    assert not guard.poll(1.0)
    settings.known[HALF]["message.timestamp.type"] = "CreateTime"
    assert guard.poll(2.0)
    assert HALF in guard.stops
    assert not guard.poll(3.0)
    settings.known[HALF]["message.timestamp.type"] = "LogAppendTime"
    assert guard.poll(4.0)
    assert guard.stops == ""
    assert not guard.poll(5.0)
    assert settings.paces == [SETTINGS_POLL_S, SETTINGS_POLL_S, FLAWED_S, FLAWED_S, SETTINGS_POLL_S]


def test_a_topic_whose_settings_are_not_known_stops_nothing(
    guard: TopicGuard, settings: Settings
) -> None:
    """A topic whose settings can no longer be read does not stop the pairs."""
    settings.known[OP]["cleanup.policy"] = "compact"
    assert guard.poll(1.0)
    del settings.known[OP]
    assert guard.poll(2.0)
    assert guard.stops == ""


def test_what_stops_nothing_is_reported_at_a_pace(
    guard: TopicGuard, settings: Settings, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """A flaw that stops nothing is logged once, then every hour; health always has it."""
    settings.known[HALF]["retention.bytes"] = "1000"
    for now in (1.0, 2.0, FLAWS_LOGGED_S, FLAWS_LOGGED_S + 1, FLAWS_LOGGED_S + 2):
        assert not guard.poll(now)
        assert "retention.bytes is 1000" in status.snapshot().reason
        assert not status.snapshot().healthy
    assert len(caplog.records) == 2
    settings.known[OP]["retention.bytes"] = "1000"
    guard.poll(FLAWS_LOGGED_S + 3)
    assert len(caplog.records) == 3
    for topic in (HALF, OP):
        settings.known[topic]["retention.bytes"] = "-1"
    guard.poll(FLAWS_LOGGED_S + 4)
    assert status.snapshot().healthy


def test_topics_that_may_not_be_read_are_reported_once(
    guard: TopicGuard, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names SHOWN_MAX unreadable topics and the number of others; later only new ones."""
    names = [f"topic-{number}" for number in range(SHOWN_MAX + 2)]
    settings.refused = dict.fromkeys(names, "not authorized")
    for now in (1.0, 2.0):
        guard.poll(now)
    (line,) = (each.getMessage() for each in caplog.records if each.levelno == logging.WARNING)
    assert all(name in line for name in names[:SHOWN_MAX])
    assert "and 2 more topics cannot be read (not authorized)" in line
    settings.refused["another"] = "not authorized"
    guard.poll(3.0)
    assert "another" in caplog.records[-1].getMessage()
    assert "topic-0" not in caplog.records[-1].getMessage()


# --- the stored settings of topics, and when brokers are queried for them ------------------

INTERNAL, ORDERS = "half", "orders"
SILENT = SettingsAnswer(None, "timed out", is_silent=True)
MISSING = SettingsAnswer(None, "no such topic", is_missing=True)


class Brokers:
    """Brokers that answer with `reported`, unless they are away; each question is recorded."""

    def __init__(self) -> None:
        self.reported: dict[str, SettingsAnswer] = {}
        self.are_away = False
        self.asked: list[list[str]] = []

    def ask_settings(self, topics: Iterable[str]) -> Question:
        self.asked.append(list(topics))
        return Question(self, self.asked[-1])

    def limit(self, topic: str, size_bytes: int | str) -> None:
        """Set the `max.message.bytes` of a topic."""
        self.reported[topic] = SettingsAnswer({"max.message.bytes": str(size_bytes)})


class Question:
    """A question that is answered at once, or not while brokers are away."""

    def __init__(self, brokers: Brokers, topics: list[str]) -> None:
        self._brokers = brokers
        self._topics = topics

    @property
    def is_over(self) -> bool:
        return not self._brokers.are_away

    def answers(self) -> dict[str, SettingsAnswer]:
        return {topic: self._brokers.reported.get(topic, MISSING) for topic in self._topics}


@pytest.fixture
def brokers() -> Brokers:
    """Brokers with the half topic."""
    brokers = Brokers()
    brokers.limit(INTERNAL, 1_000)
    return brokers


@pytest.fixture
def asked(brokers: Brokers) -> TopicSettings:
    """Topic settings that always include the half topic."""
    given: Any = brokers
    return TopicSettings(given, [INTERNAL])


def refresh_twice(asked: TopicSettings, now: float) -> bool:
    """Ask, and take the answers; return whether there were any."""
    return asked.poll(now) | asked.poll(now)


def test_internal_topics_are_asked_about_now_and_then(
    brokers: Brokers, asked: TopicSettings
) -> None:
    """A changed limit is known after SETTINGS_POLL_S."""
    assert asked.max_bytes(INTERNAL) is None
    assert refresh_twice(asked, 0.0)
    assert asked.max_bytes(INTERNAL) == 1_000
    brokers.limit(INTERNAL, 2_000)
    assert not refresh_twice(asked, SETTINGS_POLL_S - 1)
    assert asked.max_bytes(INTERNAL) == 1_000
    assert refresh_twice(asked, SETTINGS_POLL_S)
    assert asked.max_bytes(INTERNAL) == 2_000


def test_a_real_topic_is_asked_about_once_somebody_wants_to_know(
    brokers: Brokers, asked: TopicSettings
) -> None:
    """A real topic is queried NEW_S after its limit is asked for, then with the other topics."""
    brokers.limit(ORDERS, 500)
    refresh_twice(asked, 0.0)
    assert brokers.asked == [[INTERNAL]]
    assert asked.max_bytes(ORDERS) is None
    assert refresh_twice(asked, NEW_S)
    assert asked.max_bytes(ORDERS) == 500
    refresh_twice(asked, SETTINGS_POLL_S)
    assert brokers.asked == [[INTERNAL], [ORDERS], [INTERNAL, ORDERS]]


def test_a_missing_topic_is_forgotten(brokers: Brokers, asked: TopicSettings) -> None:
    """A deleted topic has no limit, and is not queried again."""
    brokers.limit(ORDERS, 500)
    asked.max_bytes(ORDERS)
    refresh_twice(asked, 0.0)
    del brokers.reported[ORDERS]
    refresh_twice(asked, SETTINGS_POLL_S)
    refresh_twice(asked, 2 * SETTINGS_POLL_S)
    assert brokers.asked[-2:] == [[INTERNAL, ORDERS], [INTERNAL]]
    assert asked.max_bytes(ORDERS) is None


def test_no_more_topics_than_this_are_kept_in_mind(brokers: Brokers, asked: TopicSettings) -> None:
    """Topics beyond TOPICS_MAX have no limit; internal topics are queried in any case."""
    for number in range(TOPICS_MAX + 10):
        brokers.limit(f"topic-{number}", 1)
        asked.max_bytes(f"topic-{number}")
    rounds = 2 + TOPICS_MAX // ASKED_TOGETHER_MAX
    for turn in range(rounds):
        refresh_twice(asked, turn * NEW_S)
    assert max(map(len, brokers.asked)) == ASKED_TOGETHER_MAX
    assert sum(map(len, brokers.asked)) == 1 + TOPICS_MAX
    assert asked.max_bytes(INTERNAL) == 1_000
    assert asked.max_bytes(f"topic-{TOPICS_MAX - 1}") == 1
    assert asked.max_bytes(f"topic-{TOPICS_MAX}") is None


def test_what_nobody_answered_is_asked_again_soon(brokers: Brokers, asked: TopicSettings) -> None:
    """Without an answer the old limit applies, and the topic is queried again after AGAIN_S."""
    refresh_twice(asked, 0.0)
    brokers.reported[INTERNAL] = SILENT
    refresh_twice(asked, SETTINGS_POLL_S)
    assert asked.max_bytes(INTERNAL) == 1_000
    brokers.limit(INTERNAL, 2_000)
    assert not refresh_twice(asked, SETTINGS_POLL_S + AGAIN_S - 1)
    assert refresh_twice(asked, SETTINGS_POLL_S + AGAIN_S)
    assert asked.max_bytes(INTERNAL) == 2_000


def test_a_question_that_is_never_answered_is_given_up(
    brokers: Brokers, asked: TopicSettings
) -> None:
    """A question without an answer is dropped after FORGOTTEN_S and asked again."""
    brokers.are_away = True
    refresh_twice(asked, 0.0)
    refresh_twice(asked, FORGOTTEN_S + 1)
    brokers.are_away = False
    assert refresh_twice(asked, FORGOTTEN_S + AGAIN_S + 1)
    assert asked.max_bytes(INTERNAL) == 1_000


def test_a_right_that_is_missing_is_no_reason_to_ask_again_soon(
    brokers: Brokers, asked: TopicSettings
) -> None:
    """A topic without the right to read its settings is queried only in the next round."""
    brokers.reported[INTERNAL] = SettingsAnswer(None, "not authorized")
    refresh_twice(asked, 0.0)
    refresh_twice(asked, SETTINGS_POLL_S - 1)
    assert len(brokers.asked) == 1
    assert asked.max_bytes(INTERNAL) is None


def test_a_limit_that_is_no_number_is_not_known(brokers: Brokers, asked: TopicSettings) -> None:
    """A limit that is not a number counts as unknown."""
    brokers.limit(INTERNAL, "much")
    refresh_twice(asked, 0.0)
    assert asked.max_bytes(INTERNAL) is None


# --- a worker reports missing internal topics with the command that creates them -----------

CONFIG = CheckerConfig(bootstrap_servers="kafka:9092", topic_prefix="p.")
OWN_NAMES = CONFIG.names
ALL = {OWN_NAMES.half, OWN_NAMES.op, OWN_NAMES.dead}
COMMAND = "halfbridge topics create --bootstrap-servers kafka:9092 --topic-prefix p."


@pytest.fixture
def ready_status() -> Status:
    """The health of a worker that is ready."""
    made = Status()
    made.set_ready(ready=True)
    return made


def test_a_missing_topic_is_an_error_at_once(
    ready_status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """The missing topic is logged with the command that creates it, again after OWN_LOGGED_S."""
    own = OwnTopics(CONFIG, ready_status)
    for now in (0.0, 2.0, OWN_LOGGED_S - 1):
        own.judge(ALL - {OWN_NAMES.half}, now)
    (line,) = caplog.messages
    assert OWN_NAMES.half in line
    assert OWN_NAMES.op not in line
    assert COMMAND in line
    own.judge(set(), OWN_LOGGED_S)
    assert len(caplog.messages) == 2


def test_health_turns_red_after_a_while(ready_status: Status) -> None:
    """Health fails after topics were missing for UNHEALTHY_S, and recovers once they exist."""
    own = OwnTopics(CONFIG, ready_status)
    own.judge(set(), 100.0)
    own.judge(set(), 100.0 + UNHEALTHY_S - 1)
    assert ready_status.snapshot().all_well
    own.judge(set(), 100.0 + UNHEALTHY_S)
    assert not ready_status.snapshot().all_well
    assert COMMAND in ready_status.snapshot().reason
    own.judge(ALL, 140.0)
    assert ready_status.snapshot().all_well
    own.judge(set(), 200.0)
    assert ready_status.snapshot().all_well
