"""How long the loop may wait for records before something of its pairs is due. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.loop.pair import Pair

# How long the loop waits for records when nothing is due: bounds the reaction to a stop signal
# and to answers of brokers.
IDLE_S = 0.1
# What is overdue and waits for something else (pacer, topic, op end) is looked at again.
DUE_S = 0.01


def idle_s(pairs: Iterable[Pair], now: float, look_at: float) -> float:
    """Return how long to wait; 0 when a pair has work.

    Args:
        pairs: That are served.
        now: Monotonic seconds.
        look_at: When topics are to be looked up at the latest.
    """
    wait_s = max(0.0, min(IDLE_S, look_at - now))
    for pair in pairs:
        if pair.has_work and pair.held is None:
            return 0.0
        if pair.ledger.waits_for_half:
            wait_s = min(wait_s, DUE_S)  # the proof that it waits in vain comes with no record
        due_ms = pair.ledger.next_due_ms()
        if due_ms is not None:
            until_s = (due_ms - pair.now_ms(now)) / 1000
            # What is overdue waits for something else: the pacer, a topic, the op end.
            wait_s = min(wait_s, until_s if until_s > 0 else DUE_S)
    return wait_s
