"""Giving transactions up: decided in the op log, kept as dead letters (DESIGN.md, The walk)."""

import pytest

from halfbridge.serde.headers import DEAD
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.integration.installation import GROUP, Installation
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
