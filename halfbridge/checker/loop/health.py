"""Updates a worker's health and gauges each second: topics, waiting pairs, other problems."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from halfbridge.checker.admin.real_topics import create_command
from halfbridge.checker.core.deferred import MISSING, Lack
from halfbridge.logs import one_line
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.assignment import Assignment
    from halfbridge.checker.loop.barriers import Barriers
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.report import Reporter
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.checker.loop.topic_watch import TopicWatch
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import Place

_log = logging.getLogger("halfbridge.checker")

# Most missing topics that one text names; the gauge has all.
SHOWN_MAX = 3
# Most series of the gauge of partitions that are away.
GAUGES_MAX = 20


class HealthReport:
    """Collects the present problems of a worker. Times are monotonic seconds."""

    def __init__(
        self,
        config: CheckerConfig,
        status: Status,
        *,
        topics: TopicWatch,
        routes: Routes,
        intake: Input,
        reporter: Reporter,
    ) -> None:
        self._installation = config.bootstrap_servers, config.topic_prefix
        self._dead = config.names.dead
        self._status = status
        self._topics = topics
        self._routes = routes
        self._input = intake
        self._reporter = reporter
        self._own_away: Mapping[Place, str] = {}
        self._waited: set[tuple[int, str, int]] = set()  # (pair, topic, partition) with a log line

    def refresh(self, now: float, assignment: Assignment, barriers: Barriers) -> None:
        """Update health, gauges and log lines."""
        missing = f"{self._dead} is missing: `halfbridge topics create` makes it"
        self._status.set_problem("dead letters", missing if self._topics.lacks_dead else "")
        self._status.set_problem("group", self._input.group_trouble.text(now))
        self._status.set_problem("memory", assignment.memory_trouble())
        self._status.set_problem("barriers", barriers.trouble(now))
        self._report_own()
        self._report_waits(assignment.pairs.values(), int(now * 1000))

    def _report_own(self) -> None:
        """Tell which partitions of half, op and dead-letter topic concern this worker, and wait."""
        own = {
            place: why
            for place, why in self._topics.own_away().items()
            if place in self._input.assigned or place[0] == self._dead
        }
        texts = []
        for (topic, number), why in sorted(own.items()):
            lack = Lack(topic, number, why)
            texts.append(f"{lack}: its transactions wait, others go on")
            if (topic, number) not in self._own_away:
                _log.warning("%s: its transactions wait, others go on", lack)
        self._own_away = own
        more = [f"and {len(own) - SHOWN_MAX} more"] if len(own) > SHOWN_MAX else []
        self._status.set_problem("own partitions", "; ".join([*texts[:SHOWN_MAX], *more]))

    def _report_waits(self, pairs: Iterable[Pair], now_ms: int) -> None:
        waited = {
            (pair.partition, lack.topic, lack.partition): lack
            for pair in pairs
            for entry, _ in pair.ledger.deferred
            for lack in self._routes.lacks(entry.messages.values(), now_ms)
        }
        for place, lack in waited.items():
            if place not in self._waited:
                self._reporter.waits_for_topic(place[0], lack)
        self._waited = set(waited)
        away = {
            (lack.topic, str(lack.partition), lack.why): 1
            for lack in waited.values()
            if lack.partition != PARTITION_BY_KEY
        }
        away |= {(place[0], str(place[1]), why): 1 for place, why in self._own_away.items()}
        self._status.metrics.partitions_unavailable(dict(islice(away.items(), GAUGES_MAX)))
        by_topic = Counter(lack.topic for lack in waited.values())
        self._status.metrics.real_topics_missing(by_topic)
        self._status.set_problem("real topics", self._missing([*waited.values()]))

    def _missing(self, lacks: list[Lack]) -> str:
        if not lacks:
            return ""
        found = Counter((each.topic, each.partition, each.why) for each in lacks)
        texts = [
            f"deliveries of {'1 pair' if count == 1 else f'{count} pairs'} wait, because"
            f" {self._text(Lack(one_line(topic), number, why))}"
            for (topic, number, why), count in found.most_common(SHOWN_MAX)
        ]
        if len(found) > SHOWN_MAX:
            texts.append(f"and {len(found) - SHOWN_MAX} more")
        return "; ".join(texts)

    def _text(self, lack: Lack) -> str:
        if lack.why != MISSING:
            return f"{lack}"
        return f"{lack}; create it: {create_command(lack.topic, *self._installation)}"
