"""Conformance cases 73 to 79: op records, and how far the daemon has come with them."""

from halfbridge.checker.core.plan import Count
from tests.playbook import (
    Playbook,
    commit,
    counted,
    delivered,
    half,
    junk_letter,
    junk_op,
    nothing,
    restart,
    rollback,
)


def test_case_075_a_decision_about_what_was_passed_is_done_at_once() -> None:
    """Decided and passed by H: a repeat waits for nothing and changes nothing."""
    book = Playbook() << nothing
    book >> half("A") >> half("B") >> commit("A") >> commit("B")
    book << (*delivered("A"), *delivered("B")) << nothing
    book >> commit("A") << nothing << counted(Count.DUPLICATE)
    book << nothing
    assert (book.progress.half, book.progress.op) == (2, 3)


def test_case_076_an_unreadable_op_is_passed_and_kept() -> None:
    """It becomes a dead letter, is counted, and the next op is applied."""
    book = Playbook() << nothing
    book >> half("A") >> junk_op("no body") >> commit("A")
    book << (*delivered("A"), *junk_letter("op", 0)) << nothing
    assert book.progress.op == 2


def test_case_077_a_repeated_decision_holds_no_offset_back() -> None:
    """O passes both."""
    book = Playbook() << nothing
    book >> half("A") >> commit("A") >> commit("A") << delivered("A") << nothing
    assert book.progress.op == 2


def test_case_078_h_stops_at_the_first_undecided_half() -> None:
    """Decided out of order, H moves when the gap closes, and then past all of them."""
    book = Playbook() << nothing
    book >> half("A") >> half("B") >> half("C") >> commit("C") << delivered("C") << nothing
    assert book.progress.half == 0
    book >> rollback("B") << nothing
    assert book.progress.half == 0
    book >> commit("A") << delivered("A") << nothing
    assert book.progress.half == 3
    book >> restart << nothing
    assert book.progress.half == 3
