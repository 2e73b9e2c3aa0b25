"""Questions to brokers: asked without waiting, and what silence and refusals come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.clients import EndAnswer, Questions
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge, SeenTopic
from tests.fake_ports import Clock, fake_ports

SILENCE = KafkaFailure(Code.TIMED_OUT)
WAIT_S = 3.0


class _Answer:
    """An answer that has come, or that comes to nothing when it is waited for."""

    def __init__(self, clock: Clock, said: Any) -> None:
        self.clock = clock
        self.said = said

    def done(self) -> bool:
        return self.said is not None

    def result(self, timeout_s: float | None = None) -> Any:
        if self.said is None:
            self.clock.now += timeout_s or 0.0
            raise SILENCE
        if isinstance(self.said, KafkaFailure):
            raise self.said
        return self.said


class _Admin:
    """Brokers that say of a topic, or an edge, what a test wants; None: nothing yet."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.says: dict[Any, Any] = {}
        self.asked: list[Any] = []

    def admin(self, _properties: Mapping[str, Any]) -> _Admin:
        return self

    def poll(self, _wait_s: float) -> None:
        pass

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        if self.says.get("topics") is None:
            raise SILENCE
        return dict(self.says["topics"])

    def ask_ends(
        self, places: Iterable[tuple[str, int]], edge: Edge, _timeout_s: float
    ) -> dict[tuple[str, int], _Answer]:
        self.asked.append(edge)
        return {place: _Answer(self.clock, self.says.get((edge, place[1]))) for place in places}

    def ask_settings(self, topics: Iterable[str], _timeout_s: float) -> dict[str, _Answer]:
        return {topic: _Answer(self.clock, self.says.get(topic)) for topic in topics}

    ask_rights = ask_settings


@pytest.fixture
def admin() -> _Admin:
    """Brokers that say nothing."""
    return _Admin()


@pytest.fixture
def questions(admin: _Admin) -> Questions:
    """Questions to them."""
    return Questions(CheckerConfig(), fake_ports(admin, admin.clock))


def test_an_end_is_asked_for_once_at_a_time(admin: _Admin, questions: Questions) -> None:
    """The answer belongs to whoever asked first; a failure is no answer."""
    admin.says[Edge.END, 1] = SILENCE
    questions.ask_end("op", 0, token=1)
    questions.ask_end("op", 0, token=2)
    questions.ask_end("op", 1, token=3)
    assert len(admin.asked) == 2
    assert list(questions.answers()) == []
    for _, answer in questions._open.values():
        answer.said = 7  # type: ignore[attr-defined]
    assert list(questions.answers()) == [EndAnswer("op", 0, 1, 7)]
    questions.ask_end("op", 0, token=4)
    assert len(admin.asked) == 3


def test_a_range_needs_both_ends(admin: _Admin, questions: Questions) -> None:
    """A partition of which one is not told must not look like an answer."""
    admin.says |= {(Edge.START, 0): 2, (Edge.END, 0): 9, (Edge.START, 1): 0}
    found = questions.ask_ranges([("op", 0), ("op", 1)]).answers()
    assert found["op", 0] == (2, 9)
    assert isinstance(found["op", 1], InputLostError)


def test_of_stable_ends_those_that_are_told_count(admin: _Admin, questions: Questions) -> None:
    """Where nobody answered nothing is known."""
    admin.says |= {(Edge.STABLE_END, 0): 9, (Edge.STABLE_END, 1): SILENCE}
    asked = questions.ask_stable_ends([("op", 0), ("op", 1)])
    assert asked.is_over
    assert asked.answers() == {("op", 0): 9}


def test_settings_are_waited_for_once(admin: _Admin, questions: Questions) -> None:
    """Not as long for each topic: the loop stands still meanwhile."""
    topics = ["a", "b", "c"]
    began = admin.clock.now
    asked = questions.ask_settings(topics)
    assert not asked.is_over
    assert all(said.is_silent for said in asked.answers(WAIT_S).values())
    assert admin.clock.now - began == WAIT_S


@pytest.mark.parametrize(
    ("code", "is_missing", "is_silent"),
    [
        (Code.UNKNOWN_TOPIC_OR_PART, True, False),
        (Code.TOPIC_EXCEPTION, True, False),
        (Code.TOPIC_AUTHORIZATION_FAILED, False, False),
        (Code.TRANSPORT, False, True),
    ],
)
def test_why_settings_are_not_known(
    admin: _Admin, questions: Questions, code: Code, *, is_missing: bool, is_silent: bool
) -> None:
    """A topic that is missing, a right that is missing, or brokers that are asked again."""
    admin.says["a"] = KafkaFailure(code)
    said = questions.ask_settings(["a"]).answers()["a"]
    assert (said.settings, said.is_missing, said.is_silent) == (None, is_missing, is_silent)


def test_rights_are_told_or_not(admin: _Admin, questions: Questions) -> None:
    """A broker that answers of something else says nothing of rights; silence is a failure."""
    admin.says |= {
        "mine": True,
        "theirs": KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED),
        "gone": KafkaFailure(Code.UNKNOWN_TOPIC_OR_PART),
    }
    told = {"mine": True, "theirs": False, "gone": None}
    assert questions.may_write(list(told)) == told
    with pytest.raises(InputLostError, match="rights"):
        questions.may_write(["silent"])


def test_topics_are_told_or_the_input_is_lost(admin: _Admin, questions: Questions) -> None:
    """The address stands in the text: a typing error is the usual cause at the start."""
    with pytest.raises(InputLostError, match="localhost:9092"):
        questions.topics()
    admin.says["topics"] = {"orders": SeenTopic(3, 1)}
    assert questions.topics() == {"orders": SeenTopic(3, 1)}
