"""Playbook cases: duplicates, late halves, copies, put back by window, immunity of several."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.plan import Count
from tests.playbook import (
    MINUTE_MS,
    TIMEOUT_MS,
    Playbook,
    asked,
    commit,
    counted,
    dead,
    delivered,
    half,
    nobody_asked,
    nothing,
    op_end,
    put_back,
    read_ops,
    restart,
    unknown,
    unread,
    wait,
)

# --- rule 7: the first half wins -----------------------------------------------------------


def test_a_duplicate_does_not_age_its_transaction_anew() -> None:
    """Checks fall due by the first half's append time."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS - 1) >> half("A") >> op_end << nothing
    book << nobody_asked >> wait(1) >> op_end << nothing << asked("A")


# --- copies --------------------------------------------------------------------------------


def test_a_copy_stands_for_its_original() -> None:
    """H moves past the original when the copy is committed, and rests on the copy."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    assert (book.progress.half, book.progress.rebuild_to) == (1, 2)
    book << nothing
    assert book.progress.half == 1
    book >> wait(1) << nothing
    assert book.progress.half == 1
    book >> commit("A") << delivered("A")
    assert book.plan.deliveries[0].messages[0].origin == 0
    assert book.progress.half == book.log.half_end


def test_all_messages_are_put_back_together() -> None:
    """A transaction never stands half below H and half above."""
    book = Playbook() >> half("A", 0) >> half("A", 1) >> unknown("A", 1)
    book << put_back("A", "answer", 1, 0) + put_back("A", "answer", 1, 1)
    book >> wait(1) << nothing >> restart >> commit("A", count=2) << delivered("A", 0, 1)


def test_a_decision_may_come_while_copies_are_in_flight() -> None:
    """Copies that come back after the decision are nothing new."""
    book = Playbook() >> half("A") >> unread(unknown("A", 1), commit("A")) >> read_ops
    book << delivered("A") + put_back("A", "answer", 1) >> wait(1) << nothing
    assert book.progress.half == book.log.half_end
    book >> restart << nothing >> commit("A") << nothing << counted(Count.DUPLICATE)


def test_two_answers_may_be_counted_before_the_first_copy_is_back() -> None:
    """Each counted answer writes a copy; the newest stands in the end."""
    book = Playbook() >> half("A") >> unread(unknown("A", 1), unknown("A", 2)) >> read_ops
    book << put_back("A", "answer", 1) + put_back("A", "answer", 2)
    book.reader.read_half(1)
    assert book.ledger._book.held.lowest().unread_copies == {0: 1}
    book >> wait(1) << nothing >> restart << nothing
    book >> unknown("A", 3) << put_back("A", "answer", 3) >> wait(1) >> commit("A")
    book << delivered("A")
    assert book.plan.deliveries[0].check_times == 3


def test_a_message_that_comes_while_copies_are_in_flight_holds_h() -> None:
    """The new message stands below the copies; H waits for it."""
    book = Playbook() >> half("A", 0) >> unread(unknown("A", 1), half("A", 1)) >> read_ops
    book << put_back("A", "answer", 1) >> wait(1) << nothing
    assert book.progress.half == 1
    book >> commit("A") << delivered("A", 0, 1)


def test_a_copy_that_nobody_wrote_changes_nothing() -> None:
    """A forged copy does not replace what stands."""
    forged = half("A", origin_offset=0, check_times=14, first_append_timestamp=1)
    book = Playbook() >> half("A") << nothing >> forged << nothing << counted(Count.DUPLICATE)
    book >> commit("A") << delivered("A")
    assert book.plan.deliveries[0].messages[0].offset == 0
    assert book.plan.deliveries[0].check_times == 0


def test_a_copy_from_the_future_is_asked_about() -> None:
    """A forged copy that claims a first append time years ahead still falls due, and others too."""
    far = half("A", origin_offset=0, first_append_timestamp=1 << 50)
    book = Playbook() << nothing >> far >> half("B") >> wait(TIMEOUT_MS) >> op_end << nothing
    book << asked("A") << asked("B")


# --- 5.3: the window rule ------------------------------------------------------------------


def test_the_oldest_undecided_is_put_back_by_records() -> None:
    """When H lags more than the window and four records an undecided half, H moves up."""
    book = Playbook(republish_window_records=10) >> half("A") << nothing
    for number in range(13):
        book >> half(f"T{number}") >> commit(f"T{number}") << delivered(f"T{number}")
        assert book.progress.half == 0
    book >> half("B") >> commit("B") << delivered("B") + put_back("A", "window")
    assert book.progress.half == 15
    book >> commit("A") << delivered("A")


def test_the_oldest_undecided_is_put_back_by_bytes() -> None:
    """The window is bounded in bytes likewise."""
    book = Playbook(republish_window_bytes=1_000) >> half("A") << nothing
    book >> half("B", size_bytes=1_300) >> commit("B") << delivered("B")
    book >> half("C", size_bytes=1) >> commit("C") << delivered("C") + put_back("A", "window")


def test_the_window_is_kept_within_the_bounds_of_a_plan() -> None:
    """Neither records nor bytes of one plan grow beyond their limit by put back."""
    book = Playbook(republish_window_records=1) << nothing
    for number in range(20):
        book >> unread(half(f"T{number}", size_bytes=100))
    for number in range(20, 120):
        book >> unread(half(f"T{number}"), commit(f"T{number}"))
    book.reader.read()
    book.size_bytes_max = 10_200
    assert len(book.take_plan().put_backs) == 2
    book.commit()
    book.records_max, book.size_bytes_max = 3, 1 << 30
    assert len(book.take_plan().put_backs) == 3


@pytest.mark.parametrize("undecided", [1, 7, 50])
def test_copies_stay_below_a_third_of_what_is_read(undecided: int) -> None:
    """Write amplification by the window rule is bounded, whatever part stays undecided."""
    book = Playbook(republish_window_records=0)
    for number in range(undecided):
        book >> half(f"U{number}")
    copies = 0
    for number in range(2_000):
        book >> half(f"T{number}") >> commit(f"T{number}")
        copies += len(book.take_plan().put_backs)
        book.commit()
    assert 0 < copies <= book.log.half_end / 3


def test_an_index_that_came_twice_is_one_message() -> None:
    """A duplicate of a later message is one as well."""
    book = Playbook() << nothing >> half("A", 0) >> half("A", 1) >> half("A", 1) << nothing
    book << counted(Count.DUPLICATE)
    book >> commit("A", count=2) << delivered("A", 0, 1)


# --- immunity ------------------------------------------------------------------------------


def test_the_longest_immunity_of_a_transaction_counts() -> None:
    """A later message may ask for more time for all of them."""
    book = Playbook() >> half("A", 0) >> half("A", 1, immunity_ms=MINUTE_MS)
    book >> wait(TIMEOUT_MS) >> op_end << nothing << nobody_asked
    book >> wait(MINUTE_MS - TIMEOUT_MS) >> op_end << nothing << asked("A")


def test_immunity_is_the_same_after_a_restart() -> None:
    """A rebuilt ledger waits as long."""
    book = Playbook() >> half("A", 0) >> half("A", 1, immunity_ms=MINUTE_MS) << nothing
    book >> restart >> wait(MINUTE_MS - 1) >> op_end << nothing << nobody_asked
    book >> wait(1) >> op_end << nothing << asked("A")


def test_immunity_that_comes_after_the_first_check_is_too_late() -> None:
    """Who was asked already is asked again by the interval."""
    book = Playbook() >> half("A", 0) >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A")
    book >> half("A", 1, immunity_ms=1 << 40) >> wait(30_000) >> op_end << nothing
    book << asked("A", attempt=2)


def test_late_messages_are_dead_lettered_each_once() -> None:
    """Every late record is buried, also when one index comes twice."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> half("A", 1) << dead("A", "LATE", 1) >> half("A", 1) << dead("A", "LATE", 1) << nothing
