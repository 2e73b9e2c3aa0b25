"""Partition pairs that are left out for now, so that the others need not wait for them.

No operator is needed: each is asked about again by and by, and served once brokers answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# Asked again after a second, then two, four, ... A question about a pair costs little; a pair that
# is taken in again has all pairs of the worker rebuilt.
ASK_AGAIN_S_MAX = 8.0
TAKE_AGAIN_S_MAX = 300.0
# Longer than brokers need for a new leader: health turns red.
ILL_S = 30.0
# Whoever was read for so long has overcome what kept it from being read before.
STEADY_S = 60.0
# A failure so long after the last one is no more of the same: a pair that is left out for longest
# takes up to a minute or two to fail again (`StallWatch`).
ROW_S = TAKE_AGAIN_S_MAX + 3 * STEADY_S


@dataclass(slots=True)
class Wait:
    """A pair that is left out.

    Attributes:
        why: What was said last.
        since: When it was left out.
        failures: How often in a row it could not be had.
        ask_at: When brokers are asked about it again.
        was_lost: They do answer, and it cannot be read.
        is_over: They have answered.
    """

    why: str
    since: float
    failures: int
    ask_at: float
    was_lost: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """Failures in a row to read a pair that brokers do answer for; times of the first, the last."""

    failures: int
    since: float
    at: float

    def is_followed(self, now: float, well_s: float) -> bool:
        """Whether a failure now, of a pair that was well for `well_s`, is the next in the row."""
        return well_s < STEADY_S and now - self.at < ROW_S


class Waits:
    """Which pairs are left out, and when they are asked about. Times are monotonic seconds."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._waits: dict[int, Wait] = {}
        self._losses: dict[int, Loss] = {}

    @property
    def numbers(self) -> frozenset[int]:
        """Return the pairs that are left out; those are not among them that may be had again."""
        return frozenset(number for number, wait in self._waits.items() if not wait.is_over)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget all pairs but `numbers`: they were taken away."""
        self._waits = {each: wait for each, wait in self._waits.items() if each in numbers}
        self._losses = {each: loss for each, loss in self._losses.items() if each in numbers}
        self._count()

    def leave_out(self, number: int, why: str, now: float) -> None:
        """Leave a pair out about which brokers do not answer."""
        was = self._waits.get(number)
        failures = 1 if was is None else was.failures + 1
        since = now if was is None else was.since
        self._wait(number, Wait(why, since, failures, now + _delay_s(failures, ASK_AGAIN_S_MAX)))

    def lost(
        self, number: int, why: str, now: float, *, well_s: float, are_all: bool = False
    ) -> None:
        """Take that a pair cannot be read.

        The first time passes at once, mostly: it is left out only where it happens again.

        Args:
            number: The pair.
            why: What was said.
            now: The time.
            well_s: How long it was read well; 0, if it never was read to its end.
            are_all: No other pair would be rebuilt with it: it is tried again sooner.
        """
        was = self._losses.get(number)
        if was is None or not was.is_followed(now, well_s):
            self._losses[number] = Loss(1, now, now)
            return
        self._losses[number] = Loss(was.failures + 1, was.since, now)
        longest_s = ASK_AGAIN_S_MAX if are_all else TAKE_AGAIN_S_MAX
        ask_at = now + _delay_s(was.failures, longest_s)
        self._wait(number, Wait(why, was.since, was.failures, ask_at, was_lost=True))

    def end(self, number: int) -> None:
        """Take that a pair is served, or stopped, from now on."""
        if self._waits.pop(number, None) is not None:
            _log.info("partition %d waits no longer", number)
        self._count()

    def due(self, now: float) -> frozenset[int]:
        """Return the pairs to ask about now."""
        return frozenset(each for each in self.numbers if now >= self._waits[each].ask_at)

    def may_be_tried(self, number: int, now: float) -> bool:
        """Whether a pair that is left out is to be tried when there is no other."""
        wait = self._waits[number]
        return not wait.was_lost or now >= wait.ask_at

    def why(self) -> str:
        """Return in words what all that is left out waits for."""
        return "; ".join(
            f"partition {number} waits: {wait.why}" for number, wait in sorted(self._waits.items())
        )

    def answered(self, number: int) -> None:
        """Take that brokers answer about a pair again."""
        if number in self._waits:
            self._waits[number].is_over = True

    def tell(self, now: float) -> None:
        """Show in health which pairs have waited for too long."""
        for number, wait in self._waits.items():
            if now - wait.since >= ILL_S:
                self._status.stop_partition(number, f"waits, and is asked again: {wait.why}")

    def _wait(self, number: int, wait: Wait) -> None:
        if number not in self._waits:
            _log.warning(
                "partition %d waits: %s. It is asked again by and by; the others go on",
                *(number, wait.why),
            )
        self._waits[number] = wait
        self._count()

    def _count(self) -> None:
        self._status.metrics.partitions_waiting(len(self._waits))


def _delay_s(failures: int, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row, from 1."""
    return min(2.0 ** min(failures - 1, 16), longest_s)
