"""Giving transactions up: decided in the op log, kept as dead letters (DESIGN.md, The walk)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.serde.headers import DEAD
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.integration.installation import GROUP

if TYPE_CHECKING:
    from tests.integration.installation import Installation
    from tests.integration.tail import Record

pytestmark = pytest.mark.broker

AGE_MS = 1500
AGING = {
    "transaction_age_ms_max": AGE_MS,
    "transaction_timeout_ms": 100,
    "check_interval_ms": 100,
    "check_backoff_ms_max": 100,
}


def _discards(installation: Installation) -> list[Record]:
    records = installation.tail(installation.names.op).to_end()
    return [each for each in records if each.op.kind is OpKind.DISCARD]


@pytest.mark.feature
def test_the_last_counted_unknown_discards(installation: Installation) -> None:
    """A DISCARD in the op log, and dead letters that hold the half messages byte-exact."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start(check_count_max=2, slot="east-1")
    headers = [("h", b"1"), ("h", None)]
    half = installation.half(orders, key=None, value=b"\x00", headers=headers)
    second = installation.half(orders, half.transaction_id, value=None, message_index=1)
    installation.answer_unknown(second, 1)
    installation.answer_unknown(second, 2)

    letters = installation.dead(2)
    installation.fence()

    (discard,) = _discards(installation)
    op = discard.op
    assert (op.transaction_id, op.source) == (half.transaction_id, OpSource.CHECKER)
    assert (op.reason, op.check_number, op.producer_group) == ("CHECK_TIMES", 2, GROUP)
    assert "east-1" in op.actor
    assert [(each.key, each.value) for each in letters] == [(None, b"\x00"), (b"key", None)]
    assert letters[0].headers[:2] == headers
    assert [name for name, _ in letters[0].headers].count(DEAD) == 1
    for index, letter in enumerate(letters):
        assert letter.half.message_index == index
        assert letter.dead.reason is DeadReason.CHECK_TIMES
        assert (letter.dead.check_times, letter.dead.op_offset) == (2, discard.offset)
        assert letter.dead.decided_timestamp == discard.timestamp_ms
    assert installation.delivered(orders) == []
    daemon.counts("halfbridge_discards_total", 1, reason="CHECK_TIMES")
    daemon.counts("halfbridge_dead_letters_total", 2, reason="CHECK_TIMES")


def test_what_is_discarded_stays_discarded(installation: Installation) -> None:
    """A COMMIT behind the DISCARD is a conflict; after a restart too."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start(check_count_max=1)
    half = installation.half(orders)
    installation.answer_unknown(half, 1)
    installation.dead(1)
    installation.commit(half)
    installation.fence()
    daemon.counts("halfbridge_conflicts_total", 1)
    daemon.stop()

    installation.start(check_count_max=1)
    installation.commit(half)

    assert installation.delivered(orders) == []
    assert len(installation.dead_letters()) == 1


def test_a_commit_that_stands_first_wins_over_the_discard(installation: Installation) -> None:
    """The daemon's DISCARD lost: the messages are delivered, and it is no conflict."""
    installation.make()
    orders = installation.topic("orders")
    half = installation.half(orders)
    installation.answer_unknown(half, 1)
    installation.commit(half)
    daemon = installation.start(check_count_max=1)

    assert len(installation.tail(orders).until(1)) == 1
    installation.fence()

    assert installation.dead_letters() == []
    assert daemon.metric("halfbridge_conflicts_total") == 0


@pytest.mark.feature
def test_age_discards_what_nobody_answers(installation: Installation) -> None:
    """After the maximum age and three unanswered requests, proven by the op's own append time."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start(readiness_before_discard_ms=0, **AGING)
    half = installation.half(orders, value=b"forgotten")

    (letter,) = installation.dead(1)

    assert (letter.value, letter.dead.reason) == (b"forgotten", DeadReason.AGE)
    effective = [each for each in _discards(installation) if each.offset == letter.dead.op_offset]
    assert effective[0].timestamp_ms - half.append_ms >= AGE_MS
    assert (effective[0].op.reason, effective[0].op.age_ms) == ("AGE", AGE_MS)
    assert installation.delivered(orders) == []
    daemon.counts("halfbridge_dead_letters_total", 1, reason="AGE")


def test_age_alone_discards_nothing(installation: Installation) -> None:
    """A weekend without a daemon, or one that has just come back, gives nothing up."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    half = installation.half(orders)
    installation.start(readiness_before_discard_ms=3_600_000, **AGING)

    tail = installation.tail(installation.names.check(GROUP))
    while not tail.records or tail.records[-1].check.sent_timestamp < half.append_ms + 2 * AGE_MS:
        tail.until(len(tail.records) + 1)

    assert len(tail.records) > 3
    assert _discards(installation) == []
    assert installation.dead_letters() == []


def test_a_forged_age_discard_has_no_effect(installation: Installation) -> None:
    """A DISCARD for age that comes before the age is invalid, whoever says it is the daemon."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start()
    half = installation.half(orders)
    by_age = {"source": OpSource.CHECKER, "reason": "AGE", "age_ms": 1_000 * AGE_MS}
    installation.op(OpKind.DISCARD, half, **by_age)
    installation.commit(half)

    assert len(installation.delivered(orders)) == 1
    assert installation.dead_letters() == []
    daemon.counts("halfbridge_invalid_ops_total", 1)
