"""Every choice of a run, drawn from one seed or replayed from a list, and made smaller.

0 is always the choice without a fault, so that a run is made simpler by setting choices to 0 and
by cutting the list off: what is missing is 0.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# How many runs the search for a smaller list may take.
RUNS_MAX = 250
# Every so many-th seed has a Spark query beside the clients. The seed says so, and no choice does:
# the runs of the other seeds are the same, whatever the query draws.
FEED_EVERY = 8


class Choices:
    """Draws choices and keeps them.

    Args:
        seed: Of the random numbers.
        script: Replayed instead; what it lacks is 0.

    Attributes:
        has_feed: The run has a Spark query; so has a replay with the same seed.
    """

    def __init__(self, seed: int = 0, script: Sequence[int] | None = None) -> None:
        self.has_feed = seed % FEED_EVERY == FEED_EVERY - 1
        self.made: list[int] = []
        self._random = Random(seed).random
        self._script = script
        self.is_calm = False

    def below(self, count: int) -> int:
        """Return a number in [0, count)."""
        if self.is_calm or count < 2:
            return 0
        script = self._script
        if script is None:
            value = int(self._random() * count)
        else:
            at = len(self.made)
            value = min(script[at], count - 1) if at < len(script) else 0
        self.made.append(value)
        return value

    def fault(self, permille: int) -> bool:
        """Tell whether a fault happens that has this chance."""
        if self.is_calm or not permille:
            return False
        script = self._script
        if script is None:
            value = int(self._random() * 1000 < permille)
        else:
            at = len(self.made)
            value = int(at < len(script) and script[at] > 0)
        self.made.append(value)
        return value > 0


def shrink(made: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Return a list with as few choices that are not 0 as a short search finds.

    Args:
        made: Choices of a run that fails.
        fails: Tells whether a run with these choices fails too.
    """
    best = list(made)
    runs = 0

    def is_better(candidate: list[int]) -> bool:
        nonlocal best, runs
        if runs >= RUNS_MAX or candidate == best:
            return False
        runs += 1
        if not fails(candidate):
            return False
        best = candidate
        return True

    size = len(best)
    while size:  # cut the tail off
        if not is_better(best[: len(best) - size]):
            size //= 2
    size = max(1, len(best) // 2)
    while size and runs < RUNS_MAX:  # set runs of choices to 0
        at = 0
        while at < len(best):
            if any(best[at : at + size]):
                zeros = [0] * len(best[at : at + size])
                is_better([*best[:at], *zeros, *best[at + size :]])
            at += size
        size //= 2
    while best and not best[-1]:
        best.pop()
    return best
