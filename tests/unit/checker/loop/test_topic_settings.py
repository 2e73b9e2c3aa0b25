"""What is kept of the settings of topics, and when brokers are asked for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from halfbridge.checker.loop.clients import SettingsAnswer
from halfbridge.checker.loop.topic_watch import (
    AGAIN_S,
    ASKED_TOGETHER_MAX,
    FORGOTTEN_S,
    NEW_S,
    SETTINGS_POLL_S,
    TOPICS_MAX,
    TopicSettings,
)

HALF, ORDERS = "half", "orders"
SILENT = SettingsAnswer(None, "timed out", is_silent=True)
MISSING = SettingsAnswer(None, "no such topic", is_missing=True)


class Brokers:
    """Brokers that answer by `told`, unless they are away; each question is kept."""

    def __init__(self) -> None:
        self.told: dict[str, SettingsAnswer] = {}
        self.are_away = False
        self.asked: list[list[str]] = []

    def ask_settings(self, topics: Iterable[str]) -> Question:
        """Take a question."""
        self.asked.append(list(topics))
        return Question(self, self.asked[-1])

    def limit(self, topic: str, size_bytes: int | str) -> None:
        """Have a topic with this `max.message.bytes`."""
        self.told[topic] = SettingsAnswer({"max.message.bytes": str(size_bytes)})


class Question:
    """A question that is answered at once, or never."""

    def __init__(self, brokers: Brokers, topics: list[str]) -> None:
        self._brokers = brokers
        self._topics = topics

    @property
    def is_over(self) -> bool:
        """Tell whether they answered."""
        return not self._brokers.are_away

    def answers(self) -> dict[str, SettingsAnswer]:
        """Return what they said."""
        return {topic: self._brokers.told.get(topic, MISSING) for topic in self._topics}


@pytest.fixture
def brokers() -> Brokers:
    """Brokers that know the half topic."""
    brokers = Brokers()
    brokers.limit(HALF, 1_000)
    return brokers


@pytest.fixture
def settings(brokers: Brokers) -> TopicSettings:
    """What is asked, of the half topic in any case."""
    given: Any = brokers
    return TopicSettings(given, [HALF])


def look_twice(settings: TopicSettings, now: float) -> bool:
    """Ask, and take the answers; tell whether any came."""
    return settings.poll(now) | settings.poll(now)


def test_internal_topics_are_asked_about_now_and_then(
    brokers: Brokers, settings: TopicSettings
) -> None:
    """What an operator changes is known by and by."""
    assert settings.max_bytes(HALF) is None
    assert look_twice(settings, 0.0)
    assert settings.max_bytes(HALF) == 1_000
    brokers.limit(HALF, 2_000)
    assert not look_twice(settings, SETTINGS_POLL_S - 1)
    assert settings.max_bytes(HALF) == 1_000
    assert look_twice(settings, SETTINGS_POLL_S)
    assert settings.max_bytes(HALF) == 2_000


def test_a_real_topic_is_asked_about_once_somebody_wants_to_know(
    brokers: Brokers, settings: TopicSettings
) -> None:
    """Soon after, and from then on with the others."""
    brokers.limit(ORDERS, 500)
    look_twice(settings, 0.0)
    assert brokers.asked == [[HALF]]
    assert settings.max_bytes(ORDERS) is None
    assert look_twice(settings, NEW_S)
    assert settings.max_bytes(ORDERS) == 500
    look_twice(settings, SETTINGS_POLL_S)
    assert brokers.asked == [[HALF], [ORDERS], [HALF, ORDERS]]


def test_a_missing_topic_is_forgotten(brokers: Brokers, settings: TopicSettings) -> None:
    """Names come from half messages; and a topic that was deleted has no limit any more."""
    brokers.limit(ORDERS, 500)
    settings.max_bytes(ORDERS)
    look_twice(settings, 0.0)
    del brokers.told[ORDERS]
    look_twice(settings, SETTINGS_POLL_S)
    look_twice(settings, 2 * SETTINGS_POLL_S)
    assert brokers.asked[-2:] == [[HALF, ORDERS], [HALF]]
    assert settings.max_bytes(ORDERS) is None


def test_no_more_topics_than_this_are_kept_in_mind(
    brokers: Brokers, settings: TopicSettings
) -> None:
    """Of those beyond nothing is known, and the internal ones are asked about all the same."""
    for number in range(TOPICS_MAX + 10):
        brokers.limit(f"topic-{number}", 1)
        settings.max_bytes(f"topic-{number}")
    rounds = 2 + TOPICS_MAX // ASKED_TOGETHER_MAX
    for turn in range(rounds):
        look_twice(settings, turn * NEW_S)
    assert max(map(len, brokers.asked)) == ASKED_TOGETHER_MAX
    assert sum(map(len, brokers.asked)) == 1 + TOPICS_MAX
    assert settings.max_bytes(HALF) == 1_000
    assert settings.max_bytes(f"topic-{TOPICS_MAX - 1}") == 1
    assert settings.max_bytes(f"topic-{TOPICS_MAX}") is None


def test_what_nobody_answered_is_asked_again_soon(
    brokers: Brokers, settings: TopicSettings
) -> None:
    """What was known before holds until then."""
    look_twice(settings, 0.0)
    brokers.told[HALF] = SILENT
    look_twice(settings, SETTINGS_POLL_S)
    assert settings.max_bytes(HALF) == 1_000
    brokers.limit(HALF, 2_000)
    assert not look_twice(settings, SETTINGS_POLL_S + AGAIN_S - 1)
    assert look_twice(settings, SETTINGS_POLL_S + AGAIN_S)
    assert settings.max_bytes(HALF) == 2_000


def test_a_question_that_is_never_answered_is_given_up(
    brokers: Brokers, settings: TopicSettings
) -> None:
    """The client itself may say nothing any more."""
    brokers.are_away = True
    look_twice(settings, 0.0)
    look_twice(settings, FORGOTTEN_S + 1)
    brokers.are_away = False
    assert look_twice(settings, FORGOTTEN_S + AGAIN_S + 1)
    assert settings.max_bytes(HALF) == 1_000


def test_a_right_that_is_missing_is_no_reason_to_ask_again_soon(
    brokers: Brokers, settings: TopicSettings
) -> None:
    """It is the operator's choice; the next round asks."""
    brokers.told[HALF] = SettingsAnswer(None, "not authorized")
    look_twice(settings, 0.0)
    look_twice(settings, SETTINGS_POLL_S - 1)
    assert len(brokers.asked) == 1
    assert settings.max_bytes(HALF) is None


def test_a_limit_that_is_no_number_is_not_known(brokers: Brokers, settings: TopicSettings) -> None:
    """A broker of another make may say anything."""
    brokers.limit(HALF, "much")
    look_twice(settings, 0.0)
    assert settings.max_bytes(HALF) is None
