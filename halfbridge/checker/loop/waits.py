"""Waiting pairs: left out for now, so that the other pairs are served.

No operator is needed: brokers are asked again about each pair, and a pair is served once they
answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.loop.backoff import delay_s

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# Longest time between two questions about a pair (1 s, 2 s, 4 s, ...), and between two attempts to
# read it. A question costs little; an attempt rebuilds all pairs of the worker.
ASK_AGAIN_S_MAX = 8.0
FIRST_S = 1.0  # the first of these intervals
TAKE_AGAIN_S_MAX = 300.0
# A pair that waits longer is shown in health. Brokers elect a new leader in less time.
ILL_S = 30.0
# A pair that was read for this time has recovered.
STEADY_S = 60.0
# A failure later than this after the last one begins a new row: a pair with the longest wait takes
# up to two minutes to fail again (`StallWatch`).
ROW_S = TAKE_AGAIN_S_MAX + 3 * STEADY_S


@dataclass(slots=True)
class Wait:
    """A waiting pair.

    Attributes:
        why: The last error.
        since: When the pair was left out.
        failures: Number of failures in a row.
        ask_at: When brokers are asked about the pair again.
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


class Waits:
    """The waiting pairs, and when brokers are asked about them. Times are monotonic seconds."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._waits: dict[int, Wait] = {}
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
        self._wait(
            number, Wait(why, since, failures, now + delay_s(failures, FIRST_S, ASK_AGAIN_S_MAX))
        )

    def lost(
        self, number: int, why: str, now: float, *, well_s: float, are_all: bool = False
    ) -> None:
        """Record that a pair cannot be read.

        A pair is left out only after a second failure, because a single one usually passes at once.

        Args:
            number: The pair.
            why: The error.
            now: The time.
            well_s: How long the pair was read well; 0 if it was never read to its end.
            are_all: Whether all pairs failed: then the next attempt comes sooner, because it
                rebuilds no other pair.
        """
        was = self._losses.get(number)
        if was is None or not was.is_followed(now, well_s):
            self._losses[number] = Loss(1, now, now)
            return
        self._losses[number] = Loss(was.failures + 1, was.since, now)
        longest_s = ASK_AGAIN_S_MAX if are_all else TAKE_AGAIN_S_MAX
        ask_at = now + delay_s(was.failures, FIRST_S, longest_s)
        self._wait(number, Wait(why, was.since, was.failures, ask_at, was_lost=True))

    def unsafe(self, number: int, why: str, now: float) -> None:
        """Leave out a pair whose records end the process; it is shown in health at once."""
        was = self._waits.get(number)
        failures = 1 if was is None else was.failures + 1
        ask_at = now + delay_s(failures, ILL_S, TAKE_AGAIN_S_MAX)
        since = now - ILL_S if was is None else was.since
        self._wait(number, Wait(why, since, failures, ask_at, was_lost=True))
        self.tell(now)

    def end(self, number: int) -> None:
        """Record that a pair is served, or stopped, from now on."""
        if self._waits.pop(number, None) is not None:
            _log.info("partition %d waits no longer", number)
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

    def tell(self, now: float) -> None:
        """Show in health the pairs that have waited for more than ILL_S."""
        for number, wait in self._waits.items():
            if now - wait.since >= ILL_S:
                self._status.stop_partition(number, f"waits, and is asked again: {wait.why}")

    def _wait(self, number: int, wait: Wait) -> None:
        if number not in self._waits:
            _log.warning(
                "partition %d waits: %s. Brokers are asked again; other partitions are served",
                *(number, wait.why),
            )
        self._waits[number] = wait
        self._count()

    def _count(self) -> None:
        self._status.metrics.partitions_waiting(len(self._waits))
