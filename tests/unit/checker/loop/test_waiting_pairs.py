"""Pairs that are left out: asked again by and by, told in health, forgotten when taken away."""

from __future__ import annotations

import pytest

from halfbridge.checker.loop.assignment import (
    ASK_AGAIN_S_MAX,
    STEADY_S,
    TAKE_AGAIN_S_MAX,
    UNHEALTHY_S,
    WaitingPairs,
)
from halfbridge.checker.status import Status
from halfbridge.kafka.stalls import LOOK_S, STALLED_S

WHY = "log end of op[1] cannot be read: no leader"


@pytest.fixture
def status() -> Status:
    """What the worker shows."""
    return Status()


@pytest.fixture
def waits(status: Status) -> WaitingPairs:
    """Nobody waits."""
    return WaitingPairs(status)


def _waiting(status: Status) -> float | None:
    return status.metrics.registry.get_sample_value("halfbridge_partitions_waiting")


def _asked_at(waits: WaitingPairs, number: int, now: float, *, until: float) -> list[float]:
    """Return when the pair is asked about, for which nobody answers."""
    times = []
    while now < until:
        if number in waits.due(now):
            times.append(now)
            waits.leave_out(number, WHY, now)
        now += 1.0
    return times


def _pause_s(waits: WaitingPairs, now: float) -> float:
    """Return after how many whole seconds pair 1 is due."""
    pause_s = 0.0
    while 1 not in waits.due(now + pause_s):
        pause_s += 1.0
    return pause_s


def test_a_pair_is_asked_about_less_and_less_often_up_to_a_limit(waits: WaitingPairs) -> None:
    """The pause doubles; a broker that is away for an hour is still noticed soon."""
    waits.leave_out(1, WHY, 0.0)
    times = _asked_at(waits, 1, 0.0, until=100.0)
    assert times[:5] == [1.0, 3.0, 7.0, 15.0, 23.0]
    assert times[-1] - times[-2] == ASK_AGAIN_S_MAX


def test_a_pair_that_is_answered_for_waits_until_it_is_served(
    waits: WaitingPairs, status: Status
) -> None:
    """Between the answer and the new beginning it is neither asked about nor left out again."""
    waits.leave_out(1, WHY, 0.0)
    waits.answered(1)
    assert (waits.numbers, waits.due(9.0), _waiting(status)) == (frozenset(), frozenset(), 1.0)
    waits.end(1)
    assert _waiting(status) == 0.0


def test_health_is_red_once_a_pair_has_waited_for_long(waits: WaitingPairs, status: Status) -> None:
    """A leader that moves is no news; however often it is asked, the first time counts."""
    waits.leave_out(1, WHY, 0.0)
    waits.show_in_health(UNHEALTHY_S - 1)
    assert status.snapshot().all_well
    waits.leave_out(1, WHY, UNHEALTHY_S - 1)
    waits.show_in_health(UNHEALTHY_S)
    assert status.snapshot().partition_errors == {1: f"waits, and is asked again: {WHY}"}


def test_a_pair_that_was_taken_away_waits_no_longer(waits: WaitingPairs, status: Status) -> None:
    """Whoever has it now asks about it."""
    waits.leave_out(1, WHY, 0.0)
    waits.leave_out(2, WHY, 0.0)
    waits.keep([2, 3])
    assert (waits.numbers, _waiting(status)) == ({2}, 1.0)
    waits.answered(1)
    assert waits.numbers == {2}


def test_a_pair_that_cannot_be_read_once_is_not_left_out(waits: WaitingPairs) -> None:
    """Most of it passes at once, and what does not is found out by asking."""
    waits.lost(1, WHY, 100.0, well_s=1.0)
    assert waits.numbers == frozenset()
    waits.lost(1, WHY, 100.0 + STEADY_S + 1, well_s=STEADY_S + 1)
    assert waits.numbers == frozenset()


def test_a_pair_that_takes_long_to_fail_again_is_left_out(waits: WaitingPairs) -> None:
    """Minutes of a rebuild are no proof that it can be read, as long as it has not come through."""
    for now in (100.0, 100.0 + STEADY_S + 1):
        waits.lost(1, WHY, now, well_s=0.0)
    assert waits.numbers == {1}


def test_a_pair_that_stalls_again_is_left_out_for_longer_and_longer(waits: WaitingPairs) -> None:
    """A stall is found after a minute or more, however soon after its new beginning it began."""
    now, pauses = 0.0, []
    waits.lost(1, WHY, now, well_s=0.0)
    for _ in range(12):
        now += STALLED_S + LOOK_S + 5
        waits.lost(1, WHY, now, well_s=5.0)
        pauses.append(_pause_s(waits, now))
        now += pauses[-1]
        waits.end(1)
    assert pauses == sorted(pauses)
    assert pauses[-1] == TAKE_AGAIN_S_MAX


def test_the_last_pair_is_tried_as_often_as_a_silent_one(waits: WaitingPairs) -> None:
    """Nobody else has to be spared."""
    now = 0.0
    for _ in range(12):
        waits.lost(1, WHY, now, well_s=0.0, are_all=True)
    assert not waits.may_be_tried(1, ASK_AGAIN_S_MAX - 1)
    assert waits.may_be_tried(1, ASK_AGAIN_S_MAX)
    assert WHY in waits.why()


def test_silent_pairs_are_asked_again_where_there_are_no_others(waits: WaitingPairs) -> None:
    """A worker that can do nothing else need not wait."""
    waits.leave_out(1, WHY, 0.0)
    assert waits.may_be_tried(1, 0.0)


def test_a_pair_that_can_never_be_read_is_taken_in_less_and_less_often(
    waits: WaitingPairs, status: Status
) -> None:
    """All pairs of the worker are rebuilt each time; asking about it would always succeed."""
    now, pauses = 0.0, []
    waits.lost(1, WHY, now, well_s=0.0)
    for _ in range(12):
        waits.lost(1, WHY, now, well_s=0.0)
        pauses.append(_pause_s(waits, now))
        now += pauses[-1]
        waits.answered(1)
        waits.show_in_health(now)
        waits.end(1)
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-2:] == [TAKE_AGAIN_S_MAX] * 2
    assert set(status.snapshot().partition_errors) == {1}
