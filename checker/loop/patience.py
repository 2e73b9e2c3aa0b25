"""How long deliveries may wait for real topics that are missing, in all (ADR 11). Pure.

Ops of a pair apply in order, so a delivery that waits holds up those behind it, of whatever group.
What is bounded is how long in all: a budget for each producer group, and one for each pair, since
groups can be invented. A budget is one number, the moment at which it is full again; for each
millisecond of waiting this moves REFILL ms ahead.

    grace 60 s, budget of a group: 60 s. Its COMMIT of 12:00:00 waits until 12:01:00, in vain; the
    budget is full again at 15:20:00. One of 12:50:00 may wait 15 s, one of 12:05:00 not at all.

All waits are counted from the append time of the op, and a pair's budget is committed with its
offsets: whoever meets the op again, after a restart or a rebalance, comes to the same end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.routes import Lack

# So many ms give one ms of waiting back. Whoever goes on naming missing topics holds a pair up for
# 1 ms in 200: less than the one in a hundred that a 99th percentile sees.
REFILL = 200
# A pair has so many times the grace of one group: when one group has used up its grace, another
# group still has its own.
GROUPS_PER_PAIR = 2
# Less than that is not worth waiting for: who makes a topic needs longer, and brokers learn of it
# one after the other.
LEAST_MS = 2_000
# Groups are named by half messages. One more makes that one forgotten which has most left; the
# pairs' budgets hold all the same.
GROUPS_MAX = 10_000


class Awaited(NamedTuple):
    """What a plan waits for, as far as budgets pay for it.

    Attributes:
        since_ms: Append time of the first op that waits (partition time).
        limit_ms: How long the longest wait may be.
        groups: Whose they are.
        topics: Which real topics, or partitions of them, are missing.
    """

    since_ms: int
    limit_ms: int
    groups: frozenset[str]
    topics: frozenset[str] = frozenset()


class Patience:
    """The budgets of one worker: of groups for its life, of pairs as their offsets have them.

    Args:
        grace_ms: How long a missing topic is waited for when the budgets are full.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._pairs: dict[int, int] = {}  # partition -> when full again, in partition time
        self._groups: dict[str, int] = {}  # group -> when full again, monotonic

    def awaited(
        self, pair: Pair, lacks: Iterable[Lack], now_ms: int, monotonic_ms: int
    ) -> Awaited | None:
        """Return what of `lacks` may still be waited for; None: nothing.

        Args:
            pair: Whose deliveries they are.
            lacks: Deliveries whose real topic is missing.
            now_ms: Partition time.
            monotonic_ms: The worker's own.
        """
        waiting = [
            (lack, allowed_ms)
            for lack in lacks
            if (allowed_ms := self._allowed_ms(pair, lack, now_ms, monotonic_ms))
            and now_ms - lack.delivery.op_append_ms < allowed_ms
        ]
        if not waiting:
            return None
        return Awaited(
            min(lack.delivery.op_append_ms for lack, _ in waiting),
            max(allowed_ms for _, allowed_ms in waiting),
            frozenset(lack.delivery.producer_group for lack, _ in waiting),
            frozenset().union(*(lack.topics for lack, _ in waiting)),
        )

    def cut_short(
        self, pair: Pair, lacks: Iterable[Lack], now_ms: int, monotonic_ms: int
    ) -> list[str]:
        """Return the groups of deliveries that would wait on, had their budgets more left."""
        return [
            lack.delivery.producer_group
            for lack in lacks
            if now_ms - lack.delivery.op_append_ms < lack.limit_ms
            and self._allowed_ms(pair, lack, now_ms, monotonic_ms) < lack.limit_ms
        ]

    def spend(self, pair: Pair, awaited: Awaited, now_ms: int, monotonic_ms: int) -> None:
        """Take that the plan waits no longer, and have the budgets pay for it."""
        waited_ms = max(0, min(now_ms - awaited.since_ms, awaited.limit_ms))
        full_ms = _after(
            self._full_ms(pair, now_ms),
            GROUPS_PER_PAIR * self._grace_ms,
            waited_ms,
            awaited.since_ms,
        )
        self._pairs[pair.partition] = pair.ledger.waits_full_ms = full_ms
        began_ms = monotonic_ms - (now_ms - awaited.since_ms)
        for group in awaited.groups:
            before_ms = self._groups.pop(group, 0)
            if len(self._groups) >= GROUPS_MAX:
                del self._groups[min(self._groups, key=self._groups.__getitem__)]
            self._groups[group] = _after(before_ms, self._grace_ms, waited_ms, began_ms)

    def _allowed_ms(self, pair: Pair, lack: Lack, now_ms: int, monotonic_ms: int) -> int:
        """Return how long a delivery may wait in all; what its budgets had left when it began."""
        append_ms = lack.delivery.op_append_ms
        pair_ms = _left(self._full_ms(pair, now_ms), GROUPS_PER_PAIR * self._grace_ms, append_ms)
        began_ms = monotonic_ms - (now_ms - append_ms)
        group_full_ms = self._groups.get(lack.delivery.producer_group, 0)
        group_ms = _left(group_full_ms, self._grace_ms, began_ms)
        allowed_ms = min(lack.limit_ms, pair_ms, group_ms)
        return allowed_ms if allowed_ms >= min(LEAST_MS, lack.limit_ms) else 0

    def _full_ms(self, pair: Pair, now_ms: int) -> int:
        # A ledger that was dropped with its plan has forgotten what that one had to pay.
        full_ms = max(self._pairs.get(pair.partition, 0), pair.ledger.waits_full_ms)
        # No wait makes it later than that: a broker's clock was ahead, and is not believed.
        is_possible = full_ms <= now_ms + GROUPS_PER_PAIR * self._grace_ms * REFILL
        return full_ms if is_possible else 0


def _left(full_ms: int, most_ms: int, at_ms: int) -> int:
    """Return what is left at `at_ms` of a budget of `most_ms` that is full again at `full_ms`."""
    missing_ms = -(-max(0, full_ms - at_ms) // REFILL)
    return max(0, most_ms - missing_ms)


def _after(full_ms: int, most_ms: int, waited_ms: int, at_ms: int) -> int:
    """Return when it is full again after a wait that began at `at_ms`; never beyond empty."""
    missing_ms = max(0, full_ms - at_ms) + waited_ms * REFILL
    return at_ms + min(missing_ms, most_ms * REFILL)
