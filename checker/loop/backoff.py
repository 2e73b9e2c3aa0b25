"""How long to wait after failures in a row. Pure."""

from __future__ import annotations

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    """Doubling delays. The first delay is short, since most failures pass at once.

    Attributes:
        failures: Failures since the last success.
    """

    def __init__(self) -> None:
        self.failures = 0

    def failed(self) -> float:
        """Count one more failure and return how long to wait, seconds."""
        self.failures += 1
        return delay_s(self.failures)

    def reset(self) -> None:
        """Record a success: the next failure is the first one again."""
        self.failures = 0


def delay_s(failures: int) -> float:
    """Return the delay after `failures` (from 1) in a row, seconds."""
    return min(FIRST_S * 2.0 ** min(failures - 1, 16), LONGEST_S)
