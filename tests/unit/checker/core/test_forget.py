"""Playbook cases: how long decisions stay known, and what T follows from it."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.settings import RECENT_MAX, RECENT_MS
from halfbridge.serde.records import OpSource
from tests.playbook import (
    SECOND_MS,
    Lines,
    Playbook,
    Step,
    commit,
    counted,
    dead,
    delivered,
    discard,
    half,
    nothing,
    op_end,
    read_half,
    read_ops,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)


def _forget(book: Playbook) -> Playbook:
    """Read a half message, and its rollback, that came so late that older decisions may go."""
    name = f"later-{book.log.half_end}"
    return book >> wait(RECENT_MS + 1) >> half(name) >> rollback(name) << nothing


def test_a_decision_is_known_for_ten_seconds() -> None:
    """A late duplicate half does not become a new transaction."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> wait(RECENT_MS) << nothing
    book >> half("A") << nothing << counted(Count.DUPLICATE)


def test_a_duplicate_that_is_read_late_counts_by_when_it_was_appended() -> None:
    """A worker that stood still, or reads a backlog, must not forget by its own time."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> unread(wait(SECOND_MS), half("A"), wait(2 * RECENT_MS)) << nothing << nothing
    book >> read_half << nothing << counted(Count.DUPLICATE)
    assert book.ledger.undecided_halves == 0


def test_a_decision_is_forgotten_after_that() -> None:
    """What comes still later is a new transaction, which is asked about."""
    book = _forget(Playbook() >> half("A") >> commit("A") << delivered("A"))
    assert book.progress.ops_from == 1
    book >> half("A") << nothing
    assert book.ledger.undecided_halves == 1


def test_a_restart_knows_recent_decisions_too() -> None:
    """A duplicate half that comes after a restart is not delivered again either."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> restart << nothing
    book >> half("A") << dead("A", "LATE")
    assert "no longer known" in book.plan.dead[0].detail
    book = Playbook() >> half("B") >> rollback("B") << nothing >> restart >> half("B") << nothing


def test_a_decision_stays_known_while_a_rebuild_would_meet_its_half() -> None:
    """As long as H is held below a decided half, T is held at its decision."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    _forget(book)
    assert (book.progress.half, book.progress.ops_from) == (0, 0)
    book >> restart << nothing >> commit("A") << nothing << counted(Count.DUPLICATE)
    book >> commit("X") << delivered("X")
    _forget(book)
    assert (book.progress.half, book.progress.ops_from) == (book.log.half_end, book.log.op_end - 1)


def test_a_late_record_keeps_its_decision_known() -> None:
    """A record at or above H that mentions a decided transaction holds its decision."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> half("X") >> half("A")
    _forget(book)
    assert book.progress.ops_from == 0
    book >> restart << nothing >> commit("X") << delivered("X")
    assert book.ledger.undecided_halves == 0


def test_copies_in_flight_keep_their_decision_known() -> None:
    """A copy that is not read back will mention the transaction once more."""
    book = Playbook() >> half("A") >> unread(unknown("A", 1), commit("A")) >> read_ops
    book.take_plan()
    book.commit()
    book.now_ms += RECENT_MS + 1
    book << nothing
    assert book.progress.ops_from == 1
    _forget(book) << nothing
    assert book.progress.ops_from == book.log.op_end - 1
    assert book.ledger.undecided_halves == 0


def test_decisions_are_forgotten_from_the_front_only() -> None:
    """One that is still needed keeps those behind it known: a rebuild reads their ops too."""
    book = Playbook() >> half("A") >> half("B") >> half("X") >> commit("B") >> commit("A")
    book << delivered("B") + delivered("A") >> half("B") << nothing
    _forget(book)
    assert book.progress.ops_from == 0
    book >> half("A") << nothing << counted(Count.DUPLICATE)


def _said_again(*again: Step) -> Playbook:
    """Have A's COMMIT forgotten while B's decision, which was said before `again`, is not."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> wait(RECENT_MS - SECOND_MS)
    book >> half("B") >> rollback("B") << nothing
    for step in again:
        book >> step << nothing
    book >> wait(2 * SECOND_MS) >> half("C") << nothing >> rollback("C") << nothing
    assert book.progress.ops_from == 1
    return book


@pytest.mark.parametrize("again", [restart, wait(0)])
@pytest.mark.parametrize(
    ("said", "late"),
    [
        ([commit("A")], dead("A", "LATE")),
        ([rollback("A")], nothing),
        ([discard("A", OpSource.CHECKER)], dead("A", "LATE")),
        ([commit("A"), rollback("A")], dead("A", "LATE")),
        ([rollback("A"), commit("A")], nothing),
        ([unknown("A", 1), discard("A", OpSource.PRODUCER), commit("A")], dead("A", "LATE")),
    ],
)
def test_a_decision_that_was_said_again_is_known_by_that(
    said: list[Step], late: Lines, again: Step
) -> None:
    """When T has passed the first op, a rebuild meets the next one: so it counts here, too."""
    book = _said_again(*said) >> again << nothing
    assert book.ledger.undecided_halves == 0
    book >> half("A") << late
    assert book.ledger.undecided_halves == 0


@pytest.mark.parametrize("again", [restart, wait(0)])
def test_what_was_said_again_is_forgotten_too(again: Step) -> None:
    """Each op keeps its transaction known for its own while, and no longer."""
    book = _said_again(commit("A"), rollback("A")) >> again << nothing
    _forget(book)
    _forget(book)
    assert book.progress.ops_from == book.log.op_end - 1
    assert len(book.ledger._book.entries) == 1
    book >> half("A") << nothing
    assert book.ledger.undecided_halves == 1


def test_what_does_not_decide_keeps_nothing_known() -> None:
    """An answer, or a discard that its writer may not say, is nothing to a rebuild either."""
    book = _said_again(unknown("A", 1), discard("A", OpSource.PRODUCER)) >> half("A") << nothing
    assert book.ledger.undecided_halves == 1
    book >> restart >> commit("A") << delivered("A")


def test_a_group_apart_that_says_it_again_stays_apart() -> None:
    """What one group said again is not forgotten with what another said under the same id."""
    theirs = {"producer_group": "billing"}
    book = Playbook() >> half("A") >> half("A", **theirs) >> commit("A", **theirs)
    book << delivered("A") >> commit("A", **theirs) << nothing >> rollback("A") << nothing
    find = book.ledger._book.entries.find
    first = find("A", 0, "billing")
    book.ledger._book.decided.forget_first()
    again = find("A", 0, "billing")
    assert first is not None
    assert again is not None
    assert (first.op_offset, again.op_offset, again.key) == (0, 1, first.key)
    book.ledger._book.decided.forget_first()
    assert find("A", 0, "billing") is None
    assert find("A", 0, "orders") is not None


def test_no_more_decisions_are_kept_than_memory_allows() -> None:
    """Beyond the limit the oldest go before their time."""
    book = Playbook() << nothing
    for number in range(RECENT_MAX + 1):
        book >> unread(half(f"T{number}"), rollback(f"T{number}"))
    book >> op_end << nothing << nothing
    assert len(book.ledger._book.entries) == RECENT_MAX
    assert book.progress.ops_from == 1


def test_nobody_keeps_more_known_by_saying_it_again() -> None:
    """Ops that repeat count like others towards the limit."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    for _ in range(RECENT_MAX + 10):
        book >> unread(rollback("A"))
    book >> op_end << nothing << nothing
    assert len(book.ledger._book.entries) == 1
    assert book.progress.ops_from == book.log.op_end - RECENT_MAX
