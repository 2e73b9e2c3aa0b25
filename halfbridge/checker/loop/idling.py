"""How long the loop may wait for records before something of its pairs is due. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.loop.pair import Pair

# How long the loop waits for records when nothing is due. Bounds the delay of a stop signal and of
# brokers' answers.
IDLE_S = 0.1
# The wait while something overdue waits for the pacer, a topic or the op end.
DUE_S = 0.01


def idle_s(pairs: Iterable[Pair], now: float, look_at: float) -> float:
    """Return how long to wait, seconds; 0 if a pair has work.

    Args:
        pairs: The pairs that are served.
        now: Monotonic seconds.
        look_at: When topics must be looked up at the latest.
    """
    wait_s = max(0.0, min(IDLE_S, look_at - now))
    for pair in pairs:
        if pair.has_work and pair.held is None:
            return 0.0
        if pair.ledger.waits_for_half:
            wait_s = min(wait_s, DUE_S)  # a proof of the half end does not come as a record
        due_ms = pair.ledger.next_due_ms()
        if due_ms is not None:
            until_s = (due_ms - pair.now_ms(now)) / 1000
            # Overdue: it waits for the pacer, a topic or the op end.
            wait_s = min(wait_s, until_s if until_s > 0 else DUE_S)
    return wait_s
