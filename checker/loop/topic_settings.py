"""The settings of topics, as brokers told them last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.topic_flaws import LOOKED_AT, MAX_BYTES, number
from halfbridge.checker.loop.clients import QUESTION_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.loop.questions import Questions, SettingsAnswer, SettingsQuestion

# All topics are asked about again at this pace: messages that a topic takes since its limit was
# raised are refused by the old limit for so long.
LOOK_S = 10.0
# But with many topics no sooner than this time for each: to read an answer holds up the loop.
TOPIC_S = 0.05
# A topic that is asked for the first time is asked about at this pace: one question for all that
# came in between.
NEW_S = 1.0
# What no broker answered is asked again at this pace.
AGAIN_S = 10.0
# An answer lists some 40 settings a topic; to read it holds up the loop for about 0.1 ms a topic.
ASKED_TOGETHER_MAX = 50
# Real topics that are kept in mind. Their names come from half messages.
TOPICS_MAX = 1_000
# Twice what a client takes to say that nobody answers: this one says nothing any more.
FORGOTTEN_S = 2 * QUESTION_S


class TopicSettings:
    """Asks brokers for the settings of topics now and then, and never waits for them.

    Times are monotonic seconds.

    Args:
        questions: Asks the brokers.
        always: The internal topics that are asked about whether somebody wants to know or not.

    Attributes:
        known: Topic -> what was said of those of its settings that matter.
        refused: Topic -> why its settings may not be read.
    """

    def __init__(self, questions: Questions, always: Iterable[str]) -> None:
        self._questions = questions
        self._always = frozenset(always)
        self._wanted = dict.fromkeys(always)  # in the order in which they are asked about
        self.known: dict[str, Mapping[str, str]] = {}
        self.refused: dict[str, str] = {}
        self._due: list[str] = list(self._wanted)
        self._question: SettingsQuestion | None = None
        self._asked: list[str] = []
        self._asked_at = self._round_at = float("-inf")
        self._pause_s = NEW_S

    def max_bytes(self, topic: str) -> int | None:
        """Return the `max.message.bytes` of a topic, bytes.

        None: not known yet, missing, or not to be read with the rights of this daemon. A topic
        that was never asked for is known soon after the first call.
        """
        self.want(topic)
        return number(self.known.get(topic, {}).get(MAX_BYTES, ""))

    def want(self, topic: str) -> None:
        """Ask about `topic` too, as long as there are not too many."""
        if topic in self._wanted or not topic:
            return
        if len(self._wanted) - len(self._always) < TOPICS_MAX:
            self._wanted[topic] = None
            self._due.append(topic)

    def read(self, wait_s: float) -> None:
        """Ask for the settings of the internal topics, and wait for answers, but no longer."""
        self._take(self._questions.ask_settings(sorted(self._always)).answers(wait_s))

    def look(self, now: float, pace_s: float = LOOK_S) -> bool:
        """Ask what is due, or take the answers; return whether any came. Never waits.

        Args:
            now: The time.
            pace_s: How often all topics are asked about.
        """
        if self._question is not None:
            return self._take_answers(now)
        # A round is finished before the next begins, or topics at its end were never asked about.
        is_over = not self._due or self._round_at == float("-inf")
        if is_over and now - self._round_at >= max(pace_s, TOPIC_S * len(self._wanted)):
            self._round_at = now
            self._due = list(self._wanted)
        if self._due and now - self._asked_at >= self._pause_s:
            self._asked_at, self._pause_s = now, NEW_S
            self._asked = self._due[:ASKED_TOGETHER_MAX]
            del self._due[:ASKED_TOGETHER_MAX]
            self._question = self._questions.ask_settings(self._asked)
        return False

    def _take_answers(self, now: float) -> bool:
        question = self._question
        if question is None or not question.is_over:
            if now - self._asked_at > FORGOTTEN_S:
                self._question = None
                self._ask_again(self._asked)
            return False
        self._question = None
        self._take(question.answers())
        return True

    def _take(self, answers: Mapping[str, SettingsAnswer]) -> None:
        self._ask_again([topic for topic, said in answers.items() if said.is_silent])
        for topic, said in answers.items():
            if said.is_silent:
                continue
            self.refused.pop(topic, None)
            if said.settings is not None:
                self.known[topic] = {key: said.settings.get(key, "") for key in LOOKED_AT}
                continue
            self.known.pop(topic, None)
            if not said.is_missing:
                self.refused[topic] = said.why
            elif topic not in self._always:
                self._wanted.pop(topic, None)  # makes room; whoever wants to know asks again

    def _ask_again(self, topics: list[str]) -> None:
        if topics:
            self._due += [topic for topic in topics if topic not in self._due]
            self._pause_s = AGAIN_S
