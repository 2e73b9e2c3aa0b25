"""How many requests one token, or one address without a token, may make."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# A page and what it loads are four requests; a script that polls makes one a second.
REQUESTS_PER_S = 20.0
REQUESTS_AT_ONCE = 60
# Wrong tokens of one address. Of 2^96 tokens nobody finds one at this rate.
FAILURES_PER_S = 0.2
FAILURES_AT_ONCE = 10
KEYS_MAX = 10_000


class RateLimit:
    """One bucket of requests for each key, which fills again with time.

    Args:
        per_s: Requests that a bucket gains a second.
        at_once: Requests that a full bucket holds.
        monotonic: Tells the time, seconds.
    """

    def __init__(self, per_s: float, at_once: int, *, monotonic: Callable[[], float]) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> int:
        """Return whole seconds until `key` may make a request; 0: now."""
        missing = 1.0 - self._level(key)
        return max(0, math.ceil(missing / self._per_s))

    def take(self, key: str) -> int:
        """Count one request of `key`; return 0, or in how many seconds it may be made instead."""
        wait_s = self.wait_s(key)
        if wait_s == 0:
            self._put(key, self._level(key) - 1.0)
        return wait_s

    def _level(self, key: str) -> float:
        level, at_s = self._buckets.get(key, (float(self._at_once), self._monotonic()))
        return min(float(self._at_once), level + (self._monotonic() - at_s) * self._per_s)

    def _put(self, key: str, level: float) -> None:
        self._buckets[key] = (level, self._monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > KEYS_MAX:
            # The key that has waited longest: its bucket is the fullest, nearly always.
            self._buckets.popitem(last=False)
