"""Notices a stalled consumer: it fetches nothing, although brokers answer and have more records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.loop.clients import QUESTION_S
from halfbridge.kafka.stalls import LOOK_S, STALLED_S, compare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.loop.assignment import Assignment
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.questions import Questions
    from halfbridge.checker.metrics import Metrics
    from halfbridge.kafka.ends import Ends
    from halfbridge.kafka.ports import Place
    from halfbridge.kafka.stalls import Behind

# The interval while there is more to read.
LOOK_BEHIND_S = 2.0
# Twice the time in which a client reports that nobody answers. After it the question is dropped.
FORGOTTEN_S = 2 * QUESTION_S


class StallWatch:
    """Compares the positions with the ends of logs. Times are monotonic seconds."""

    def __init__(
        self, questions: Questions, intake: Input, assignment: Assignment, metrics: Metrics
    ) -> None:
        self._questions = questions
        self._input = intake
        self._assignment = assignment
        self._metrics = metrics
        self._asked_at = -LOOK_S
        self._question: Ends | None = None
        self._behind: dict[Place, Behind] = {}

    def look(self, now: float) -> None:
        """Find out whether logs go on beyond the positions; never waits.

        Raises:
            InputLostError: a log went on for STALLED_S, and none of its records came. A new
                consumer replaces the old one. A pair that stalls again is left out for a while.
        """
        if self._question is None:
            pause_s = LOOK_BEHIND_S if self._behind else LOOK_S
            if now - self._asked_at >= pause_s:
                self._asked_at = now
                self._question = self._questions.ask_stable_ends(self._input.reached())
        elif self._question.is_over:
            ends, self._question = self._question.answers(), None
            self._take(ends, now)
        elif now - self._asked_at > FORGOTTEN_S:
            self._question, self._behind = None, {}

    def _take(self, ends: Mapping[Place, int], now: float) -> None:
        self._behind = compare(self._behind, self._input.reached(), ends, now)
        read_since = self._input.reading.since(now)
        stand = {place: max(each.since, read_since) for place, each in self._behind.items()}
        if stalled := {place: since for place, since in stand.items() if now - since >= STALLED_S}:
            self._give_up(stalled)

    def _give_up(self, stalled: Mapping[Place, float]) -> None:
        """Replace the consumer; `stalled` says since when each place has stood still."""
        self._behind = {}
        self._metrics.consumer_stalled()
        pairs = self._assignment.pairs
        # If both topics of a pair stalled, the one that was never read to its end comes last, so
        # that its entry is kept.
        places = sorted(stalled, key=lambda place: place[0] not in pairs[place[1]].read_to_end)
        unread = {number: topic for topic, number in places}
        why = f"nothing more came for {STALLED_S:g} s, although the log goes on"
        self._input.renew(str(self._assignment.lost(unread, why, since=max(stalled.values()))))
