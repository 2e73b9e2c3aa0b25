"""What a worker knows of topics: which exist, how they are set, and what must wait for them.

TopicWatch refreshes `routes` with all topics each FRESH_S, and sooner while one is missing. Before
a plan is made, it asks about rights to topics that were never written to, and waits for a broker.
While the plan is made, a DeliveryGate answers from `routes`, and asks nobody. TopicSettings asks
for settings and never waits, TopicGuard judges them, and OwnTopics says which internal topics are
missing.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.checker.admin.real_topics import (
    CHECKED_SETTINGS,
    MAX_BYTES,
    MIN_IN_SYNC,
    RETENTION_MS,
    SHOWN_MAX,
    Flaws,
    find_flaws,
    number,
    problems_text,
)
from halfbridge.checker.loop.clients import QUESTION_S
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.routes import TOOK_NOTHING
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.core.plan import Plan
    from halfbridge.checker.loop.clients import Questions, SettingsAnswer, SettingsQuestion
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.routes import Routes
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import Clock, TopicPartition

# Intervals of look-ups: usually, and while a topic is missing. A partition that is away is named
# within the first one: longer reports it later, shorter costs brokers an answer about all topics. A
# missing topic holds up its deliveries, so it is looked up ten times as often.
FRESH_S = 5.0
MISSING_S = 0.5
# The longest pause between two further look-ups for a check topic that stays missing. Longer delays
# the first request to a group whose topic comes late; shorter asks for names that clients invented.
ABSENT_S = 30.0
# Missing check topics, and missing real topics, that are remembered, because clients can invent
# them. Further ones are found at the usual interval.
MISSING_MAX = 1_000
# Interval of questions while a right is missing, which may be granted again. Shorter than FRESH_S,
# because deliveries wait; each question costs brokers an answer about all topics.
RIGHTS_S = 2.0
# Look-ups take at most 1/10 of the loop's time, whatever topics are missing.
REFRESH_SHARE = 10
# For this time after the first look-up of a process no delivery is given up: brokers learn of a
# topic one after the other (within 1.3 s on a busy broker, `kafka.topics`), and an earlier process
# may have used up the budgets of waiting.
FIRST_REFRESHES_S = 2.0
# Why a real topic cannot be written that this daemon has no right to.
NO_RIGHT = "may not be written by this daemon: grant it WRITE"


class TopicWatch:
    """Looks up topics for `routes`. Times are monotonic seconds.

    Attributes:
        lacks_dead: A plan waits for the dead-letter topic, which is missing.
        refreshes: Number of refreshes that were answered.
        refresh_at: When the refresh is due that deferred deliveries wait for; infinite if none is.
    """

    def __init__(
        self,
        questions: Questions,
        routes: Routes,
        config: CheckerConfig,
        status: Status,
        *,
        clock: Clock,
    ) -> None:
        names = config.names
        self.settings = TopicSettings(questions, (names.half, names.op, names.dead))
        self.guard = TopicGuard(config, self.settings, status)
        self._own = OwnTopics(config, status)
        self.lacks_dead = False
        self.refreshes = 0
        self.refresh_at = float("inf")
        self._questions = questions
        self._routes = routes
        self._names = names
        self._clock = clock
        self._pauses: dict[str, float] = {}  # see `finds`
        self._expected: set[str] = set()  # missing real topics; see `expect`
        self._at = float("-inf")
        self._not_before = float("-inf")
        self._first_at: float | None = None

    @property
    def retention_ms(self) -> tuple[int | None, int | None]:
        """Retention of half and op topic, ms; -1: for ever; None: not known."""
        known, names = self.settings.known, self._names
        half, op = (known.get(topic, {}).get(RETENTION_MS, "") for topic in (names.half, names.op))
        return number(half), number(op)

    def refresh(self, now: float) -> None:
        """Look up all topics. InputLostError: no broker answered; the worker tries again."""
        self._at, self.refresh_at = now, float("inf")
        began = self._clock.monotonic()
        topics = self._questions.topics()
        self.refreshes += 1
        self._expected -= topics.keys()
        refused = [topic for topic in self._routes.refused_topics if topic in topics]
        self._routes.update(topics, int(now * MS_PER_S), self.settings.min_in_sync)
        self._own.judge(topics, now)
        for group in self._names.groups_of(topics):
            self.settings.want(self._names.check(group))
        self._ask_rights(refused, now)
        self._not_before = now + REFRESH_SHARE * (self._clock.monotonic() - began)
        self._first_at = now if self._first_at is None else self._first_at

    def refresh_if_due(self, now: float) -> None:
        """Look up all topics if that is due."""
        pace_s = RIGHTS_S if self._routes.refused_topics else FRESH_S
        pace_s = OWN_POLL_S if self._own.missing else pace_s
        if now >= min(self._at + pace_s, self.refresh_at):
            self.refresh(now)

    def away(self, number: int) -> str:
        """Return why half or op partition `number` takes no records; empty if it does."""
        for topic in (self._names.half, self._names.op):
            why = self._routes.absence((topic, number))
            if why:
                return f"{topic}[{number}] {why}"
        return ""

    def own_away(self) -> dict[TopicPartition, str]:
        """Return why partitions of half, op and dead-letter topic take no records."""
        names = self._names
        return self._routes.away_of((names.half, names.op, names.dead))

    def is_half_away(self, number: int) -> bool:
        """Tell whether half partition `number` takes no records; it is looked up again soon."""
        is_away = bool(self._routes.absence((self._names.half, number)))
        if is_away:
            self._schedule_refresh(self._at + MISSING_S)
        return is_away

    def half_is_silent(self, number: int, now: float, *, is_clear: bool) -> None:
        """Record that a half partition took no record in time; `is_clear`: it is to blame."""
        place = self._names.half, number
        if is_clear or self._routes.was_blamed(place):
            self._routes.blame(place, TOOK_NOTHING, int(now * MS_PER_S))
        self.forget()

    def is_trying(self, now: float) -> bool:
        """Tell whether a partition may be written to that acknowledged nothing a moment ago."""
        return self._routes.is_trying(int(now * MS_PER_S))

    def forget(self) -> None:
        """Make the next look-up due at once."""
        self._at = self._not_before = float("-inf")

    def exists(self, topic: str, now: float) -> bool:
        """Tell whether `topic` exists; looks it up again if it was missing."""
        if not self._routes.exists(topic) and now - self._at > MISSING_S:
            self._refresh_again(now)
        return self._routes.exists(topic)

    def finds(self, topic: str, now: float) -> bool:
        """Tell whether a topic exists for which no plan waits; looks it up ever less often."""
        is_known = topic in self._pauses or len(self._pauses) < MISSING_MAX
        pause_s = self._pauses.get(topic, MISSING_S) if is_known else ABSENT_S
        is_due = not self._routes.exists(topic) and now - self._at > pause_s
        if is_due and self._refresh_again(now) and is_known:
            self._pauses[topic] = min(2 * pause_s, ABSENT_S)
        is_there = self._routes.exists(topic)
        if is_there:
            self._pauses.pop(topic, None)
        return is_there

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic that exists."""
        return self._routes.partitions(topic)

    def expect(self, topics: set[str], now: float) -> None:
        """Make a look-up due at once for topics of half messages that were never looked for.

        So a new topic is known before the first COMMIT for it is applied.
        """
        for topic in topics:
            is_new = topic not in self._expected and not self._routes.exists(topic)
            if is_new and len(self._expected) < MISSING_MAX:
                self._expected.add(topic)
                self._schedule_refresh(now)

    def learn_rights(self, topics: AbstractSet[str], now: float) -> None:
        """Ask for the rights to those of `topics` that exist and were never asked about."""
        self._ask_rights(self._routes.untried(topics), now)

    def delivery_gate(self, pair: Pair, now: float) -> DeliveryGate:
        """Return what tells which deliveries of a pair must wait; `apply` comes after the plan.

        The topic may be newer than a look-up from before the COMMIT was read, so each delivery
        waits for the next look-up, which is due at once.
        """
        return DeliveryGate(
            self._routes,
            now,
            pair.now_ms(now),
            again_at=self._at + MISSING_S,
            is_early=self._first_at is None or now - self._first_at < FIRST_REFRESHES_S,
            waits=bool(pair.ledger.deferred),
        )

    def apply(self, gate: DeliveryGate) -> None:
        """Do what a gate has noted while a plan was made."""
        self._routes.doubt(gate.too_few, gate.monotonic_ms)
        self._schedule_refresh(gate.refresh_at)

    def _schedule_refresh(self, at: float) -> None:
        self.refresh_at = min(self.refresh_at, max(at, self._not_before))

    def find_dead_topic(self, now: float) -> None:
        """Look up the dead-letter topic again if it was missing: before plans are made."""
        self.exists(self._names.dead, now)

    def plan_must_wait(self, pair: Pair, plan: Plan, now: float) -> bool:
        """Tell whether `plan` must wait as a whole, because the dead-letter topic is missing.

        A plan that has waited so may have deliveries that must wait now for their real topics.
        """
        if not self._routes.is_open(self._names.dead):
            if plan.dead or plan.junk or any(map(self._routes.refusal, plan.deliveries)):
                self.lacks_dead = not self._routes.exists(self._names.dead)
                self._schedule_refresh(self._at + MISSING_S)
                return True
        else:
            self.lacks_dead = False
        deliveries = plan.deliveries
        if not all(self._routes.takes(one.messages) for one in deliveries):
            gate, again = self.delivery_gate(pair, now), True
            must_wait = any(gate(one.messages, one.op_append_ms, again) for one in deliveries)
            self.apply(gate)
            return must_wait
        return False

    def _refresh_again(self, now: float) -> bool:
        """Look up topics unless look-ups take too much time (REFRESH_SHARE); tell whether done."""
        if now < self._not_before:
            return False
        self.refresh_at = float("inf")
        self.refresh(now)
        return True

    def _ask_rights(self, topics: Iterable[str], now: float) -> None:
        """Ask for missing rights before they fail a kafka_txn with the plans of all its pairs."""
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
                self._routes.refuse_topic(topic, NO_RIGHT, int(now * MS_PER_S))
        self._routes.tried(asked)


class DeliveryGate:
    """Tells by what is known which deliveries of a pair must wait: the `Awaits` of one plan.

    It asks nobody and changes nothing but its own notes, which `TopicWatch.apply` reads.

    Attributes:
        refresh_at: When topics must be looked up for the deliveries that wait; infinite: never.
        too_few: Topics that do not have a partition whose number a message names.
        monotonic_ms: When the plan is made.
    """

    def __init__(
        self,
        routes: Routes,
        now: float,
        partition_ms: int,
        *,
        again_at: float,
        is_early: bool,
        waits: bool,
    ) -> None:
        self._routes = routes
        self._now = now
        self.monotonic_ms = int(now * MS_PER_S)
        self._partition_ms = partition_ms
        self.too_few: set[str] = set()
        self._again_at = again_at
        self._is_early = is_early
        self.refresh_at = again_at if waits else float("inf")

    def __call__(self, messages: Sequence[HalfRead], op_append_ms: int, again: bool) -> bool:  # noqa: FBT001  (as `Awaits` says)
        """Tell whether the delivery must wait."""
        routes, monotonic_ms = self._routes, self.monotonic_ms
        if routes.takes(messages):
            return False
        self.too_few |= routes.too_few(messages)
        if self._is_early or not again:
            must_wait = any(True for _ in routes.lacks(messages, monotonic_ms))
        else:
            op_age_ms = self._partition_ms - op_append_ms
            must_wait = routes.must_wait(messages, op_age_ms, monotonic_ms)
        if must_wait:
            self.refresh_at = min(self.refresh_at, self._again_at if again else self._now)
        return must_wait


# Interval of questions about all topics. After a topic's limit was raised, the old limit counts for
# this time. Shorter costs brokers an answer of some 40 settings per topic more often.
SETTINGS_POLL_S = 10.0
# With many topics the interval is at least this time for each topic: reading an answer delays the
# loop by some 0.1 ms per topic, 0.2 % of this time.
TOPIC_S = 0.05
# Interval of questions about new topics: one question for all topics that were added since. Until
# its answer the topic's limit is not known; shorter asks about topics one by one.
NEW_S = 1.0
# Interval after which a question without an answer is repeated: as SETTINGS_POLL_S, so that brokers
# in trouble are asked no more often than others.
AGAIN_S = 10.0
# An answer lists some 40 settings per topic; reading it delays the loop by about 0.1 ms per topic.
ASKED_TOGETHER_MAX = 50
# Real topics that are remembered. Their names come from half messages. At TOPIC_S each, a round of
# questions about all of them takes 50 s; more would be asked about too seldom.
TOPICS_MAX = 1_000
# Twice the time in which a client reports that no broker answers. After it the question is dropped.
FORGOTTEN_S = 2 * QUESTION_S


class TopicSettings:
    """Asks brokers for the settings of topics now and then, and never waits for them.

    Internal topics are `always` asked about. Times are monotonic seconds.

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
        """Return a topic's `max.message.bytes`; None: not known yet, missing, or no right."""
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

    def poll(self, now: float, pace_s: float = SETTINGS_POLL_S) -> bool:
        """Send the questions that are due, or take answers; tell whether any came. Never waits."""
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
                self.known[topic] = {key: said.settings.get(key, "") for key in CHECKED_SETTINGS}
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


_log = logging.getLogger("halfbridge.checker")
# How long a start waits for the settings. Whether brokers answer at all is asked separately. An
# answer takes milliseconds; longer delays all deliveries after a rebalance.
START_S = 1.0
# Interval of questions while pairs are stopped or a setting is wrong, so that a correction takes
# effect soon: half of SETTINGS_POLL_S, because the operator waits for it.
FLAWED_S = 5.0
# A wrong setting that stops nothing is logged again after this time: 24 lines a day, so that the
# log of each day has it. Health and metrics show those that endanger messages at all times.
FLAWS_LOGGED_S = 3600.0


class TopicGuard:
    """Judges topics' settings; `stops` says why no pair may be served. Times: monotonic seconds."""

    def __init__(self, config: CheckerConfig, settings: TopicSettings, status: Status) -> None:
        self.stops = ""
        self._config = config
        self._settings = settings
        self._status = status
        self._flaws = Flaws()
        self._logged = ""
        self._logged_at = float("-inf")
        self._unread: frozenset[str] = frozenset()

    def before_start(self, now: float) -> None:
        """Ask for the settings and judge them; without an answer, judge the known settings."""
        self._settings.read(START_S)
        self._judge(now)

    def poll(self, now: float) -> bool:
        """Judge new answers, without waiting; tell whether the pairs must start again."""
        is_flawed = self._flaws.stopping or self._flaws.alarms
        if not self._settings.poll(now, FLAWED_S if is_flawed else SETTINGS_POLL_S):
            return False
        before = self.stops
        self._judge(now)
        return before != self.stops

    def _judge(self, now: float) -> None:
        config = self._config
        self._flaws = flaws = find_flaws(
            config.names,
            self._settings.known,
            transaction_age_ms_max=config.transaction_age_ms_max,
            bootstrap_servers=config.bootstrap_servers,
        )
        before, self.stops = self.stops, problems_text(flaws.stopping)
        if self.stops and before != self.stops:
            _log.error(
                "all partitions stopped: %s. Nothing is delivered until the settings are"
                " corrected; then all partitions resume",
                self.stops,
            )
        elif before and not self.stops:
            _log.info(
                "the settings of half and op topic are valid again: all partitions are resumed"
            )
        self._status.set_problem("topics", problems_text(flaws.alarms))
        self._status.metrics.topic_settings_wrong(
            {(each.subject, each.setting): 1 for each in (*flaws.stopping, *flaws.alarms)}
        )
        self._log_flaws(now)

    def _log_flaws(self, now: float) -> None:
        """Log new wrong settings that stop nothing, and all again every FLAWS_LOGGED_S."""
        text = problems_text((*self._flaws.alarms, *self._flaws.advice))
        if text and (text != self._logged or now - self._logged_at >= FLAWS_LOGGED_S):
            self._logged_at = now
            _log.warning("settings of topics: %s", text)
        self._logged = text
        refused = self._settings.refused
        if unread := sorted(refused.keys() - self._unread):
            more = f" and {len(unread) - SHOWN_MAX} more topics" if len(unread) > SHOWN_MAX else ""
            _log.warning(
                "the settings of %s%s cannot be read (%s): deliveries go on, but wrong settings"
                " would not be noticed. Grant the daemon DescribeConfigs on these topics",
                *(", ".join(unread[:SHOWN_MAX]), more, refused[unread[0]]),
            )
        self._unread = frozenset(refused)


# Health turns red after this time, as for a pair that waits (`assignment.UNHEALTHY_S`). Topics may
# be created while the daemon starts.
UNHEALTHY_S = 30.0
# Intervals of refreshes while topics are missing (as RIGHTS_S, since nothing is delivered), and of
# the log line about them (twelve an hour; health shows them as well).
OWN_POLL_S = 2.0
OWN_LOGGED_S = 300.0


class OwnTopics:
    """Whether the topics of this installation are there; health shows it after `UNHEALTHY_S`."""

    def __init__(self, config: CheckerConfig, status: Status) -> None:
        names = config.names
        self._create = f"halfbridge topics create {names.options(config.bootstrap_servers)}"
        self._needed = (names.op, names.half, names.dead)
        self._status = status
        self._since = 0.0
        self._logged_at = float("-inf")
        self.missing: tuple[str, ...] = ()

    def judge(self, topics: Collection[str], now: float) -> None:
        """Take which topics there are."""
        before, self.missing = self.missing, tuple(t for t in self._needed if t not in topics)
        if not self.missing:
            if before:
                _log.info("the topics of this installation exist now: deliveries begin")
                self._logged_at = float("-inf")
            self._status.set_problem("own topics", "")
            return
        if not before:
            self._since = now
        missing = ", ".join(self.missing)
        what = f"{missing}: no such topic, or no right to see it. Run: {self._create}"
        if now - self._logged_at >= OWN_LOGGED_S:
            self._logged_at = now
            _log.error("nothing is delivered: %s", what)
        is_long = now - self._since >= UNHEALTHY_S
        self._status.set_problem("own topics", f"nothing is delivered: {what}" if is_long else "")
