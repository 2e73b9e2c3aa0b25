"""When pairs stop for the settings of their topics, and what is said how often."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from halfbridge.checker.admin.real_topics import SHOWN_MAX
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.topic_watch import (
    FLAWED_S,
    FLAWS_LOGGED_S,
    SETTINGS_POLL_S,
    TopicGuard,
)
from halfbridge.checker.status import Status
from halfbridge.serde.topics import TopicNames

HALF, OP = TopicNames().half, TopicNames().op
RIGHT = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
}


class Settings:
    """What brokers have answered, of which a test says what it is."""

    def __init__(self) -> None:
        self.known = {HALF: dict(RIGHT), OP: dict(RIGHT)}
        self.refused: dict[str, str] = {}
        self.paces: list[float] = []

    def read(self, _wait_s: float) -> None:
        """Have asked."""

    def poll(self, _now: float, pace_s: float) -> bool:
        """Have an answer each time."""
        self.paces.append(pace_s)
        return True


@pytest.fixture
def settings() -> Settings:
    """Settings that are as they must be."""
    return Settings()


@pytest.fixture
def status() -> Status:
    """What the worker shows."""
    return Status()


@pytest.fixture
def guard(settings: Settings, status: Status) -> TopicGuard:
    """The guard, which has looked once."""
    given: Any = settings
    guard = TopicGuard(CheckerConfig(), given, status)
    guard.before_start(0.0)
    return guard


def test_pairs_begin_anew_when_they_must_stop_and_when_they_may_go_on(
    guard: TopicGuard, settings: Settings
) -> None:
    """Not at each look between the two; while something is wrong, looks come sooner."""
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
    """Nor one that stopped the pairs until the right to read its settings was taken away."""
    settings.known[OP]["cleanup.policy"] = "compact"
    assert guard.poll(1.0)
    del settings.known[OP]
    assert guard.poll(2.0)
    assert guard.stops == ""


def test_what_stops_nothing_is_told_at_a_pace(
    guard: TopicGuard, settings: Settings, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """Once when it is new, then every hour; health names it all the time."""
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


def test_topics_that_may_not_be_read_are_told_once(
    guard: TopicGuard, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """There may be a thousand of them: a line names some."""
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
