"""How long deliveries may wait for missing topics, in all: budgets of groups and of pairs."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Delivery
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.patience import GROUPS_MAX, LEAST_MS, REFILL, Patience
from halfbridge.checker.loop.routes import Lack
from halfbridge.serde.progress import START, Progress, parse_progress
from halfbridge.serde.records import new_half
from tests.ledger_log import SETTINGS

GRACE_MS = 60_000
BEGIN_MS = 1_700_000_000_000
# Of the worker's monotonic clock, which has nothing to do with partition time.
UP_MS = 5_000


def _pair(progress: Progress = START, partition: int = 0) -> Pair:
    publisher: Any = None
    return Pair(partition, SETTINGS, progress, publisher, began=0.0)


def _lack(append_ms: int, group: str = "g", limit_ms: int = GRACE_MS) -> Lack:
    metadata = new_half(
        transaction_id="t", born_timestamp=0, producer_group=group, real_topic="none"
    )
    half = HalfRead(0, 0, metadata, "", 0, None)
    return Lack(Delivery("t", group, (half,), 0, 0, 0, BEGIN_MS + append_ms), limit_ms)


def _waits(patience: Patience, pair: Pair, lack: Lack, at_ms: int) -> bool:
    return patience.awaited(pair, [lack], BEGIN_MS + at_ms, UP_MS + at_ms) is not None


def _wait_in_vain(patience: Patience, pair: Pair, lack: Lack, *, step_ms: int = 100) -> int:
    """Have a delivery wait as long as it may from when its op came; return until when."""
    at_ms = lack.delivery.op_append_ms - BEGIN_MS
    awaited = None
    while True:
        now = patience.awaited(pair, [lack], BEGIN_MS + at_ms, UP_MS + at_ms)
        if now is None:
            break
        awaited = now
        at_ms += step_ms
    if awaited is not None:
        patience.spend(pair, awaited, BEGIN_MS + at_ms, UP_MS + at_ms)
    return at_ms


def test_the_first_missing_topic_has_its_whole_grace() -> None:
    """A topic that is made a little late costs nobody a message, as before."""
    patience, pair = Patience(GRACE_MS), _pair()
    assert _wait_in_vain(patience, pair, _lack(0)) == GRACE_MS


def test_the_next_ones_of_the_group_wait_no_more() -> None:
    """One new name every 30 s held a pair up for ever; half the time it waited 90 s."""
    patience, pair = Patience(GRACE_MS), _pair()
    waited_ms = 0
    for number in range(120):
        began_ms = 30_000 * number
        waited_ms += _wait_in_vain(patience, pair, _lack(began_ms)) - began_ms
    hour_ms = 120 * 30_000
    assert waited_ms <= GRACE_MS + hour_ms / REFILL
    assert waited_ms > GRACE_MS


def test_groups_that_are_invented_share_what_their_pair_has() -> None:
    """Two graces, and one ms in 200 from then on."""
    patience, pair = Patience(GRACE_MS), _pair()
    waited_ms = 0
    for number in range(1_200):
        began_ms = 3_000 * number
        lack = _lack(began_ms, f"group-{number}")
        waited_ms += _wait_in_vain(patience, pair, lack) - began_ms
    hour_ms = 1_200 * 3_000
    assert waited_ms <= 2 * GRACE_MS + hour_ms / REFILL
    assert waited_ms > 2 * GRACE_MS


def test_what_one_group_used_up_leaves_another_its_grace() -> None:
    """A service that goes on naming missing topics is no other one's mistake."""
    patience, pair = Patience(GRACE_MS), _pair()
    for number in range(20):
        _wait_in_vain(patience, pair, _lack(60_000 * number, "noisy"))
    assert _wait_in_vain(patience, pair, _lack(1_200_000, "calm")) == 1_200_000 + GRACE_MS


def test_a_budget_is_full_again_by_and_by() -> None:
    """As the module says it: after 50 minutes a quarter of it."""
    patience, pair = Patience(GRACE_MS), _pair()
    minute_ms = 60_000
    assert _wait_in_vain(patience, pair, _lack(0)) == GRACE_MS
    assert not _waits(patience, pair, _lack(5 * minute_ms), 5 * minute_ms)
    lack = _lack(50 * minute_ms)
    assert _waits(patience, pair, lack, 50 * minute_ms + 14_999)
    assert not _waits(patience, pair, lack, 50 * minute_ms + 15_000)
    assert _wait_in_vain(patience, pair, _lack(200 * minute_ms)) == 200 * minute_ms + GRACE_MS


def test_a_topic_that_came_costs_only_what_was_waited() -> None:
    """Then its group has the rest of its grace for the next one."""
    patience, pair = Patience(GRACE_MS), _pair()
    awaited = patience.awaited(pair, [_lack(0)], BEGIN_MS + 10_000, UP_MS + 10_000)
    assert awaited is not None
    patience.spend(pair, awaited, BEGIN_MS + 10_000, UP_MS + 10_000)
    assert _wait_in_vain(patience, pair, _lack(20_000)) == 20_000 + 50_000 + 20_000 // REFILL


def test_a_restart_renews_no_wait() -> None:
    """It is counted from the append time of the op; the worker's life does not matter."""
    pair = _pair()
    lack = _lack(0)
    for at_ms in range(0, GRACE_MS, 10_000):
        assert _waits(Patience(GRACE_MS), _pair(), lack, at_ms)
    assert not _waits(Patience(GRACE_MS), pair, lack, GRACE_MS)


def test_a_restart_renews_no_budget_of_a_pair() -> None:
    """It is committed with the offsets, also to another worker."""
    patience, pair = Patience(GRACE_MS), _pair()
    pair.ledger.plan(0, records_max=1, size_bytes_max=1)  # what was committed is reached
    for group in ("a", "b"):
        _wait_in_vain(patience, pair, _lack(0, group))
    progress = pair.ledger.progress()
    assert progress.waits_full_ms == BEGIN_MS + 2 * GRACE_MS * REFILL
    text = progress.metadata()
    moved = _pair(parse_progress(progress.half, progress.op, text))
    assert not _waits(Patience(GRACE_MS), moved, _lack(70_000, "c"), 70_000)


def test_a_ledger_that_is_dropped_renews_no_budget() -> None:
    """Its kafka_txn failed, so what it had to pay was not committed; the worker knows."""
    patience = Patience(GRACE_MS)
    for group in ("a", "b"):
        _wait_in_vain(patience, _pair(), _lack(0, group))
    assert not _waits(patience, _pair(), _lack(70_000, "c"), 70_000)
    assert _waits(patience, _pair(partition=1), _lack(70_000, "c"), 70_000)


def test_a_clock_that_was_days_ahead_empties_a_budget_and_no_more() -> None:
    """What it owes is never more than the whole."""
    patience, pair = Patience(GRACE_MS), _pair()
    _wait_in_vain(patience, pair, _lack(0))
    _wait_in_vain(patience, pair, _lack(0, "another"), step_ms=7)
    assert pair.ledger.waits_full_ms <= BEGIN_MS + 2 * GRACE_MS * REFILL


@pytest.mark.parametrize("limit_ms", [0, 500, LEAST_MS])
def test_short_graces_are_kept(limit_ms: int) -> None:
    """Who asks for less than what is worth a wait gets that."""
    patience, pair = Patience(limit_ms), _pair()
    assert _wait_in_vain(patience, pair, _lack(0, limit_ms=limit_ms)) == limit_ms


def test_whose_waits_are_cut_short_is_told() -> None:
    """Not of those that waited as long as anybody does."""
    patience, pair = Patience(GRACE_MS), _pair()
    lack = _lack(0)
    _wait_in_vain(patience, pair, lack)
    over = BEGIN_MS + GRACE_MS, UP_MS + GRACE_MS
    assert patience.cut_short(pair, [lack], *over) == []
    assert patience.cut_short(pair, [_lack(50_000), _lack(59_000, "h")], *over) == ["g"]


def test_groups_that_are_remembered_are_bounded() -> None:
    """One more makes that one forgotten which has most left."""
    patience = Patience(GRACE_MS)
    for number in range(GROUPS_MAX + 10):
        pair = _pair(partition=number)
        awaited = patience.awaited(pair, [_lack(number, f"g{number}")], BEGIN_MS + number + 9, 9)
        assert awaited is not None
        patience.spend(pair, awaited, BEGIN_MS + number + 9, UP_MS + number + 9)
    assert len(patience._groups) == GROUPS_MAX
    assert "g0" not in patience._groups
    assert f"g{GROUPS_MAX + 9}" in patience._groups


def test_a_budget_from_a_clock_that_was_ahead_is_not_believed() -> None:
    """A broker's clock was a year ahead once: no wait makes a budget empty for so long."""
    year_ms = 365 * 24 * 3_600_000
    patience, pair = Patience(GRACE_MS), _pair(Progress(0, 0, 0, 0, 0, BEGIN_MS + year_ms))
    assert _waits(patience, pair, _lack(0), 0)
