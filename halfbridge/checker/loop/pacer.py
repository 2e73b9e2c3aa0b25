"""Limits how many checks are sent: a rate for the worker, and a number for each producer group.

Pure; times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# A burst is the checks of 0.1 s, which is small compared to the queue of the sender.
BURST_S = 0.1
# Requests that a group has not answered, most of one worker. Half of what may wait in a member
# (`check_queue_max`, 2,000), and enough for 20,000 answers a second, each 50 ms after its request.
UNANSWERED_MAX = 1_000
# A group that is silent for so long is asked UNANSWERED_MAX more: its members may be back, and may
# not have the requests. So a group of which no member runs is asked 500 times a second. Longer than
# most checkers take, so that a slow group is asked as it answers.
SILENT_S = 2.0
# Groups that are remembered, because clients can invent groups. A group that is forgotten has room.
GROUPS_MAX = 1_000


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


@dataclass(slots=True)
class _Group:
    """What one group was asked and has not answered: when, and how much, the oldest first."""

    asked: deque[tuple[float, int]] = field(default_factory=deque)
    count: int = 0
    heard_at: float = float("-inf")
    asked_since: float | None = None  # the first request after the last answer


class Unanswered:
    """Bounds the unanswered requests of each group, so that a group is asked as fast as it answers.

    A request counts until it is answered, or until it is repeated. While a group is silent, its
    requests count for `SILENT_S` only. Example: a group answers 100 checks a second, and 10,000
    fall due. It is asked 1,000 times at once, then 100 times a second.

    Args:
        repeated_after_s: When an unanswered request is repeated (`check_interval_ms`).
    """

    def __init__(self, repeated_after_s: float) -> None:
        self._repeated_after_s = repeated_after_s
        self._groups: dict[str, _Group] = {}

    def room(self, group: str, now: float) -> int:
        """Return how many requests may be sent to a group."""
        known = self._groups.get(group)
        if known is None:
            return UNANSWERED_MAX
        is_silent = now - known.heard_at >= SILENT_S
        count_s = min(SILENT_S, self._repeated_after_s) if is_silent else self._repeated_after_s
        while known.asked and now - known.asked[0][0] >= count_s:
            known.count -= known.asked.popleft()[1]
        return UNANSWERED_MAX - known.count

    def asked(self, group: str, count: int, now: float) -> None:
        """Record that `count` requests were sent to a group."""
        known = self._groups.setdefault(group, _Group())
        if len(self._groups) > GROUPS_MAX:
            del self._groups[next(iter(self._groups))]
        known.asked.append((now, count))
        known.count += count
        if known.asked_since is None:
            known.asked_since = now

    def silent_groups(self, now: float, silent_s: float) -> list[str]:
        """Return the groups that were asked `silent_s` ago and have answered nothing since."""
        return [
            group
            for group, known in self._groups.items()
            if known.asked_since is not None and now - known.asked_since >= silent_s
        ]

    def nothing_open(self, group: str) -> None:
        """Record that a group has no transaction to answer for: its silence ends."""
        self._groups[group].asked_since = None

    def answered(self, group: str, now: float) -> None:
        """Record an answer of a group; it counts for the oldest request."""
        known = self._groups.get(group)
        if known is None:
            return
        known.heard_at = now
        known.asked_since = None
        if known.asked:
            at, count = known.asked.popleft()
            if count > 1:
                known.asked.appendleft((at, count - 1))
            known.count -= 1
