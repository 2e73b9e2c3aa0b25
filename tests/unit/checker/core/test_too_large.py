"""Playbook cases: transactions and copies that are larger than the protocol allows."""

from __future__ import annotations

from halfbridge.checker.core.plan import Count
from halfbridge.serde.limits import STUB_BYTES_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from tests.playbook import (
    HALF_BYTES_MAX,
    HOUR_MS,
    Playbook,
    Step,
    commit,
    counted,
    dead_by_reference,
    delivered,
    discard,
    discard_for_age,
    discard_written,
    half,
    killed_before_commit,
    nothing,
    nothing_counted,
    put_back,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)

HALF_OF_IT = TRANSACTION_BYTES_MAX // 2
EXCESS = TRANSACTION_MESSAGES_MAX
TOO_LARGE = "TOO_LARGE"


def _large(name: str) -> Step:
    """Store a transaction of three messages of which two would be as much as is allowed."""
    return unread(*(half(name, index, user_bytes=HALF_OF_IT) for index in range(3)))


def _letters(name: str, reason: str = TOO_LARGE) -> tuple[str, ...]:
    return tuple(line for index in range(3) for line in dead_by_reference(name, reason, index))


def test_a_commit_of_too_many_bytes_buries_references() -> None:
    """The dead letters hold nothing of the bodies, and weigh as little."""
    book = Playbook() >> _large("A") >> half("B") >> commit("A", 3) >> commit("B")
    book << delivered("B") + _letters("A")
    assert book.plan.size_bytes == 3 * STUB_BYTES_MAX + 100
    assert [each.half.body for each in book.plan.dead] == [None] * 3
    assert (book.progress.half, book.progress.op) == (4, 2)


def test_a_rebuild_judges_likewise() -> None:
    """Whoever reads the log from any committed offset comes to the same answer."""
    book = Playbook() >> _large("A") >> commit("A", 3)
    book >> killed_before_commit
    book.reader.read()
    book << _letters("A") >> restart << nothing


def test_messages_of_an_oversize_transaction_are_buried_by_reference_whatever_decides() -> None:
    """1,000 messages of 10 MB each would be one kafka_txn of 10 GB."""
    book = Playbook() >> _large("A") >> discard("A") << _letters("A", "OPERATOR")
    book >> _large("B") >> wait(73 * HOUR_MS) >> discard_for_age("B", HOUR_MS)
    book << _letters("B", "AGE")
    book >> _large("C") >> commit("C", 1)
    book << delivered("C") + _letters("C", "EXTRA")[1:]
    book >> _large("D") >> rollback("D") << nothing


def test_a_message_beyond_the_last_index_is_excess() -> None:
    """One such message is kept, and makes the transaction too large; the next are dead at once."""
    book = (
        Playbook() >> half("A") >> half("A", EXCESS) >> half("A", EXCESS + 7) >> half("A", EXCESS)
    )
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 7) << counted(Count.DUPLICATE)
    assert book.progress.position == 4
    book >> commit("A")
    book << dead_by_reference("A", TOO_LARGE) + dead_by_reference("A", TOO_LARGE, EXCESS)


def test_excess_is_buried_once_over_restarts() -> None:
    """P says which letters stand already, and the first excess message holds H."""
    book = Playbook() >> half("A", EXCESS) >> half("A", EXCESS + 1)
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 1)
    book >> restart >> half("A", EXCESS + 2)
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 2)
    assert book.progress.half == 0
    book >> killed_before_commit >> half("A") >> commit("A")
    book << dead_by_reference("A", TOO_LARGE) + dead_by_reference("A", TOO_LARGE, EXCESS)


def test_what_was_not_committed_of_excess_is_buried_after_the_restart() -> None:
    """A kafka_txn that did not happen buried nobody."""
    book = Playbook() >> half("A", EXCESS) >> half("A", EXCESS + 1)
    book >> killed_before_commit
    book.reader.read()
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 1)


def test_an_oversize_transaction_is_discarded_in_place_of_being_put_back() -> None:
    """A copy of it would be as large, again and again; until the DISCARD is read it holds H."""
    book = Playbook() >> _large("A") >> unknown("A", 1)
    book << discard_written("A", TOO_LARGE)
    assert book.progress.half == 0
    book >> wait(1)
    book << _letters("A")
    assert book.progress.half == 3


def test_the_window_rule_discards_it_too() -> None:
    """It would hold H for ever, and the window would grow with each record behind it."""
    book = Playbook(republish_window_records=2) >> _large("A")
    for number in range(12):
        book >> half(f"B{number}") >> commit(f"B{number}")
    book << sum((delivered(f"B{number}") for number in range(12)), ()) + discard_written(
        "A", TOO_LARGE
    )
    book << nothing << nothing_counted
    book >> wait(1) << _letters("A")


def test_a_copy_that_does_not_fit_discards_its_transaction() -> None:
    """The half topic took the original to the last byte, and a copy is a few bytes longer."""
    full = half("A", size_bytes=HALF_BYTES_MAX)
    book = Playbook() >> full >> unknown("A", 1) << discard_written("A", TOO_LARGE)
    book >> restart >> wait(1)
    book << ("dead A[0] TOO_LARGE",)
    almost = half("B", size_bytes=HALF_BYTES_MAX - 1)
    book >> almost >> unknown("B", 1) << put_back("B", "answer", 1)


def test_a_decision_before_that_discard_wins() -> None:
    """Rule 2: the DISCARD stands behind it in the op log."""
    book = Playbook() >> half("A", size_bytes=HALF_BYTES_MAX)
    book >> unread(unknown("A", 1), commit("A"))
    book.reader.read_op(1)
    book << discard_written("A", TOO_LARGE)
    book >> wait(1) << delivered("A") << nothing
