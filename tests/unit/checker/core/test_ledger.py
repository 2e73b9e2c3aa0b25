"""Playbook cases: op order, waiting for halves, first decision wins, junk, bounds, progress."""

import gc
from collections.abc import Callable
from dataclasses import replace
from weakref import ref

import pytest

from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.checker.core.settings import OP_ALERT_MS, OP_WAIT_ALERT_MS, OP_WAIT_MS
from halfbridge.serde.progress import Progress, ProgressError
from halfbridge.serde.protocol import NO_APPEND_MS
from halfbridge.serde.records import OpKind, OpSource
from tests.ledger_log import tell_half_end
from tests.playbook import (
    BEGIN_MS,
    HOUR_MS,
    SETTINGS,
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
    junk_half,
    junk_letter,
    junk_op,
    killed_before_commit,
    nothing,
    nothing_counted,
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

# --- memory ---------------------------------------------------------------------------------


def test_a_dropped_ledger_frees_its_memory_at_once() -> None:
    """A dropped ledger is freed without the cycle collector."""
    book = Playbook() >> half("A") >> half("B") >> commit("A") << delivered("A")
    held = ref(book.ledger.deferred)
    gc.collect()
    gc.disable()
    try:
        del book
        assert held() is None
    finally:
        gc.enable()


# --- rule 1: ops apply in op order, and wait for their half --------------------------------


def test_ops_behind_a_waiting_one_wait_too() -> None:
    """An op is never applied before an earlier one, also if its own half is there."""
    book = Playbook() >> half("A") >> unread(half("B"), commit("B"), commit("A")) >> read_ops
    assert book.ledger.waits_for_half
    assert book.ledger.ops_waiting == 2
    book << nothing >> read_half << delivered("B") + delivered("A")


def test_what_is_undecided_and_what_waits_is_reported() -> None:
    """Decided transactions are left out; an op whose half message is not read is waiting."""
    book = Playbook() >> half("A") >> half("B") >> commit("A") << delivered("A")
    book >> unread(half("C"), commit("C")) >> read_ops
    (entry,) = book.ledger.undecided()
    assert [one.metadata.transaction_id for one in entry.in_order()] == ["B"]
    assert [read.op.transaction_id for read in book.ledger.waiting()] == ["C"]


def test_the_end_of_the_half_partition_counts_as_read() -> None:
    """An op may name the offset of a transaction marker, which consumers do not get."""
    book = Playbook() >> half("A")
    book.log.half_end += 1  # a marker
    book >> unread(commit("A", half_offset=1)) >> read_ops << nothing >> read_half << delivered("A")


def test_the_end_of_the_half_partition_is_asked_after_a_second() -> None:
    """The ledger asks for the end of the half partition when an op has waited a second."""
    book = Playbook() >> half("A") >> commit("A", half_offset=7) << nothing
    ledger, now_ms = book.ledger, book.now_ms
    assert ledger.wants_half_end(now_ms) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS - 1) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS) is not None


def test_the_wait_begins_anew_with_each_op() -> None:
    """The wait of an earlier op does not count for the next one."""
    book = Playbook() >> unread(half("A"), half("B"), commit("A"), commit("B")) >> read_ops
    book << nothing
    assert book.ledger.wants_half_end(book.now_ms) is None
    book.now_ms += OP_WAIT_MS
    book.reader.read_half(1)
    book << delivered("A")
    assert book.ledger.wants_half_end(book.now_ms) is None
    book.now_ms += OP_WAIT_MS
    assert book.ledger.wants_half_end(book.now_ms) is not None
    book.reader.read_half()
    assert book.ledger.wants_half_end(book.now_ms) is None


def test_a_half_offset_beyond_the_end_is_noted_and_waits_no_longer() -> None:
    """A decision with a half offset beyond the end is applied to the stored halves, and noted."""
    book = Playbook() >> half("A") >> half("B") >> commit("A", half_offset=7) >> commit("B")
    book << nothing
    tell_half_end(book.ledger, book.log.half_end, book.now_ms)
    book << delivered("A") + delivered("B") << nothing
    book = Playbook() >> half("A") >> commit("A", half_offset=7) << nothing
    tell_half_end(book.ledger, book.log.half_end, book.now_ms)
    book << delivered("A") << counted(Count.INVALID_OP)
    (note,) = book.plan.notes
    assert note.startswith("COMMIT of transaction A by PRODUCER 'someone' (group orders, op off")
    assert note.endswith("names half offset 7, beyond the end 1")


def test_an_op_whose_half_message_is_there_waits_for_the_reader() -> None:
    """If the half message exists, the op waits OP_WAIT_MS again and is not counted as invalid."""
    book = Playbook() >> half("A") >> unread(half("B"), commit("B")) >> read_ops << nothing
    tell_half_end(book.ledger, 2, book.now_ms)
    ledger, now_ms = book.ledger, book.now_ms + OP_WAIT_MS
    assert ledger.wants_half_end(now_ms) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS - 1) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS) is not None
    book << nothing >> read_half << delivered("B") << nothing_counted


def test_what_is_proven_of_one_op_is_proven_of_all_that_were_read() -> None:
    """One answer applies all ops that were read before the question; a later op waits."""
    book = Playbook() >> half("A") >> half("B") >> half("C")
    book >> commit("A", half_offset=7) >> commit("B", half_offset=8) << nothing
    ledger, now_ms = book.ledger, book.now_ms
    assert ledger.wants_half_end(now_ms) is None
    token = ledger.wants_half_end(now_ms + OP_WAIT_MS)
    assert token is not None
    book >> commit("C", half_offset=9)
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS + 50) == token
    ledger.half_end(3, token)
    book << delivered("A") + delivered("B") << nothing


def test_an_op_that_was_read_behind_the_question_is_not_judged_by_its_answer() -> None:
    """A valid COMMIT read after the question waits for its half message and is delivered."""
    book = Playbook() >> half("A") >> commit("A", half_offset=1) << nothing
    ledger, now_ms = book.ledger, book.now_ms
    assert ledger.wants_half_end(now_ms) is None
    token = ledger.wants_half_end(now_ms + OP_WAIT_MS)
    assert token is not None
    book >> unread(half("B"), half("C"), commit("C")) >> read_ops
    ledger.half_end(1, token)
    book << delivered("A") >> read_half << delivered("C") << nothing_counted


def test_the_next_op_beyond_the_end_holds_up_nobody_for_long() -> None:
    """For an hour after the first one, the proof is asked for after 10 ms."""
    book = Playbook() >> half("A") >> half("B") >> half("C")
    book >> commit("A", half_offset=70) << nothing
    tell_half_end(book.ledger, 3, book.now_ms)
    now_ms = book.now_ms + OP_WAIT_MS
    book << delivered("A") >> commit("B", half_offset=80) << nothing
    ledger = book.ledger
    assert ledger.wants_half_end(now_ms) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_ALERT_MS - 1) is None
    token = ledger.wants_half_end(now_ms + OP_WAIT_ALERT_MS)
    assert token is not None
    ledger.half_end(3, token)
    book << delivered("B") >> commit("C", half_offset=90) << nothing
    now_ms += OP_ALERT_MS
    assert ledger.wants_half_end(now_ms + OP_WAIT_ALERT_MS) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS) is None
    token = ledger.wants_half_end(now_ms + OP_WAIT_ALERT_MS + OP_WAIT_MS)
    assert token is not None
    ledger.half_end(3, token)
    book << delivered("C")


def test_a_decision_beyond_the_end_is_kept_after_a_restart() -> None:
    """After a rebuild, a decision beyond the end is still the first one."""
    book = Playbook() >> half("X") >> half("A") >> half("B") >> commit("A") << delivered("A")
    book >> commit("B", half_offset=99) << nothing
    tell_half_end(book.ledger, book.log.half_end, book.now_ms)
    book << delivered("B") >> restart << nothing >> rollback("B") << nothing
    book << counted(Count.CONFLICT)


def test_an_answer_about_another_ops_wait_changes_nothing() -> None:
    """An answer with another token, or without a waiting op, is ignored."""
    book = Playbook() >> half("A") >> commit("A", half_offset=7) << nothing
    book.ledger.half_end(1, 5)
    assert book.ledger.waits_for_half
    book.ledger.half_end(8, 0)
    assert book.ledger.waits_for_half
    book = Playbook() >> junk_op()
    book.ledger.half_end(1, 0)
    book << junk_letter("op", 0)
    book.ledger.half_end(1, 0)
    assert not book.ledger.waits_for_half


# --- rules 2 and 3: the first decision in the log wins -------------------------------------
def test_a_discard_of_the_daemon_that_lost_is_no_conflict() -> None:
    """The daemon's DISCARD after a producer's decision is not counted as a conflict."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> discard("A", OpSource.CHECKER) << nothing << nothing_counted


def test_an_answer_after_the_decision_changes_nothing() -> None:
    """An UNKNOWN after the decision is not counted."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> unknown("A", 1) << nothing << nothing_counted


# --- rule 8: unreadable records do not block others ----------------------------------------


def test_junk_is_not_lost_with_a_kafka_txn() -> None:
    """Junk whose dead letter was not committed is dead-lettered after the restart."""
    book = Playbook() >> junk_half() >> junk_op() >> killed_before_commit
    book.reader.read()
    book << junk_letter("half", 0) + junk_letter("op", 0) >> restart << nothing


def test_junk_among_ops_keeps_its_turn() -> None:
    """An unreadable op is dead-lettered after the ops before it, also if they wait."""
    book = Playbook() >> unread(half("A"), commit("A"), junk_op()) >> read_ops << nothing
    assert book.ledger.ops_waiting == 2
    book >> read_half << delivered("A") + junk_letter("op", 1)


# --- plans and progress --------------------------------------------------------------------
def test_a_plan_is_bounded_in_records() -> None:
    """Ops beyond the limit are left for the next plan, and O is at the first of them."""
    book = Playbook() >> half("A") >> half("B") >> unread(commit("A"), commit("B")) >> read_ops
    book.records_max = 1
    book << delivered("A")
    assert book.progress.op == 1
    book << delivered("B") << nothing
    assert book.progress.op == 2


def test_a_plan_is_bounded_in_bytes() -> None:
    """The transaction that reaches the limit is the last of its plan."""
    book = Playbook() >> half("A", size_bytes=600) >> half("B", size_bytes=600)
    book >> half("C", size_bytes=600) >> unread(commit("A"), commit("B"), commit("C")) >> read_ops
    book.size_bytes_max = 1_000
    book << delivered("A") + delivered("B") << delivered("C")


def test_progress_covers_the_plan_and_not_what_was_read_since() -> None:
    """Records read between a plan and its commit are in the next plan and progress."""
    book = Playbook() >> half("A") >> commit("A")
    plan = book.take_plan()
    book >> junk_half() >> half("B", index=1) >> commit("B")
    book.plan = plan
    book.commit()
    assert book.progress == Progress(half=1, op=1, rebuild_to=1, ops_from=0, position=1)
    book >> restart << dead("B", "INCOMPLETE", 1) + junk_letter("half", 1)


def test_a_plan_is_committed_before_the_next_one_is_made() -> None:
    """A second plan before the first is committed is an error."""
    book = Playbook() >> half("A") >> commit("A")
    plan = book.take_plan()
    book >> half("B") >> commit("B")
    with pytest.raises(RuntimeError, match="commit it, or drop the ledger"):
        book.take_plan()
    book.plan = plan
    book.commit()
    book << delivered("B")


def test_a_plan_without_records_needs_no_commit() -> None:
    """After a plan without records the next plan needs no commit."""
    book = Playbook()
    assert book.take_plan().records == 0
    book >> half("A") >> commit("A") << delivered("A")


def test_nothing_happens_before_the_rebuild_is_complete() -> None:
    """Before its rebuild is complete, a ledger has no plan, no check and no new offset."""
    ledger = Ledger(SETTINGS, Progress(half=3, op=5, rebuild_to=4, ops_from=2, position=4))
    assert ledger.plan(1, records_max=9, size_bytes_max=9).records == 0
    assert ledger.checks(1, 9) == []
    assert ledger.next_due_ms() is None
    assert ledger.wants_half_end(1) is None
    assert not ledger.is_rebuilt
    assert ledger.progress() == Progress(half=3, op=5, rebuild_to=4, ops_from=2, position=4)


# --- playbook cases: a rebuilt ledger knows what the previous one knew ---------------------


def test_answers_that_decide_nothing_are_not_kept() -> None:
    """Answers below O are not stored in a rebuild, since there may be millions."""
    book = Playbook() >> half("X") >> half("A") >> unknown("X", 0) >> unknown("X", 0)
    book >> commit("A") << delivered("A")
    book >> unread(restart, read_half, read_ops)
    rebuild = book.ledger._rebuild
    assert rebuild is not None
    assert [each.op.transaction_id for each in rebuild._past] == ["A"]
    book << nothing


def test_ops_are_applied_only_after_both_partitions_were_read() -> None:
    """Before R and O are reached nothing is applied, in any order of reading."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    book >> unread(commit("X"), restart, read_ops) << nothing
    assert not book.ledger.is_rebuilt
    book >> unread(read_half) << delivered("X")
    book >> unread(restart, read_half) << nothing
    assert not book.ledger.is_rebuilt
    book >> unread(read_ops) << nothing
    assert book.ledger.is_rebuilt


def test_copies_are_read_before_anything_is_applied() -> None:
    """A rebuild is complete only after the copies below R, so that their transaction is known."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    assert book.progress.rebuild_to == 2
    book >> unread(commit("A"), restart, read_ops) << nothing
    assert not book.ledger.is_rebuilt
    book >> unread(read_half) << delivered("A")


def test_a_copy_outweighs_a_duplicate_below_it() -> None:
    """After H has passed the original, a duplicate does not replace its copy."""
    book = Playbook() >> half("A", born_timestamp=1)
    book >> unread(unknown("A", 1), half("A", born_timestamp=2)) >> read_ops
    book << put_back("A", "answer", 1) >> restart >> commit("A") << delivered("A")
    (message,) = book.plan.deliveries[0].messages
    assert (message.metadata.born_timestamp, message.origin) == (1, 0)


def test_the_newest_copy_is_valid() -> None:
    """After a rebuild the newest copy counts."""
    book = Playbook() >> half("X") >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    book >> unknown("A", 2) << put_back("A", "answer", 2) >> restart << nothing
    assert book.ledger._book.entries.find("A", 0, "orders").messages[0].offset == 4


def test_a_copy_tells_the_age() -> None:
    """After a rebuild the age counts from the first append, not from a duplicate's or copy's."""
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> wait(HOUR_MS)
    book >> unread(unknown("A", 1), half("A")) >> read_ops << put_back("A", "answer", 1) >> restart
    book >> discard_for_age("A", HOUR_MS) << dead("A", "AGE")
    assert book.plan.dead[0].check_times == 1


def test_late_records_of_which_nothing_came_are_dead_lettered() -> None:
    """Late records and junk without a committed letter are dead-lettered after the restart."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    book >> half("A", 1) >> half("A") >> junk_half() >> killed_before_commit
    book.reader.read()
    book << dead("A", "LATE", 1) + junk_letter("half", 4) >> restart << nothing


def test_late_records_of_a_rollback_vanish() -> None:
    """Late records of a ROLLBACK are not dead-lettered, before a restart or after."""
    book = Playbook() >> half("X") >> half("A") >> rollback("A") << nothing
    book >> half("A", 1) >> restart << nothing >> restart << nothing


def test_junk_ops_are_not_dead_lettered_twice() -> None:
    """An unreadable op below O is not dead-lettered again after a restart."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") >> junk_op()
    book << delivered("A") + junk_letter("op", 1) >> restart << nothing >> commit("X")
    book << delivered("X")


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
    """Invalid ops and answers below O leave their transaction undecided."""
    book = Playbook() >> half("X") >> half("A") >> commit("X") >> refused << delivered("X")
    book >> restart << nothing >> commit("A") << delivered("A")


def test_an_age_discard_is_kept_when_only_late_records_are_left() -> None:
    """An AGE discard stays valid after a restart if only a duplicate half is above H."""
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> wait(HOUR_MS) >> half("X")
    book >> discard_for_age("A", HOUR_MS) << dead("A", "AGE")
    book >> half("A") << nothing >> restart << nothing >> commit("A") << nothing
    assert book.ledger.held_halves == 1


@pytest.mark.parametrize("age_ms_max", [1, 2 * HOUR_MS])
def test_an_age_discard_is_judged_by_the_age_it_claims(age_ms_max: int) -> None:
    """A changed maximum age does not change the verdicts on DISCARDs after a restart."""
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
    assert book.ledger.held_halves == 0


def test_a_decision_whose_records_are_all_below_h_is_known() -> None:
    """A decision above T is known after a restart, also if its halves are below H."""
    book = Playbook() >> half("B") >> half("X") >> commit("B") << delivered("B") >> restart
    book << nothing >> commit("B") << nothing << counted(Count.DUPLICATE)


def test_a_discard_for_age_is_kept_although_the_first_message_was_passed() -> None:
    """H is never between the messages of a transaction that was discarded for age.

    The age is that of the first message. A rebuild without it would treat the discard as too early
    and send checks about the other messages.
    """
    book = Playbook(transaction_age_ms_max=HOUR_MS) >> half("A") >> half("X")
    book >> wait(HOUR_MS - 1) >> half("A", 1) >> wait(1)
    book >> discard_for_age("A", HOUR_MS)
    book << dead("A", "AGE") + dead("A", "AGE", 1)
    book >> restart << nothing >> commit("A", 2) << nothing << counted(Count.CONFLICT)
    assert book.ledger.held_halves == 1
    book >> rollback("X") << nothing
    assert book.progress.half == book.log.half_end


def test_discarded_transactions_that_overlap_are_passed_together() -> None:
    """H stays below them until no undecided message is between their messages."""
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
    """During a rebuild the oldest bodies beyond the budget are released."""
    book = Playbook(ledger_bytes_max=250) >> half("A") >> half("B") >> half("C") >> half("D")
    book << nothing >> restart << nothing
    assert book.ledger.is_rebuilt
    assert book.ledger.memory.bodies_bytes == 200
    book >> unread(commit("A"), commit("D"), read_ops) << delivered("A") + delivered("D")
    bodies = [each.messages[0].body for each in book.plan.deliveries]
    assert bodies == [("body", 0), None]
    assert book.ledger.memory.bodies_bytes == 100
    assert book.ledger.held_halves == 2


@pytest.mark.parametrize("is_copied", [False, True])
def test_nothing_proves_the_age_of_what_has_no_append_time(*, is_copied: bool) -> None:
    """A discard for age of a half without an append time is invalid, also after copy or restart."""
    book = Playbook() >> half("X") >> half_without_time("A") << nothing >> wait(HOUR_MS)
    if is_copied:
        book >> unknown("A", 1) << put_back("A", "answer", 1) >> wait(HOUR_MS)
        book >> rollback("X") << nothing
        assert book.progress.half > book.log.half[1].offset
    book >> discard_for_age("A", 1) << nothing << counted(Count.INVALID_OP)
    book >> restart << nothing >> discard_for_age("A", 1) << nothing << counted(Count.INVALID_OP)
    book >> commit("A") << delivered("A")


def test_a_discard_without_an_append_time_proves_no_age() -> None:
    """A discard for age without an append time is invalid, before a restart and after."""
    book = Playbook() >> half("X") >> half("A") >> wait(HOUR_MS)
    op = op_record("A", OpKind.DISCARD, half_offset=1)
    book.log.append_op(op._replace(source=OpSource.CHECKER, age_ms=1), NO_APPEND_MS)
    book >> wait(0) << nothing << counted(Count.INVALID_OP) >> restart << nothing
    book >> commit("A") << delivered("A")


@pytest.mark.parametrize("first", [half, half_without_time])
def test_a_copy_keeps_what_is_known_of_the_age(first: Callable[[str], Step]) -> None:
    """After a rebuild from copies, the append time of the first message, or none, is kept."""
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


# --- whether the logs contain the offsets of the committed progress ------------------------

PROGRESS = Progress(half=3, op=9, rebuild_to=8, ops_from=5, position=7)


def test_a_log_that_holds_everything_is_fine() -> None:
    """Offsets from log start to log end, both included, are valid."""
    assert check_against_log(PROGRESS, (3, 8), (5, 9)) == PROGRESS


@pytest.mark.parametrize(
    ("half_range", "op_range", "complaint"),
    [
        ((4, 8), (0, 9), "H=3 is below the log start 4 of the half partition"),
        ((0, 2), (0, 9), "H=3 is beyond the end 2 of the half partition"),
        ((0, 7), (0, 9), "R=8 is beyond the end 7 of the half partition"),
        ((0, 8), (6, 9), "T=5 is below the log start 6 of the op partition"),
        ((0, 8), (0, 8), "O=9 is beyond the end 8 of the op partition"),
    ],
)
def test_a_log_that_lost_something_stops(
    half_range: tuple[int, int], op_range: tuple[int, int], complaint: str
) -> None:
    """A truncated or expired log is an error that names the offset and the partition."""
    with pytest.raises(ProgressError, match=complaint):
        check_against_log(PROGRESS, half_range, op_range)


def test_decisions_that_no_half_needs_may_have_expired() -> None:
    """If H = R, a T below the log start is raised to it, unless O is below it, too."""
    idle = Progress(half=8, op=9, rebuild_to=8, ops_from=5, position=8)
    begin = check_against_log(idle, (8, 8), (9, 9))
    assert begin == Progress(half=8, op=9, rebuild_to=8, ops_from=9, position=8)
    with pytest.raises(ProgressError, match="T=5 is below the log start"):
        check_against_log(idle, (0, 8), (10, 12))
