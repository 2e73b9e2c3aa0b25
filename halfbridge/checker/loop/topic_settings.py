"""The known settings of topics, as brokers last reported them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.topic_flaws import LOOKED_AT, MAX_BYTES, MIN_IN_SYNC, number
from halfbridge.checker.loop.clients import QUESTION_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.loop.questions import Questions, SettingsAnswer, SettingsQuestion

# Interval of questions about all topics. After a topic's limit was raised, the old limit counts for
# this time.
SETTINGS_POLL_S = 10.0
# With many topics the interval is at least this time for each topic: reading an answer delays the
# loop.
TOPIC_S = 0.05
# Interval of questions about new topics: one question for all topics that were added since.
NEW_S = 1.0
# Interval after which a question without an answer is repeated.
AGAIN_S = 10.0
# An answer lists some 40 settings per topic; reading it delays the loop by about 0.1 ms per topic.
ASKED_TOGETHER_MAX = 50
# Real topics that are remembered. Their names come from half messages.
TOPICS_MAX = 1_000
# Twice the time in which a client reports that nobody answers. After it the question is dropped.
FORGOTTEN_S = 2 * QUESTION_S


class TopicSettings:
    """Asks brokers for the settings of topics now and then, and never waits for them.

    Times are monotonic seconds.

    Args:
        questions: Asks the brokers.
        always: The internal topics, which are always asked about.

    Attributes:
        known: Topic -> its settings, as far as they matter here.
        refused: Topic -> why its settings cannot be read.
    """

    def __init__(self, questions: Questions, always: Iterable[str]) -> None:
        self._questions = questions
        self._always = frozenset(always)
        self._wanted = dict.fromkeys(always)  # in the order of the questions
        self.known: dict[str, Mapping[str, str]] = {}
        self.refused: dict[str, str] = {}
        self._due: list[str] = list(self._wanted)
        self._question: SettingsQuestion | None = None
        self._asked: list[str] = []
        self._asked_at = self._round_at = float("-inf")
        self._pause_s = NEW_S

    def max_bytes(self, topic: str) -> int | None:
        """Return the `max.message.bytes` of a topic, bytes.

        None: not known yet, missing, or this daemon has no right to read it. The first call for a
        topic makes it known soon.
        """
        self.want(topic)
        return number(self.known.get(topic, {}).get(MAX_BYTES, ""))

    def min_in_sync(self, topic: str) -> int | None:
        """Return the `min.insync.replicas` of a topic; None: not known."""
        return number(self.known.get(topic, {}).get(MIN_IN_SYNC, ""))

    def want(self, topic: str) -> None:
        """Ask about `topic` too, if there are not too many topics."""
        if topic in self._wanted or not topic:
            return
        if len(self._wanted) - len(self._always) < TOPICS_MAX:
            self._wanted[topic] = None
            self._due.append(topic)

    def read(self, wait_s: float) -> None:
        """Ask for the settings of the internal topics, and wait at most `wait_s` for answers."""
        self._take(self._questions.ask_settings(sorted(self._always)).answers(wait_s))

    def look(self, now: float, pace_s: float = SETTINGS_POLL_S) -> bool:
        """Send the questions that are due, or take answers; tell whether any came. Never waits.

        Args:
            now: The time.
            pace_s: Interval of questions about all topics.
        """
        if self._question is not None:
            return self._take_answers(now)
        # A round ends before the next begins; otherwise the last topics would never be asked about.
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
                self._wanted.pop(topic, None)  # makes room; the next call of `want` adds it again

    def _ask_again(self, topics: list[str]) -> None:
        if topics:
            self._due += [topic for topic in topics if topic not in self._due]
            self._pause_s = AGAIN_S
