"""When the group's member is replaced, and when a fence means another worker."""

from __future__ import annotations

import pytest

from halfbridge.checker.errors import SlotTakenError
from halfbridge.checker.loop.intake import TROUBLE_S, MemberFailures
from halfbridge.kafka.errors import UNREACHABLE, Code, KafkaFailure
from tests.fake_ports import Clock

FENCED = KafkaFailure(Code.FENCED_INSTANCE_ID, "fenced", is_fatal=True)
CUT = KafkaFailure(next(iter(UNREACHABLE)), "the broker is not there")


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def test_a_reason_stands_until_the_member_is_replaced(clock: Clock) -> None:
    """No new member can be made while a certificate is being replaced: each turn tries again."""
    failures = MemberFailures(clock)
    assert failures.why_replace() == ""
    failures.give_up("stalled")
    assert [failures.why_replace() for _ in range(2)] == ["stalled", "stalled"]
    failures.replaced()
    assert failures.why_replace() == ""


@pytest.mark.parametrize(("silent_s", "is_other"), [(TROUBLE_S, False), (TROUBLE_S + 1, True)])
def test_a_lost_connection_excuses_a_fence_for_a_while(
    clock: Clock, silent_s: float, *, is_other: bool
) -> None:
    """A member fences itself where brokers were out of reach; else another worker has the slot."""
    failures = MemberFailures(clock)
    failures.reported(CUT)
    assert failures.why_replace() == ""
    clock.now += silent_s
    failures.note(FENCED)
    if is_other:
        with pytest.raises(SlotTakenError, match="--slot"):
            failures.why_replace()
    else:
        assert failures.why_replace() == "the consumer could not go on (fenced)"


def test_one_lost_connection_excuses_one_fence(clock: Clock) -> None:
    """Two workers on one slot would otherwise take it from each other for ever."""
    failures = MemberFailures(clock)
    failures.connection_lost()
    failures.note(FENCED)
    assert failures.why_replace()
    failures.replaced()
    failures.note(FENCED)
    with pytest.raises(SlotTakenError):
        failures.why_replace()


def test_only_reports_outside_of_calls_are_lost_connections(clock: Clock) -> None:
    """A call that meets no broker says nothing about what the group has heard of the member."""
    clock.now += 2 * TROUBLE_S
    failures = MemberFailures(clock)
    failures.note(CUT)
    failures.note(FENCED)
    with pytest.raises(SlotTakenError):
        failures.why_replace()
