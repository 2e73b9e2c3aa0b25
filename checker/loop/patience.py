"""Budgets of waiting: how long deliveries may wait in all for missing real topics (ADR 11). Pure.

Ops of a pair apply in order, so a delivery that waits delays all later deliveries of the pair, of
any group. Each producer group has a budget. Each pair has one too, because clients can invent
groups. A budget is one number, the moment at which it is full again. Each millisecond of waiting
moves this moment by REFILL ms.

    The grace and the group's budget are 60 s. A COMMIT of 12:00:00 waits until 12:01:00, in vain.
    The budget is full again at 15:20:00. A COMMIT of 12:50:00 may wait 15 s, one of 12:05:00 may
    not wait at all.

A wait is measured from the append time of the op, and a pair's budget is committed with its
offsets. So a worker that reads the op again, after a restart or a rebalance, ends the wait at the
same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.loop.pair import Awaited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.loop.pair import Pair
    from halfbridge.checker.loop.routes import Lack

# Each 200 ms refill 1 ms of a budget. A client that always names missing topics delays a pair for
# 0.5 % of the time, which a 99th percentile does not see.
REFILL = 200
# The budget of a pair is this many times the grace of a group: if one group has used up its grace,
# another group still has its own.
GROUPS_PER_PAIR = 2
# A shorter wait is not worth it: to create a topic takes longer, and brokers learn of a topic one
# after the other.
LEAST_MS = 2_000
# Half messages name groups. Beyond this number the group with the fullest budget is forgotten; the
# budgets of pairs still apply.
GROUPS_MAX = 10_000


class Patience:
    """The budgets of a worker: those of groups in memory, those of pairs also in their offsets.

    Args:
        grace_ms: The longest wait for a missing topic, with full budgets.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._pairs: dict[int, int] = {}  # partition -> when full again, in partition time
        self._groups: dict[str, int] = {}  # group -> when full again, monotonic

    def awaited(
        self, pair: Pair, lacks: Iterable[Lack], now_ms: int, monotonic_ms: int
    ) -> Awaited | None:
        """Return which of `lacks` may still wait; None if none may.

        Args:
            pair: The pair of the deliveries.
            lacks: Deliveries whose real topic is missing.
            now_ms: Partition time.
            monotonic_ms: Monotonic time.
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
        """Return the groups of deliveries that wait no longer for lack of budget."""
        return [
            lack.delivery.producer_group
            for lack in lacks
            if now_ms - lack.delivery.op_append_ms < lack.limit_ms
            and self._allowed_ms(pair, lack, now_ms, monotonic_ms) < lack.limit_ms
        ]

    def spend(self, pair: Pair, awaited: Awaited, now_ms: int, monotonic_ms: int) -> None:
        """Record that the plan no longer waits, and charge the budgets for the wait."""
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
        """Return how long a delivery may wait in all: what its budgets had left at first."""
        append_ms = lack.delivery.op_append_ms
        pair_ms = _left(self._full_ms(pair, now_ms), GROUPS_PER_PAIR * self._grace_ms, append_ms)
        began_ms = monotonic_ms - (now_ms - append_ms)
        group_full_ms = self._groups.get(lack.delivery.producer_group, 0)
        group_ms = _left(group_full_ms, self._grace_ms, began_ms)
        allowed_ms = min(lack.limit_ms, pair_ms, group_ms)
        return allowed_ms if allowed_ms >= min(LEAST_MS, lack.limit_ms) else 0

    def _full_ms(self, pair: Pair, now_ms: int) -> int:
        # A dropped ledger has forgotten the charge for the plan that was dropped with it.
        full_ms = max(self._pairs.get(pair.partition, 0), pair.ledger.waits_full_ms)
        # No wait can make it later than this: a broker's clock was ahead, and the value is ignored.
        is_possible = full_ms <= now_ms + GROUPS_PER_PAIR * self._grace_ms * REFILL
        return full_ms if is_possible else 0


def _left(full_ms: int, most_ms: int, at_ms: int) -> int:
    """Return what is left at `at_ms` of a budget of `most_ms` that is full again at `full_ms`."""
    missing_ms = -(-max(0, full_ms - at_ms) // REFILL)
    return max(0, most_ms - missing_ms)


def _after(full_ms: int, most_ms: int, waited_ms: int, at_ms: int) -> int:
    """Return when a budget is full again after a wait that began at `at_ms`; at worst, empty."""
    missing_ms = max(0, full_ms - at_ms) + waited_ms * REFILL
    return at_ms + min(missing_ms, most_ms * REFILL)
