"""The pairs of a worker: starts them from committed offsets, leaves them out or stops them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.checker.loop.beginning import Doubts, where_to_begin
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.throttle import Throttle
from halfbridge.checker.loop.waits import Waits
from halfbridge.serde.progress import Progress, ProgressError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.settings import LedgerSettings
    from halfbridge.checker.loop.first_reads import FirstReads
    from halfbridge.checker.loop.intake import Input
    from halfbridge.checker.loop.publish import Publisher
    from halfbridge.checker.loop.questions import Questions, Ranges
    from halfbridge.checker.loop.topic_guard import TopicGuard
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import Clock
    from halfbridge.serde.verifier import Verifier

_log = logging.getLogger("halfbridge.checker")


class Assignment:
    """The pairs that this worker serves at present.

    Attributes:
        pairs: Partition number -> pair; without stopped pairs and pairs that are left out.
    """

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
        self._doubts = Doubts()
        self._waits = Waits(status)
        self._question: Ranges | None = None  # about waiting pairs

    @property
    def is_rebuilt(self) -> bool:
        """Whether every ledger has been rebuilt."""
        return all(pair.announced for pair in self.pairs.values())

    @property
    def with_news(self) -> list[Pair]:
        """The pairs that were told something since they had nothing to write."""
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
        """Begin anew, from the committed offsets of the assigned partitions.

        A partition whose progress cannot be trusted is stopped and reported. A partition that
        brokers do not answer for is left out for now. The other partitions are served.

        Raises:
            InputLostError: offsets cannot be read now, or cannot be trusted yet; try again.
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
        """Record that pairs cannot be read, and return the error to raise.

        A pair that fails a second time is left out, and the others are served.

        Args:
            unread: Partition number -> the topic of the pair that cannot be read.
            why: The reason, for people.
            since: When the failure began, monotonic seconds; None: now.
        """
        now = self._clock.monotonic()
        are_all = len(unread) == len(self.pairs)
        texts = {number: f"{topic}[{number}]: {why}" for number, topic in unread.items()}
        for number, topic in unread.items():
            pair = self.pairs[number]
            well_s = (since or now) - pair.rebuild_began if topic in pair.read_to_end else 0.0
            self._waits.lost(number, texts[number], now, well_s=well_s, are_all=are_all)
        return InputLostError("; ".join(texts.values()))

    def look_again(self, now: float) -> None:
        """Ask about waiting pairs, without waiting; begin anew once one can be served."""
        self._waits.tell(now)
        if self._guard.look(now):
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
                    "partition %d rebuilt in %.3f s from H=%d O=%d: %d undecided half messages",
                    *(pair.partition, seconds, pair.began_from.half, pair.began_from.op),
                    pair.ledger.undecided_halves,
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
        """Return the pairs to begin with: all but waiting ones, or those if there are no others.

        Raises:
            InputLostError: all pairs wait, and none may be tried yet.
        """
        asked = [number for number in numbers if number not in self._waits.numbers]
        asked = asked or [number for number in numbers if self._waits.may_be_tried(number, now)]
        if not asked:
            self._waits.tell(now)
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
        """Return the known progress, and leave out the pairs that brokers do not answer for.

        Raises:
            InputLostError: brokers answer for no pair; all partitions are asked about again.
        """
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
        """Stop `numbers` until the guard lets them go on."""
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
