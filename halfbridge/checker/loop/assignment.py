"""The pairs of a worker: starts them from committed offsets, leaves them out or stops them.

A pair that brokers do not answer for waits (`WaitingPairs`) without an operator: brokers are asked
again, and the other pairs are served meanwhile.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.core.rebuild import BeyondEndError, check_against_log
from halfbridge.checker.core.settings import LedgerSettings
from halfbridge.checker.loop.failures import InputLostError, delay_s
from halfbridge.checker.loop.pair import Pair, Throttle
from halfbridge.checker.loop.publish import COPY_GROWTH_BYTES, SIGNATURE_GROWTH_BYTES
from halfbridge.serde.progress import Progress, ProgressError, parse_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.loop.clients import Questions, Ranges
    from halfbridge.checker.loop.intake import FirstReads, Input
    from halfbridge.checker.loop.publish import Publisher, Sizes
    from halfbridge.checker.loop.topic_watch import TopicGuard
    from halfbridge.checker.policy import Policy
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import Clock, Committed
    from halfbridge.serde.signatures import Verifier

_log = logging.getLogger("halfbridge.checker")


class Assignment:
    """The pairs that this worker serves; `pairs` has none that are stopped or left out."""

    def __init__(
        self,
        config: CheckerConfig,
        settings: LedgerSettings,
        *,
        intake: Input,
        questions: Questions,
        new_publisher: Callable[[int], Publisher],
        guard: TopicGuard,
        status: Status,
        clock: Clock,
        away: Callable[[int], str] = lambda _: "",
        verifier: Verifier | None = None,
        first_reads: FirstReads | None = None,
    ) -> None:
        self.pairs: dict[int, Pair] = {}
        self._config = config
        self._half, self._op = config.names.half, config.names.op
        self._settings = settings
        self._throttle = Throttle(config)
        self._input = intake
        self._questions = questions
        self._new_publisher = new_publisher
        self._verifier = verifier
        self._first_reads = first_reads
        self._guard = guard
        self._status = status
        self._clock = clock
        self._away = away
        self._doubts = EndsInDoubt()
        self._waits = WaitingPairs(status)
        self._question: Ranges | None = None  # about waiting pairs

    @property
    def is_rebuilt(self) -> bool:
        """Whether every ledger has been rebuilt."""
        return all(pair.announced for pair in self.pairs.values())

    @property
    def with_news(self) -> list[Pair]:
        """The pairs with news since they last had nothing to write."""
        return [pair for pair in self.pairs.values() if pair.has_news]

    @property
    def is_far_ahead(self) -> bool:
        """Whether enough was read for the batches after the one under way."""
        return self._throttle.is_far_ahead(self.pairs.values())

    def drop(self) -> None:
        """Drop all pairs with their ledgers."""
        for number in self.pairs:
            self._status.metrics.forget_partition(number)
        self.pairs = {}

    def start(self) -> None:
        """Start again from the committed offsets of the assigned partitions.

        A partition whose progress cannot be trusted is stopped and reported; one that brokers do
        not answer for is left out for now. The others are served. InputLostError: offsets cannot be
        read now, or cannot be trusted yet; try again.
        """
        self._status.set_ready(ready=False, reason="rebuilds its ledgers")
        self.drop()
        self._question = None
        assigned = self._input.assigned
        numbers = sorted({number for _, number in assigned})
        # A member without partitions is ready, in reserve; a worker that is no member is not.
        is_member = self._input.is_member
        if assigned or is_member:
            self._status.keep_partitions(numbers)
            self._waits.keep(numbers)
        if not assigned:
            self._status.metrics.partitions_stopped(0)
            self._status.set_ready(ready=is_member, reason="" if is_member else "joins its group")
            return
        began = self._clock.monotonic()
        self._guard.before_start(began)
        if self._guard.stops:
            self._stop_all(numbers, self._guard.stops)
            return
        asked = self._to_ask(numbers, began)
        committed = self._input.committed(assigned)
        away = {number: InputLostError(why) for number in asked if (why := self._away(number))}
        ranges = self._ask([number for number in asked if number not in away]).answers()
        names = self._half, self._op
        found = {
            number: away.get(number) or where_to_begin(number, names, committed, ranges)
            for number in asked
        }
        known = self._leave_out(found, began)
        self._doubts.check(known, began)
        known = self._leave_out_unsafe(known)
        self._serve(known, self._settings.shared_by(len(numbers)), began)

    def lost(
        self, unread: Mapping[int, str], why: str, *, since: float | None = None
    ) -> InputLostError:
        """Record that pairs cannot be read; return the error. A second failure leaves one out."""
        now = self._clock.monotonic()
        are_all = len(unread) == len(self.pairs)
        texts = {number: f"{topic}[{number}]: {why}" for number, topic in unread.items()}
        for number, topic in unread.items():
            pair = self.pairs[number]
            well_s = (since or now) - pair.rebuild_began if topic in pair.read_to_end else 0.0
            self._waits.lost(number, texts[number], now, well_s=well_s, are_all=are_all)
        return InputLostError("; ".join(texts.values()))

    def poll_waiting(self, now: float) -> None:
        """Ask about waiting pairs, without waiting; start again once one can be served."""
        self._waits.show_in_health(now)
        if self._guard.poll(now):
            self._input.changed = True
        if not self._input.assigned:
            return  # between two assignments
        if self._question is None:
            due = self._waits.due(now)
            self._question = self._ask(due) if due else None
        elif self._question.is_over:
            answers, self._question = self._question.answers(), None
            errors = ((number, each) for (_, number), each in answers.items())
            silent = {
                number: str(each) for number, each in errors if isinstance(each, InputLostError)
            }
            silent |= {n: why for _, n in answers if (why := self._away(n))}
            for number in {number for _, number in answers}:
                if number in silent:
                    self._waits.leave_out(number, silent[number], now)
                else:
                    self._waits.answered(number)
                    self._input.changed = True

    def announce(self, now: float) -> None:
        """Report finished rebuilds; the worker is ready once all are finished."""
        waiting = [pair for pair in self.pairs.values() if not pair.announced]
        for pair in waiting:
            if pair.ledger.is_rebuilt:
                self.pause_or_resume(pair)
                pair.announced = True
                seconds = now - pair.rebuild_began
                self._status.metrics.rebuilt_s(seconds)
                _log.info(
                    "partition %d rebuilt in %.3f s from H=%d O=%d: %d held half messages",
                    *(pair.partition, seconds, pair.began_from.half, pair.began_from.op),
                    pair.ledger.held_halves,
                )
        if self._first_reads is not None:
            rebuilt = [pair.partition for pair in waiting if pair.announced]
            self._first_reads.rebuilt(rebuilt)
        if waiting and all(pair.announced for pair in waiting):
            self._status.set_ready(ready=True)

    def keep_bodies(self, under_way: Collection[int]) -> None:
        """Keep the budget of bodies; the plans of pairs `under_way` keep their bodies."""
        for number, pair in self.pairs.items():
            pair.keep_bodies(is_written=number in under_way)

    def pause_or_resume(self, *only: Pair) -> None:
        """Bound the memory of all pairs, or of `only`, by pausing and resuming their topics."""
        for pair in only or self.pairs.values():
            not_wanted = self._throttle.not_wanted(pair)
            for topic in not_wanted - pair.paused:
                self._input.pause(topic, pair.partition)
            for topic in pair.paused - not_wanted:
                self._input.resume(topic, pair.partition)
            pair.paused = not_wanted

    def memory_trouble(self) -> str:
        """Return in words which pair has nearly spent its budget of entries; empty for none."""
        return self._throttle.trouble(self.pairs.values())

    def _to_ask(self, numbers: Collection[int], now: float) -> Collection[int]:
        """Return the pairs to begin with: waiting ones if there are no others, when due."""
        asked = [number for number in numbers if number not in self._waits.numbers]
        asked = asked or [number for number in numbers if self._waits.may_be_tried(number, now)]
        if not asked:
            self._waits.show_in_health(now)
            raise InputLostError(self._waits.why())
        return asked

    def _ask(self, numbers: Collection[int]) -> Ranges:
        return self._questions.ask_ranges(
            sorted(place for place in self._input.assigned if place[1] in numbers)
        )

    def _serve(
        self, found: Mapping[int, Progress | ProgressError], settings: LedgerSettings, began: float
    ) -> None:
        offsets: dict[tuple[str, int], int] = {}
        for number, progress in found.items():
            self._waits.end(number)
            self._status.clear_partition(number)
            if isinstance(progress, ProgressError):
                self._stop(number, str(progress))
                continue
            publisher = self._new_publisher(number)
            self.pairs[number] = Pair(
                number, settings, progress, publisher, began=began, verifier=self._verifier
            )
            offsets[self._half, number] = progress.half
            offsets[self._op, number] = progress.ops_from
        self._status.metrics.partitions_stopped(len(found) - len(self.pairs))
        self._input.read_from(offsets)
        if not self.pairs:
            or_wait = " or wait" if self._waits.numbers else ""
            self._status.set_ready(ready=False, reason=f"all its partitions are stopped{or_wait}")

    def _leave_out(
        self, found: Mapping[int, Progress | ProgressError | InputLostError], now: float
    ) -> dict[int, Progress | ProgressError]:
        """Return the known progress, and leave out silent pairs; InputLostError if all are."""
        known: dict[int, Progress | ProgressError] = {}
        silent: dict[int, InputLostError] = {}
        for number, progress in found.items():
            if isinstance(progress, InputLostError):
                silent[number] = progress
            else:
                known[number] = progress
        if not known:
            raise next(iter(silent.values()))
        for number, error in silent.items():
            if number not in self._waits.numbers:
                self._status.clear_partition(number)  # a former error
            self._waits.leave_out(number, str(error), now)
        return known

    def _leave_out_unsafe(
        self, found: Mapping[int, Progress | ProgressError]
    ) -> dict[int, Progress | ProgressError]:
        """Return the pairs without those whose records would end this process."""
        if self._first_reads is None:
            return dict(found)
        to_read = {no: each for no, each in found.items() if isinstance(each, Progress)}
        unsafe = self._first_reads.begin(to_read)
        for number, why in unsafe.items():
            self._waits.unsafe(number, why, self._clock.monotonic())
        return {number: each for number, each in found.items() if number not in unsafe}

    def _stop_all(self, numbers: Collection[int], why: str) -> None:
        for number in numbers:
            self._waits.end(number)
            self._status.stop_partition(number, why)
        self._status.metrics.partitions_stopped(len(numbers))
        self._status.set_ready(ready=False, reason=why)
        self._input.read_from({})

    def _stop(self, number: int, error: str) -> None:
        self._status.stop_partition(number, error)
        _log.error(
            "partition %d stopped: %s. Nothing of it is delivered until an operator stops the"
            " workers and runs `halfbridge checker init --partition %d`",
            *(number, error, number),
        )


# How long progress beyond a log's end may be the mistake of a deposed leader. A broker that was
# frozen learns within a heartbeat (2 s) that other brokers lead its partitions.
BEYOND_END_S = 10.0


def where_to_begin(
    number: int,
    topics: tuple[str, str],
    committed: Mapping[tuple[str, int], Committed],
    ranges: Mapping[tuple[str, int], tuple[int, int] | InputLostError],
) -> Progress | ProgressError | InputLostError:
    """Return where a pair begins, or why that is not known; `topics` are half and op topic."""
    half, op = ((topic, number) for topic in topics)
    if half not in committed or op not in committed:
        return ProgressError(
            "half and op partition of this number are not on one worker: the topics have"
            " different partition counts; `halfbridge topics create --grow` makes them equal"
        )
    at_op = committed[op]
    try:
        progress = parse_progress(committed[half].offset, at_op.offset, at_op.metadata)
        half_range, op_range = ranges[half], ranges[op]
        if isinstance(half_range, InputLostError):
            return half_range
        if isinstance(op_range, InputLostError):
            return op_range
        return check_against_log(progress, half_range, op_range)
    except ProgressError as error:
        return error


class EndsInDoubt:
    """Pairs whose progress lies beyond a log's end, which is trusted only after BEYOND_END_S."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def check(self, found: Mapping[int, Progress | ProgressError], now: float) -> None:
        """Check where pairs begin. InputLostError: too new a finding; brokers are asked again."""
        self._since = {
            number: self._since.get(number, now)
            for number, progress in found.items()
            if isinstance(progress, BeyondEndError)
        }
        for number, since in self._since.items():
            if now - since < BEYOND_END_S:
                raise InputLostError(f"partition {number}: {found[number]}; asked again")


# Longest time between two questions about a pair (1 s, 2 s, 4 s, ...), and between two attempts to
# read it. A question costs little; an attempt rebuilds all pairs of the worker.
ASK_AGAIN_S_MAX = 8.0
FIRST_S = 1.0  # the first of these intervals
TAKE_AGAIN_S_MAX = 300.0  # as supervisors wait at most (Kubernetes: 5 min)
# A pair that waits longer is shown in health. Brokers elect a new leader in less time.
UNHEALTHY_S = 30.0
# A pair that was read for this time has recovered. Not shorter than STALLED_S, after which a second
# stall is noticed.
STEADY_S = 60.0
# A failure later than this after the last one begins a new row: a pair with the longest wait takes
# up to two minutes to fail again (`StallWatch`).
ROW_S = TAKE_AGAIN_S_MAX + 3 * STEADY_S


@dataclass(slots=True)
class WaitingPair:
    """A waiting pair.

    Attributes:
        failures: Number of failures in a row.
        was_lost: Brokers answer, but the pair cannot be read.
        is_over: Brokers have answered, and the pair will be served again.
    """

    why: str
    since: float
    failures: int
    ask_at: float
    was_lost: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """Failures in a row to read a pair that brokers answer for, with the first and last time."""

    failures: int
    since: float
    at: float

    def is_followed(self, now: float, well_s: float) -> bool:
        """Whether a failure now belongs to the row; the pair was read well for `well_s` before."""
        return well_s < STEADY_S and now - self.at < ROW_S


class WaitingPairs:
    """The waiting pairs, and when brokers are asked about them. Times are monotonic seconds."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._waits: dict[int, WaitingPair] = {}
        self._losses: dict[int, Loss] = {}

    @property
    def numbers(self) -> frozenset[int]:
        """Return the waiting pairs, without those that brokers have answered for."""
        return frozenset(number for number, wait in self._waits.items() if not wait.is_over)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all pairs but `numbers`: the others were revoked."""
        self._waits = {each: wait for each, wait in self._waits.items() if each in numbers}
        self._losses = {each: loss for each, loss in self._losses.items() if each in numbers}
        self._count()

    def leave_out(self, number: int, why: str, now: float) -> None:
        """Leave out a pair for which brokers do not answer."""
        was = self._waits.get(number)
        failures = 1 if was is None else was.failures + 1
        since = now if was is None else was.since
        ask_at = now + delay_s(failures, FIRST_S, ASK_AGAIN_S_MAX)
        self._wait(number, WaitingPair(why, since, failures, ask_at))

    def lost(
        self, number: int, why: str, now: float, *, well_s: float, are_all: bool = False
    ) -> None:
        """Record that a pair cannot be read; it is left out only after a second failure.

        A single failure usually passes at once. The pair was read well for `well_s` before, 0 if it
        was never read to its end. If all pairs failed (`are_all`), the next attempt comes sooner,
        because it rebuilds no other pair.
        """
        was = self._losses.get(number)
        if was is None or not was.is_followed(now, well_s):
            self._losses[number] = Loss(1, now, now)
            return
        self._losses[number] = Loss(was.failures + 1, was.since, now)
        longest_s = ASK_AGAIN_S_MAX if are_all else TAKE_AGAIN_S_MAX
        ask_at = now + delay_s(was.failures, FIRST_S, longest_s)
        self._wait(number, WaitingPair(why, was.since, was.failures, ask_at, was_lost=True))

    def unsafe(self, number: int, why: str, now: float) -> None:
        """Leave out a pair whose records end the process; it is shown in health at once."""
        was = self._waits.get(number)
        failures = 1 if was is None else was.failures + 1
        ask_at = now + delay_s(failures, UNHEALTHY_S, TAKE_AGAIN_S_MAX)
        since = now - UNHEALTHY_S if was is None else was.since
        self._wait(number, WaitingPair(why, since, failures, ask_at, was_lost=True))
        self.show_in_health(now)

    def end(self, number: int) -> None:
        """Record that a pair is served, or stopped, from now on."""
        if self._waits.pop(number, None) is not None:
            _log.info("partition %d is no longer waiting", number)
        self._count()

    def due(self, now: float) -> frozenset[int]:
        """Return the pairs to ask about now."""
        return frozenset(each for each in self.numbers if now >= self._waits[each].ask_at)

    def may_be_tried(self, number: int, now: float) -> bool:
        """Whether a waiting pair may be tried if there is no other pair."""
        wait = self._waits[number]
        return not wait.was_lost or now >= wait.ask_at

    def why(self) -> str:
        """Return in words what the waiting pairs wait for."""
        return "; ".join(
            f"partition {number} waits: {wait.why}" for number, wait in sorted(self._waits.items())
        )

    def answered(self, number: int) -> None:
        """Record that brokers answer for a pair again."""
        if number in self._waits:
            self._waits[number].is_over = True

    def show_in_health(self, now: float) -> None:
        """Show in health the pairs that have waited for more than UNHEALTHY_S."""
        for number, wait in self._waits.items():
            if now - wait.since >= UNHEALTHY_S:
                self._status.stop_partition(number, f"waits, and is asked again: {wait.why}")

    def _wait(self, number: int, wait: WaitingPair) -> None:
        if number not in self._waits:
            _log.warning(
                "partition %d waits: %s. Brokers are asked again; other partitions are served",
                *(number, wait.why),
            )
        self._waits[number] = wait
        self._count()

    def _count(self) -> None:
        self._status.metrics.partitions_waiting(len(self._waits))


_CODEC_PROPERTIES = ("compression.type", "compression.codec")


def ledger_settings(
    config: CheckerConfig, policy: Policy, sizes: Sizes, *, actor: str, signs: bool = False
) -> LedgerSettings:
    """Return the settings of a worker's ledgers; `LedgerSettings.shared_by` divides the budgets.

    `actor` is the worker's name in its discards. If it `signs` copies, they become longer.
    """
    growth_bytes = COPY_GROWTH_BYTES + (SIGNATURE_GROWTH_BYTES if signs else 0)

    def copy_fits(half: HalfRead) -> bool:
        return sizes.fits(config.names.half, half.size_bytes + growth_bytes)

    return LedgerSettings(
        transaction_timeout_ms=config.transaction_timeout_ms,
        check_interval_ms=config.check_interval_ms,
        check_count_max=config.check_count_max,
        transaction_age_ms_max=config.transaction_age_ms_max,
        check_backoff_ms_max=config.check_backoff_ms_max,
        republish_window_records=config.republish_window_records,
        republish_window_bytes=config.republish_window_bytes,
        ledger_bytes_max=config.ledger_bytes_max,
        entries_bytes_max=config.entries_bytes_max,
        unanswered_before_discard=config.unanswered_before_discard,
        readiness_before_discard_ms=config.readiness_before_discard_ms,
        actor=actor,
        allows=policy.allows,
        copy_fits=copy_fits,
    )


def known_limits(
    config: CheckerConfig, max_bytes: Callable[[str], int | None]
) -> Callable[[str], int | None]:
    """Return the function of topics' known limits: none with compression (see `loop.blame`)."""
    codecs = (config.kafka.get(name, "none") for name in _CODEC_PROPERTIES)
    return max_bytes if set(codecs) <= {"none"} else lambda _topic: None
