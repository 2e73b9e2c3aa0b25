"""How many checks may go out now: a token bucket. Pure; the time is an argument."""

from __future__ import annotations

# A tenth of a second's worth at once: bursts stay small beside what a responder queues.
BURST_S = 0.1


class Pacer:
    """Allows `rate` a second, in bursts of at most `BURST_S` of that (at least one).

    Args:
        rate: Checks a second; > 0.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * BURST_S)
        self._tokens = self._burst
        self._at: float | None = None

    def allowance(self, now: float) -> int:
        """Return how many may go at `now` (monotonic seconds)."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Take that `count` went."""
        self._tokens -= count
