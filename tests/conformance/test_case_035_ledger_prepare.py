"""Conformance cases 35 and 38: the records of the half topic, judged by the ledger."""

from halfbridge.checker.core.plan import Count
from tests.playbook import (
    TIMEOUT_MS,
    Playbook,
    asked,
    commit,
    counted,
    delivered,
    half,
    nothing,
    op_end,
    wait,
)


def test_case_035_forged_check_times_of_an_original_do_not_count() -> None:
    """An original that claims to have been checked 14 times is asked for the first time."""
    book = Playbook() << nothing
    book >> half("A", check_times=14) << nothing
    book >> wait(TIMEOUT_MS) >> op_end << asked("A", 1)


def test_case_038_a_repeated_half_is_delivered_once() -> None:
    """A send that was retried after it had been stored leaves a duplicate, which is nothing."""
    book = Playbook() << nothing
    book >> half("A") >> half("A") << nothing << counted(Count.DUPLICATE)
    book >> commit("A", 1) << delivered("A")


def test_case_038_also_when_the_repeat_comes_after_the_decision() -> None:
    """It does not become a transaction of its own, that would be checked for ever."""
    book = Playbook() << nothing
    book >> half("A") >> commit("A", 1) << delivered("A")
    book >> half("A") << nothing << counted(Count.DUPLICATE)
    assert book.ledger.held_halves == 0
