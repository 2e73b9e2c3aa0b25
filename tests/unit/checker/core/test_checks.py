"""Playbook cases: who is asked when, how often, and what becomes of those nobody answers for."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.schedule import STALE_MAX
from halfbridge.serde.protocol import NO_APPEND_MS, State
from tests.playbook import (
    HOUR_MS,
    INTERVAL_MS,
    MINUTE_MS,
    TIMEOUT_MS,
    Playbook,
    all_asked,
    asked,
    commit,
    counted,
    dead,
    delivered,
    discard_written,
    half,
    half_without_time,
    metadata,
    nobody_asked,
    nothing,
    nothing_counted,
    op_end,
    put_back,
    restart,
    unknown,
    wait,
)


def test_an_attempt_that_failed_is_not_one_that_nobody_answered() -> None:
    """Somebody was there and could not tell: the next request is no sign of an empty group."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A", attempt=1)
    book >> unknown("A", 0) << nothing << counted(Count.ATTEMPT_FAILED)
    book >> wait(INTERVAL_MS) >> op_end << nothing << asked("A", attempt=2)
    book << nothing << nothing_counted
    book >> wait(2 * INTERVAL_MS) >> op_end << nothing << asked("A", attempt=3)
    book << nothing << counted(Count.CHECK_EXPIRED)


def test_an_op_end_of_earlier_does_not_confirm_what_fell_due_since() -> None:
    """The end must be asked for after the check fell due."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS - 1) >> op_end << nothing
    book >> wait(1) << nothing << nobody_asked
    assert book.ledger.wants_op_end


def test_an_unanswered_check_is_repeated_with_back_off() -> None:
    """The interval doubles up to its maximum; the check number stays, attempts count up."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A")
    waits = [INTERVAL_MS, 2 * INTERVAL_MS, 4 * INTERVAL_MS, 8 * INTERVAL_MS, 16 * INTERVAL_MS]
    for attempt, ms in enumerate([*waits, 10 * MINUTE_MS, 10 * MINUTE_MS], start=2):
        book >> wait(ms - 1) >> op_end << nothing << nobody_asked
        book >> wait(1) >> op_end << nothing << asked("A", number=1, attempt=attempt)
        book << nothing << counted(Count.CHECK_EXPIRED)


def test_an_answered_check_is_followed_by_the_next_number() -> None:
    """After an interval the next check goes out, attempt one again."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A")
    book >> unknown("A", 1) << put_back("A", "answer", 1) >> wait(INTERVAL_MS) >> op_end << nothing
    book << asked("A", number=2, attempt=1)


def test_an_answer_that_does_not_count_changes_no_due_time() -> None:
    """A failing checker is asked again by back-off, with the same number, and is not counted."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A")
    book >> unknown("A", 0) << nothing >> wait(INTERVAL_MS) >> op_end << nothing
    book << asked("A", number=1, attempt=2)


def test_first_checks_come_before_repeats() -> None:
    """A new transaction does not wait behind those that nobody answers for."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A")
    book >> wait(INTERVAL_MS - TIMEOUT_MS) >> half("B") >> wait(TIMEOUT_MS) >> op_end << nothing
    book << all_asked(asked("B"), asked("A", attempt=2))


def test_groups_take_turns() -> None:
    """A group with many open transactions does not keep the others waiting."""
    book = Playbook()
    for name in "ABCD":
        book >> half(name)
    book >> half("X", producer_group="billing") >> half("Y", producer_group="billing")
    book >> wait(TIMEOUT_MS) >> op_end << nothing
    book << all_asked(asked("A"), asked("X"), asked("B"), asked("Y"), asked("C"))
    book << all_asked(asked("D")) << nobody_asked


def test_no_more_checks_than_the_limit() -> None:
    """What is due beyond the limit stays due, and is asked with the next allowance."""
    book = Playbook() >> half("A") >> half("B") >> wait(TIMEOUT_MS) >> op_end << nothing
    assert book.ledger.checks(book.now_ms, 0) == []
    book << asked("A")
    assert book.ledger.next_due_ms() == 0
    book << asked("B") << nobody_asked


def test_the_first_message_is_shown() -> None:
    """A check shows the transaction's first message, wherever its copy stands by now."""
    book = Playbook() >> half("A", 1) >> half("A", 0) >> wait(TIMEOUT_MS) >> op_end << nothing
    (check,) = book.ledger.checks(book.now_ms, 9)
    assert check.half.metadata.message_index == 0


def test_a_check_tells_how_far_the_messages_reach() -> None:
    """An answer must cover the message that stands highest, be it the last one or a copy."""
    book = Playbook() >> half("A", 0) >> half("B") >> half("A", 1) >> wait(TIMEOUT_MS) >> op_end
    book << nothing
    assert [check.last_offset for check in book.ledger.checks(book.now_ms, 9)] == [2, 1]
    book >> unknown("A", 1) << put_back("A", "answer", 1) + put_back("A", "answer", 1, 1)
    book >> wait(INTERVAL_MS) >> op_end << nothing
    assert {check.last_offset for check in book.ledger.checks(book.now_ms, 9)} >= {4}


# --- age -----------------------------------------------------------------------------------


def _ask_until_old(book: Playbook) -> Playbook:
    book >> wait(72 * HOUR_MS) >> op_end << nothing << asked("A")
    book >> wait(INTERVAL_MS) >> op_end << nothing << asked("A", attempt=2)
    return book >> wait(2 * INTERVAL_MS) >> op_end << nothing << asked("A", attempt=3)


def test_an_answer_begins_the_asking_anew() -> None:
    """Requests that were answered are not held against a transaction."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> unknown("A", 1) << put_back("A", "answer", 1) >> wait(INTERVAL_MS) >> op_end << nothing
    book << asked("A", 2)


def test_a_restart_begins_the_asking_anew() -> None:
    """Requests of an earlier life of the worker do not count towards the age discard."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> restart >> op_end << nothing >> op_end << nothing << asked("A", attempt=1)


def test_an_age_discard_that_came_too_early_is_written_again() -> None:
    """When its own append time does not prove the age, the discard is refused and repeated."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> wait(4 * INTERVAL_MS) >> op_end << nothing << nobody_asked
    behind = 73 * HOUR_MS
    book.now_ms -= behind
    book << discard_written("A", "AGE")
    book.now_ms += behind
    book >> wait(0) << nothing << counted(Count.INVALID_OP)
    book >> wait(10 * MINUTE_MS) >> op_end << nothing << nobody_asked
    book << discard_written("A", "AGE") >> wait(0) << dead("A", "AGE")


def test_one_age_discard_is_written_while_it_is_on_its_way() -> None:
    """Until the DISCARD is read back no second one is written."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> wait(4 * INTERVAL_MS) >> op_end << nothing << nobody_asked
    plan = book.take_plan()
    assert len(plan.discards) == 1
    book.commit()
    book.now_ms += 10 * MINUTE_MS
    book.ledger.op_end(0, book.now_ms)
    book << nobody_asked << nothing


# --- records without an append time --------------------------------------------------------


@pytest.mark.parametrize(("immunity_ms", "after_ms"), [(-1, TIMEOUT_MS), (HOUR_MS, HOUR_MS)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_has_no_append_time_is_asked_about_as_if_it_came_now(
    immunity_ms: int, after_ms: int, *, is_restarted: bool
) -> None:
    """Sooner might be before its local transaction ends; never would hold it up for good."""
    book = Playbook() >> half("B") >> commit("B") << delivered("B") >> wait(100 * HOUR_MS)
    book >> half_without_time("A", immunity_ms=immunity_ms) << nothing
    if is_restarted:
        book >> restart << nothing
    book >> op_end << nothing << nobody_asked
    book >> wait(after_ms - 1) >> op_end << nothing << nobody_asked
    book >> wait(1) >> op_end << nothing << asked("A")


def test_another_message_may_put_the_first_check_off() -> None:
    """As it may where append times are known."""
    book = Playbook() >> half_without_time("A") >> op_end << nothing << nobody_asked
    book >> half_without_time("A", 1, immunity_ms=HOUR_MS) >> op_end << nothing << nobody_asked
    book >> wait(HOUR_MS - 1) >> op_end << nothing << nobody_asked
    book >> wait(1) >> op_end << nothing << asked("A")


def test_nothing_without_an_append_time_is_asked_about_before_time_is_known() -> None:
    """A pair that has read no append time has no clock yet."""
    book = Playbook() >> half_without_time("A")
    assert book.ledger.checks(0, 9) == []
    assert book.ledger.next_due_ms() is None
    book >> op_end << nothing << nobody_asked
    assert book.ledger.next_due_ms() == book.now_ms + TIMEOUT_MS


def test_what_is_decided_is_not_kept_until_time_is_known() -> None:
    """Memory is for what is undecided."""
    book = Playbook()
    for number in range(STALE_MAX + 2):
        book.reader.ledger.half(HalfRead(number, NO_APPEND_MS, metadata(str(number)), "", 1, None))
    book << nothing
    for entry in list(book.ledger._book.entries):
        book.ledger._book.decide(entry, State.ROLLED_BACK, 0, 0)
    book.ledger.checks(0, 9)
    assert book.ledger._book.unaged == []


def test_without_an_append_time_nothing_is_given_up_for_its_age() -> None:
    """Nobody knows it; it is asked about all the same, again and again."""
    book = Playbook(readiness_before_discard_ms=0) >> half_without_time("A") >> op_end << nothing
    for attempt in range(1, 20):
        book << nobody_asked >> wait(50 * HOUR_MS) >> op_end << nothing
        book << asked("A", attempt=attempt) << nothing
