"""Playbook cases: a ledger that begins anew knows what the one before it knew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from halfbridge.checker.core.plan import Count
from halfbridge.serde.protocol import NO_APPEND_MS
from halfbridge.serde.records import OpKind, OpSource
from tests.playbook import (
    BEGIN_MS,
    HOUR_MS,
    Playbook,
    Step,
    commit,
    counted,
    dead,
    delivered,
    discard,
    discard_for_age,
    half,
    half_without_time,
    junk_buried,
    junk_half,
    junk_op,
    killed_before_commit,
    nothing,
    op_record,
    put_back,
    read_half,
    read_ops,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)


def test_answers_that_decide_nothing_are_not_kept() -> None:
    """While one old half holds T there may be millions of them to be read again."""
    book = Playbook() >> half("X") >> half("A") >> unknown("X", 0) >> unknown("X", 0)
    book >> commit("A") << delivered("A")
    book >> unread(restart, read_half, read_ops)
    rebuild = book.ledger._rebuild
    assert rebuild is not None
    assert [each.op.transaction_id for each in rebuild._past] == ["A"]
    book << nothing


def test_ops_are_applied_only_after_both_partitions_were_read() -> None:
    """Before R and O are reached nothing is applied, in whatever order they are read."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    book >> unread(commit("X"), restart, read_ops) << nothing
    assert not book.ledger.is_rebuilt
    book >> unread(read_half) << delivered("X")
    book >> unread(restart, read_half) << nothing
    assert not book.ledger.is_rebuilt
    book >> unread(read_ops) << nothing
    assert book.ledger.is_rebuilt


def test_copies_are_read_before_anything_is_applied() -> None:
    """R covers copies that the last kafka_txn wrote: without them their transaction is unknown."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    assert book.progress.rebuild_to == 2
    book >> unread(commit("A"), restart, read_ops) << nothing
    assert not book.ledger.is_rebuilt
    book >> unread(read_half) << delivered("A")


def test_a_copy_outweighs_a_duplicate_below_it() -> None:
    """After H has passed the original, a duplicate of it must not take its place."""
    book = Playbook() >> half("A", born_timestamp=1)
    book >> unread(unknown("A", 1), half("A", born_timestamp=2)) >> read_ops
    book << put_back("A", "answer", 1) >> restart >> commit("A") << delivered("A")
    (message,) = book.plan.deliveries[0].messages
    assert (message.metadata.born_timestamp, message.origin) == (1, 0)


def test_the_newest_copy_stands() -> None:
    """Each copy replaces the one before it."""
    book = Playbook() >> half("X") >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    book >> unknown("A", 2) << put_back("A", "answer", 2) >> restart << nothing
    assert book.ledger._book.entries.find("A", 0, "orders").messages[0].offset == 4


def test_a_copy_tells_the_age() -> None:
    """Age is counted from the first append, not from a duplicate's or a copy's."""
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> wait(HOUR_MS)
    book >> unread(unknown("A", 1), half("A")) >> read_ops << put_back("A", "answer", 1) >> restart
    book >> discard_for_age("A", HOUR_MS) << dead("A", "AGE")
    assert book.plan.dead[0].check_times == 1


def test_late_records_of_which_nothing_came_are_buried() -> None:
    """What came after the decision and was not buried before the restart is buried after it."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    book >> half("A", 1) >> half("A") >> junk_half() >> killed_before_commit
    book.reader.read()
    book << dead("A", "LATE", 1) + junk_buried("half", 4) >> restart << nothing


def test_late_records_of_a_rollback_vanish() -> None:
    """After a ROLLBACK nothing is buried, before a restart or after."""
    book = Playbook() >> half("X") >> half("A") >> rollback("A") << nothing
    book >> half("A", 1) >> restart << nothing >> restart << nothing


def test_a_fresh_half_of_an_undecided_transaction_is_one_more_message() -> None:
    """Halves above P that no op is about are undecided."""
    book = Playbook() >> half("A", 0) << nothing >> half("A", 1) >> restart << nothing
    book >> commit("A", count=2) << delivered("A", 0, 1)


def test_junk_ops_are_not_buried_twice() -> None:
    """An unreadable op below O was buried before."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") >> junk_op()
    book << delivered("A") + junk_buried("op", 1) >> restart << nothing >> commit("X")
    book << delivered("X")


def test_only_the_first_decision_below_o_counts() -> None:
    """A conflict that changed nothing changes nothing in a rebuild."""
    book = Playbook() >> half("X") >> half("A") >> rollback("A") >> commit("A") << nothing
    book >> restart << nothing >> rollback("A") << nothing << counted(Count.DUPLICATE)


@pytest.mark.parametrize(
    "refused",
    [
        commit("A", producer_group="billing"),
        discard("A", OpSource.PRODUCER),
        discard_for_age("A", HOUR_MS),
        unknown("A", 9),
    ],
)
def test_what_had_no_effect_has_none_in_a_rebuild(refused: object) -> None:
    """Refused ops and answers below O leave their transaction undecided."""
    book = Playbook() >> half("X") >> half("A") >> commit("X") >> refused << delivered("X")
    book >> restart << nothing >> commit("A") << delivered("A")


def test_an_age_discard_stands_when_only_late_records_are_left() -> None:
    """A duplicate half above H says nothing about the age of what was discarded."""
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> wait(HOUR_MS) >> half("X")
    book >> discard_for_age("A", HOUR_MS) << dead("A", "AGE")
    book >> half("A") << nothing >> restart << nothing >> commit("A") << nothing
    assert book.ledger.undecided_halves == 1


@pytest.mark.parametrize("age_ms_max", [1, 2 * HOUR_MS])
def test_an_age_discard_is_judged_by_the_age_it_claims(age_ms_max: int) -> None:
    """Whatever the setting is after a restart: what was given up stays so, and nothing else is."""
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("X") >> half("A") >> wait(HOUR_MS)
    book >> half("Y") >> discard_for_age("A", HOUR_MS) << dead("A", "AGE")
    book >> discard_for_age("Y", HOUR_MS) << nothing << counted(Count.INVALID_OP)
    book.settings = replace(book.settings, transaction_age_ms_max=age_ms_max)
    book >> restart << nothing >> commit("A") << nothing << counted(Count.CONFLICT)
    book >> commit("Y") << delivered("Y")


def test_a_group_apart_stays_apart() -> None:
    """Two groups under one id are two transactions after a restart too."""
    book = Playbook() >> half("A") >> half("A", producer_group="billing") << nothing >> restart
    book >> commit("A", producer_group="billing", half_offset=1)
    book << delivered("A") >> rollback("A") << nothing
    assert book.ledger.undecided_halves == 0


def test_a_decision_whose_records_are_all_below_h_is_known() -> None:
    """T may stand below decisions of which no half is read again; they are known all the same."""
    book = Playbook() >> half("B") >> half("X") >> commit("B") << delivered("B") >> restart
    book << nothing >> commit("B") << nothing << counted(Count.DUPLICATE)


def test_a_discard_for_age_stands_although_the_first_message_was_passed() -> None:
    """H never comes to stand between the messages of what was discarded for age.

    The age is that of the first message: a rebuild that did not see it would take the discard for
    one that had come too early, and ask about what is left.
    """
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> half("X")
    book >> wait(HOUR_MS - 1) >> half("A", 1) >> wait(1)
    book >> discard_for_age("A", HOUR_MS)
    book << dead("A", "AGE") + dead("A", "AGE", 1)
    book >> restart << nothing >> commit("A", 2) << nothing << counted(Count.CONFLICT)
    assert book.ledger.undecided_halves == 1
    book >> rollback("X") << nothing
    assert book.progress.half == book.log.half_end


def test_discarded_transactions_that_overlap_are_passed_together() -> None:
    """H waits below all of them, and passes each once nothing undecided is left in it."""
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> half("X") >> half("B")
    book >> half("A", 1) >> half("Y") >> half("B", 1) >> half("C") >> half("Z") >> half("C", 1)
    book >> wait(HOUR_MS)
    for name in "ABC":
        book >> discard_for_age(name, HOUR_MS)
        book << dead(name, "AGE") + dead(name, "AGE", 1)
    assert book.progress.half == 0
    book >> rollback("X") << nothing >> rollback("Y") << nothing
    assert book.progress.half == 6
    book >> rollback("Z") << nothing
    assert book.progress.half == book.log.half_end


def test_bodies_beyond_the_budget_are_let_go_while_it_rebuilds() -> None:
    """A million undecided messages are read again at once; their bodies need not be in memory."""
    book = Playbook(ledger_bytes_max=250) >> half("A") >> half("B") >> half("C") >> half("D")
    book << nothing >> restart << nothing
    assert book.ledger.is_rebuilt
    assert book.ledger.memory.bodies_bytes == 200
    book >> unread(commit("A"), commit("D"), read_ops) << delivered("A") + delivered("D")
    bodies = [each.messages[0].body for each in book.plan.deliveries]
    assert bodies == [("body", 0), None]
    assert book.ledger.memory.bodies_bytes == 100
    assert book.ledger.undecided_halves == 2


@pytest.mark.parametrize("is_copied", [False, True])
def test_nothing_proves_the_age_of_what_has_no_append_time(*, is_copied: bool) -> None:
    """A discard for age has no effect on it, before a restart or after, copied or not."""
    book = Playbook() >> half("X") >> half_without_time("A") << nothing >> wait(HOUR_MS)
    if is_copied:
        book >> unknown("A", 1) << put_back("A", "answer", 1) >> wait(HOUR_MS)
        book >> rollback("X") << nothing
        assert book.progress.half > book.log.half[1].offset
    book >> discard_for_age("A", 1) << nothing << counted(Count.INVALID_OP)
    book >> restart << nothing >> discard_for_age("A", 1) << nothing << counted(Count.INVALID_OP)
    book >> commit("A") << delivered("A")


def test_a_discard_without_an_append_time_proves_no_age() -> None:
    """Its timestamp is its writer's."""
    book = Playbook() >> half("X") >> half("A") >> wait(HOUR_MS)
    op = op_record("A", OpKind.DISCARD, half_offset=1)
    book.log.append_op(op._replace(source=OpSource.CHECKER, age_ms=1), NO_APPEND_MS)
    book >> wait(0) << nothing << counted(Count.INVALID_OP) >> restart << nothing
    book >> commit("A") << delivered("A")


@pytest.mark.parametrize("first", [half, half_without_time])
def test_a_copy_keeps_what_is_known_of_the_age(first: Callable[[str], Step]) -> None:
    """The first message decides, although a rebuild meets the second one first."""
    is_known = first is half
    book = Playbook() >> first("A") >> half("X")
    book >> (half_without_time if is_known else half)("A", 1) >> wait(HOUR_MS)
    book >> unknown("A", 1) << put_back("A", "answer", 1) + put_back("A", "answer", 1, 1)
    entry = book.ledger._book.entries.find("A", 0, "orders")
    assert entry is not None
    assert entry.first_append_ms == (BEGIN_MS if is_known else NO_APPEND_MS)
    assert book.log.half[-1].metadata.first_append_timestamp == entry.first_append_ms
    book >> restart << nothing
    again = book.ledger._book.entries.find("A", 0, "orders")
    assert again is not None
    assert again is not entry
    assert again.first_append_ms == entry.first_append_ms
