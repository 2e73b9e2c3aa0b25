"""What a worker shows in its health, and as gauges, about what it waits for: looked at each second.

Also logs which pairs wait for a real topic, when they begin to.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from halfbridge.bridge.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.assignment import Assignment
    from halfbridge.checker.loop.barriers import Barriers
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.report import Reporter
    from halfbridge.checker.loop.topic_watch import TopicWatch
    from halfbridge.checker.status import Status

# Of many topics that are missing, a text names so many; the gauge has all.
SHOWN_MAX = 3


class Ills:
    """Tells what is wrong of a worker at present. Times are monotonic seconds."""

    def __init__(
        self,
        config: CheckerConfig,
        status: Status,
        *,
        topics: TopicWatch,
        intake: Input,
        reporter: Reporter,
    ) -> None:
        self._servers = config.bootstrap_servers
        self._dead = config.names.dead
        self._status = status
        self._topics = topics
        self._input = intake
        self._reporter = reporter
        self._waited: set[tuple[int, str]] = set()  # (pair, topic), of which a line was logged

    def tell(self, now: float, assignment: Assignment, barriers: Barriers) -> None:
        """Look at everything, and tell it."""
        missing = f"{self._dead} is missing: `halfbridge topics create` makes it"
        self._status.set_ill("dead letters", missing if self._topics.lacks_dead else "")
        self._status.set_ill("group", self._input.group_trouble.text(now))
        self._status.set_ill("memory", assignment.memory_trouble())
        self._status.set_ill("barriers", barriers.trouble(now))
        self._tell_waits(assignment.pairs.values())

    def _tell_waits(self, pairs: Iterable[Pair]) -> None:
        waited = {
            (pair.partition, topic): pair.awaited.limit_ms
            for pair in pairs
            if pair.awaited is not None
            for topic in pair.awaited.topics
        }
        for (partition, topic), limit_ms in waited.items():
            if (partition, topic) not in self._waited:
                self._reporter.waits_for_topic(partition, topic, limit_ms)
        self._waited = set(waited)
        by_topic = Counter(topic for _, topic in waited)
        self._status.metrics.real_topics_missing(by_topic)
        self._status.set_ill("real topics", self._missing(by_topic))

    def _missing(self, by_topic: Counter[str]) -> str:
        if not by_topic:
            return ""
        texts = [
            f"{count} partitions wait for real topic {one_line(topic)}, which is missing or has too"
            f" few partitions; make it: kafka-topics.sh --bootstrap-server {self._servers}"
            f" --create --topic {shlex.quote(one_line(topic))}"
            for topic, count in by_topic.most_common(SHOWN_MAX)
        ]
        if len(by_topic) > SHOWN_MAX:
            texts.append(f"and {len(by_topic) - SHOWN_MAX} more topics")
        return "; ".join(texts)
