"""How many checks may be sent: in all, and to each group."""

from __future__ import annotations

from collections import deque

import pytest

from halfbridge.checker.loop.asking import (
    BURST_S,
    GROUPS_MAX,
    SILENT_S,
    UNANSWERED_MAX,
    Pacer,
    Unanswered,
)

INTERVAL_S = 30.0
TURN_S = 0.01


def _asked(answered_per_s: float, seconds: float, *, due: int, latency_s: float = 0.02) -> int:
    """Return how many requests a group was sent that answers at a rate, of `due`."""
    unanswered = Unanswered(INTERVAL_S)
    sent, waiting, credit = 0, deque[float](), 0.0
    for turn in range(round(seconds / TURN_S)):
        now = turn * TURN_S
        credit = min(credit + answered_per_s * TURN_S, max(1.0, answered_per_s * TURN_S))
        while waiting and credit >= 1 and now - waiting[0] >= latency_s:
            waiting.popleft()
            unanswered.answered("shop", now)
            credit -= 1
        count = min(unanswered.room("shop", now), due - sent)
        if count > 0:
            unanswered.asked("shop", count, now)
            waiting.extend([now] * count)
            sent += count
    return sent


def test_the_rate_bounds_all_checks() -> None:
    """A burst at once, then the rate; a long pause saves up no more than a burst."""
    pacer = Pacer(1_000)
    burst = round(1_000 * BURST_S)
    assert pacer.allowance(0.0) == burst
    pacer.spend(burst)
    assert pacer.allowance(0.05) == 50
    assert pacer.allowance(100.0) == burst


def test_a_group_that_answers_at_once_is_asked_without_a_pause() -> None:
    """10,000 are asked within half a second, 20 ms after each other."""
    assert _asked(1_000_000, 0.5, due=10_000) == 10_000


@pytest.mark.parametrize("per_s", [100, 1_000])
def test_a_slow_group_is_asked_as_it_answers(per_s: int) -> None:
    """After the first requests, one for each answer: they do not pile up in front of it."""
    seconds = 5.0
    asked = _asked(per_s, seconds, due=100_000)
    assert asked == pytest.approx(UNANSWERED_MAX + per_s * seconds, rel=0.01)


def test_a_silent_group_is_asked_again_and_again() -> None:
    """Its members may have come back without the requests of before."""
    assert _asked(0, 10 * SILENT_S - TURN_S, due=100_000) == 10 * UNANSWERED_MAX


def test_a_request_that_is_repeated_counts_once() -> None:
    """A group that answers some, and never the others, is not asked less and less for ever."""
    unanswered = Unanswered(repeated_after_s=10.0)
    unanswered.asked("shop", UNANSWERED_MAX, 0.0)
    for second in range(1, 10):
        unanswered.answered("shop", float(second))
        assert unanswered.room("shop", float(second)) == second
    unanswered.answered("shop", 9.5)
    assert unanswered.room("shop", 10.0) == UNANSWERED_MAX


def test_more_answers_than_requests_save_up_nothing() -> None:
    """An answer may come twice, or after its request no longer counts."""
    unanswered = Unanswered(INTERVAL_S)
    unanswered.asked("shop", 2, 0.0)
    for _ in range(5):
        unanswered.answered("shop", 0.1)
    unanswered.answered("nobody", 0.1)
    assert unanswered.room("shop", 0.1) == UNANSWERED_MAX
    assert unanswered.room("nobody", 0.1) == UNANSWERED_MAX


def test_invented_groups_are_forgotten() -> None:
    """The group that was asked first has room again."""
    unanswered = Unanswered(INTERVAL_S)
    for number in range(GROUPS_MAX + 1):
        unanswered.asked(f"group-{number}", 1, 0.0)
    assert unanswered.room("group-0", 0.0) == UNANSWERED_MAX
    assert unanswered.room("group-1", 0.0) == UNANSWERED_MAX - 1
