"""Keeps the known topics of the cluster fresh, and makes plans wait for missing topics."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.admin.topic_flaws import RETENTION_MS, number
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.own_topics import LOOK_S as OWN_LOOK_S
from halfbridge.checker.loop.own_topics import OwnTopics
from halfbridge.checker.loop.patience import Patience
from halfbridge.checker.loop.topic_guard import TopicGuard
from halfbridge.checker.loop.topic_settings import TopicSettings
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.bridge.ports import Clock
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.plan import Plan
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.questions import Questions
    from halfbridge.checker.loop.report import Reporter
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.checker.status import Status

# Intervals of look-ups: usually, and while a topic is missing.
FRESH_S = 30.0
MISSING_S = 0.5
# Missing check topics that are remembered, because clients can invent groups. Further missing
# topics are found at the usual interval.
MISSING_MAX = 1_000
# Interval of questions while a right is missing, which may be granted again.
RIGHTS_S = 2.0
# Look-ups take at most 1/10 of the loop's time, whatever topics are missing.
LOOK_SHARE = 10
# For this time after the first look-up of a process no delivery is given up: brokers learn of a
# topic one after the other, and an earlier process may have used up the budgets of waiting.
FIRST_LOOKS_S = 2.0


class TopicWatch:
    """Looks up topics for `routes`. Times are monotonic seconds.

    Args:
        questions: Asks the brokers.
        routes: Holds the known topics.
        config: The daemon's settings.
        status: Shows wrong settings of topics.
        reporter: Reports waits that were cut short.
        clock: Measures look-ups.

    Attributes:
        settings: The known settings of topics.
        guard: Judges the settings.
        lacks_dead: A plan waits for the dead-letter topic, which is missing.
        look_at: When the look-up takes place that a plan waits for; infinite if no plan does.
    """

    def __init__(
        self,
        questions: Questions,
        routes: Routes,
        config: CheckerConfig,
        status: Status,
        reporter: Reporter,
        *,
        clock: Clock,
    ) -> None:
        names = config.names
        self.settings = TopicSettings(questions, (names.half, names.op, names.dead))
        self.guard = TopicGuard(config, self.settings, status)
        self._own = OwnTopics(config, status)
        self.lacks_dead = False
        self.look_at = float("inf")
        self._questions = questions
        self._routes = routes
        self._names = names
        self._patience = Patience(config.topic_gone_ms)
        self._reporter = reporter
        self._clock = clock
        self._pauses: dict[str, float] = {}  # see `finds`
        self._at = float("-inf")
        self._not_before = float("-inf")
        self._first_at: float | None = None

    @property
    def retention_ms(self) -> tuple[int | None, int | None]:
        """Retention of half and op topic, ms; -1: for ever; None: not known."""
        known, names = self.settings.known, self._names
        half, op = (known.get(topic, {}).get(RETENTION_MS, "") for topic in (names.half, names.op))
        return number(half), number(op)

    @property
    def looked_at(self) -> float:
        """When topics were last looked up."""
        return self._at

    def look(self, now: float) -> None:
        """Look up all topics.

        Raises:
            InputLostError: no broker answered.
        """
        self._at, self.look_at = now, float("inf")
        began = self._clock.monotonic()
        topics = self._questions.partitions()
        self._routes.update(topics, int(now * MS_PER_S))
        self._own.judge(topics, now)
        for group in self._names.groups_of(topics):
            self.settings.want(self._names.check(group))
        self._ask_rights(self._routes.refused_topics, now)
        self._not_before = now + LOOK_SHARE * (self._clock.monotonic() - began)
        self._first_at = now if self._first_at is None else self._first_at

    def look_now_and_then(self, now: float) -> None:
        """Look up all topics if that is due."""
        pace_s = RIGHTS_S if self._routes.refused_topics else FRESH_S
        if now - self._at >= (OWN_LOOK_S if self._own.missing else pace_s):
            self.look(now)

    def forget(self) -> None:
        """Make the next look-up due at once."""
        self._at = self._not_before = float("-inf")

    def exists(self, topic: str, now: float) -> bool:
        """Tell whether `topic` exists; looks it up again if it was missing."""
        if not self._routes.exists(topic) and now - self._at > MISSING_S:
            self._look_again(now)
        return self._routes.exists(topic)

    def finds(self, topic: str, now: float) -> bool:
        """Tell whether a topic exists for which no plan waits.

        A missing topic is looked up at once, then after 1 s, 2 s and so on up to FRESH_S. A look-up
        stops the loop, and a missing topic usually stays missing.
        """
        is_known = topic in self._pauses or len(self._pauses) < MISSING_MAX
        pause_s = self._pauses.get(topic, MISSING_S) if is_known else FRESH_S
        is_due = not self._routes.exists(topic) and now - self._at > pause_s
        if is_due and self._look_again(now) and is_known:
            self._pauses[topic] = min(2 * pause_s, FRESH_S)
        is_there = self._routes.exists(topic)
        if is_there:
            self._pauses.pop(topic, None)
        return is_there

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic that exists."""
        return self._routes.partitions(topic)

    def must_wait(self, pair: Pair, plan: Plan, now: float) -> bool:
        """Tell whether `plan` waits for a topic: a real one not given up yet, or the dead letters'.

        Args:
            pair: Holds the plan.
            plan: The plan to write.
            now: Monotonic seconds.
        """
        if not self.exists(self._names.dead, now):
            if plan.dead or plan.junk or any(map(self._routes.refusal, plan.deliveries)):
                self.lacks_dead = True
                return True
        else:
            self.lacks_dead = False
        if self._routes.is_clear(plan.deliveries):
            self._wait_no_longer(pair, now)
            return False
        # A look-up from before the plan's ops were read does not count: the topic may be newer.
        is_stale = self._at < pair.held_since or now - self._at > MISSING_S
        lacks = self._routes.lacks(plan.deliveries, int(now * MS_PER_S))
        if lacks and is_stale and not self._look_again(now):
            self.look_at = min(self.look_at, self._not_before)
            return True
        return self.awaits(pair, plan, now)

    def awaits(self, pair: Pair, plan: Plan, now: float) -> bool:
        """Tell whether `plan` waits for a missing real topic, by the last look-up."""
        deliveries, monotonic_ms = plan.deliveries, int(now * MS_PER_S)
        if self._routes.is_clear(deliveries):
            return False
        self._ask_rights(self._routes.untried(deliveries), now)
        lacks = self._routes.lacks(deliveries, monotonic_ms)
        if lacks:
            is_early = self._first_at is None or now - self._first_at < FIRST_LOOKS_S
            if is_early or self._routes.was_lost(deliveries):
                return True
            now_ms = pair.now_ms(now)
            awaited = self._patience.awaited(pair, lacks, now_ms, monotonic_ms)
            if awaited is not None:
                pair.awaited = awaited
                return True
            cut_short = self._patience.cut_short(pair, lacks, now_ms, monotonic_ms)
            if cut_short:
                self._reporter.waits_cut_short(pair, Counter(cut_short), now)
        self._wait_no_longer(pair, now)
        return False

    def _look_again(self, now: float) -> bool:
        """Look up topics unless look-ups take too much time (LOOK_SHARE); tell whether done."""
        if now < self._not_before:
            return False
        self.look_at = float("inf")
        self.look(now)
        return True

    def _wait_no_longer(self, pair: Pair, now: float) -> None:
        if pair.awaited is not None:
            now_ms = pair.now_ms(now)
            self._patience.spend(pair, pair.awaited, now_ms, int(now * MS_PER_S))
            pair.awaited = None

    def _ask_rights(self, topics: Iterable[str], now: float) -> None:
        """Ask for missing rights before they fail a kafka_txn with the plans of all its pairs.

        If no broker can tell, a kafka_txn has to try.
        """
        asked = sorted(topics)
        if not asked:
            return
        answers: dict[str, bool | None] = {}
        with suppress(InputLostError):
            answers = self._questions.may_write(asked)
        for topic in asked:
            allowed = answers.get(topic)
            if allowed:
                self._routes.allow_topic(topic)
            elif allowed is False:
                why = f"no right to write to topic {topic}"
                self._routes.refuse_topic(topic, why, int(now * MS_PER_S))
        self._routes.tried(asked)
