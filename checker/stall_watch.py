"""Notices a consumer that fetches nothing more, though brokers answer and have more.

librdkafka's consumers are known to do so now and then after leaders have moved, without an error
and for good (its issues 4340, 4492). Nothing else would notice: no record is not a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checker.inquiry.kafka_io import Questions, StableEnds
    from checker.intake.kafka_io import Input
    from checker.metrics import Metrics

# How often brokers are asked where logs end: one request to each of them.
LOOK_S = 20.0
# As long as the client itself waits for one answer (socket.timeout.ms): it may mend that alone. A
# mistake costs a rebuild, no more.
STALLED_S = 60.0


class Behind(NamedTuple):
    """How far a partition has been read, and since when there was more of it."""

    reached: int
    since: float


class StallWatch:
    """Compares what has been read with where logs end. Times are monotonic seconds."""

    def __init__(self, questions: Questions, intake: Input, metrics: Metrics) -> None:
        self._questions = questions
        self._input = intake
        self._metrics = metrics
        self._look_at = 0.0
        self._question: StableEnds | None = None
        self._behind: dict[tuple[str, int], Behind] = {}

    def look(self, now: float) -> bool:
        """Return whether a log was found to go on behind what has been read; never waits.

        Raises:
            InputLostError: there was more for STALLED_S, and none of it came. A new consumer
                joins in the old one's place.
        """
        if self._question is None:
            if now >= self._look_at:
                self._look_at = now + LOOK_S
                self._question = self._questions.ask_stable_ends(self._input.reached())
            return False
        if not self._question.is_over:
            return False
        ends, self._question = self._question.answers(), None
        self._behind = compare(self._behind, self._input.reached(), ends, now)
        stalled = sorted(
            place for place, each in self._behind.items() if now - each.since >= STALLED_S
        )
        if stalled:
            (topic, partition), self._behind = stalled[0], {}
            self._metrics.consumer_stalled()
            self._input.renew(
                f"nothing more came of {len(stalled)} partitions for {STALLED_S:g} s although"
                f" their logs go on, {topic}[{partition}] among them"
            )
        return bool(self._behind)


def compare(
    behind: Mapping[tuple[str, int], Behind],
    reached: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
    now: float,
) -> dict[tuple[str, int], Behind]:
    """Return the partitions that are behind, each since it was first found where it is.

    Args:
        behind: What this returned before.
        reached: (topic, partition) -> offset behind the last one that was read.
        ends: The same -> last stable offset; where nobody answered, nothing is known.
        now: The time.
    """
    found = {}
    for place, at in reached.items():
        was = behind.get(place)
        if place not in ends:
            if was is not None and was.reached == at:
                found[place] = was
        elif at < ends[place]:
            found[place] = was if was is not None and was.reached == at else Behind(at, now)
    return found
