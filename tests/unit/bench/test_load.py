"""A value carries its time and number; when messages are due does not depend on their sending."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from halfbridge.bench.load import Turns, lead_in, make_keys, make_packer, scheduled, unpack_head


@pytest.mark.parametrize("size", [16, 1024])
def test_round_trip(size: int) -> None:
    """Time and number come back, negative numbers too; the value has its size."""
    value = make_packer(size)(2**62, -7)

    assert unpack_head(value) == (2**62, -7)
    assert len(value) == size


def test_too_small() -> None:
    """A value without room for time and number is refused."""
    with pytest.raises(ValueError, match="at least 16"):
        make_packer(15)


def test_keys() -> None:
    """There are as many keys as asked for, or one null key."""
    assert make_keys(0) == [None]
    assert len(set(make_keys(10))) == 10


def test_due_times_are_a_ladder_that_nobody_waits_at() -> None:
    """Equal steps, none handed out before its time, and a slow taker gets the late ones at once."""
    taken = []
    for number, due_ns in scheduled(iter(range(20)), 1_000):
        taken.append((number, due_ns, time.monotonic_ns()))
        if number == 5:
            time.sleep(0.01)  # the fault itself: whoever sends is slow
    steps = {after[1] - before[1] for before, after in itertools.pairwise(taken)}

    assert [each[0] for each in taken] == list(range(20))
    assert steps == {1_000_000}
    assert all(due_ns <= now_ns for _, due_ns, now_ns in taken)
    assert taken[6][2] - taken[6][1] >= 5_000_000


def test_lead_in() -> None:
    """Two seconds of messages go in front; without a rate there are none."""
    assert (lead_in(200), lead_in(0)) == (400, 0)


def test_turns_give_each_item_once() -> None:
    """Many threads share a schedule, and then each gets None."""
    turns = Turns(iter([(number, number) for number in range(1_000)]))

    def take() -> list[int]:
        return [turn[0] for turn in iter(turns, None)]

    with ThreadPoolExecutor(4) as pool:
        taken = [each.result() for each in [pool.submit(take) for _ in range(4)]]

    assert sorted(itertools.chain.from_iterable(taken)) == list(range(1_000))
