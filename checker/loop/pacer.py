"""Limits the rate of checks: a token bucket. Pure; the time is an argument."""

from __future__ import annotations

# A burst is the checks of 0.1 s, which is small compared to the queue of a responder.
BURST_S = 0.1


class Pacer:
    """Allows `rate` checks a second, in bursts of the checks of `BURST_S` (at least one).

    Args:
        rate: Checks a second; > 0.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * BURST_S)
        self._tokens = self._burst
        self._at: float | None = None

    def allowance(self, now: float) -> int:
        """Return how many checks may be sent at `now` (monotonic seconds)."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Record that `count` checks were sent."""
        self._tokens -= count
