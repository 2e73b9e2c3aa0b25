"""Playbook cases: op order, waiting for halves, first decision wins, junk, bounds, progress."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.settings import OP_ALERT_MS, OP_WAIT_ALERT_MS, OP_WAIT_MS
from halfbridge.serde.progress import START, Progress
from halfbridge.serde.records import OpSource
from tests.ledger_log import tell_half_end
from tests.playbook import (
    SETTINGS,
    Playbook,
    commit,
    counted,
    dead,
    delivered,
    discard,
    half,
    junk_buried,
    junk_half,
    junk_op,
    killed_before_commit,
    nothing,
    nothing_counted,
    op_end,
    read_half,
    read_ops,
    restart,
    rollback,
    unknown,
    unread,
)

# --- rule 1: ops apply in op order, and wait for their half --------------------------------


def test_deliveries_come_in_op_order() -> None:
    """The order of decisions is the order of deliveries, whatever order the halves have."""
    (
        Playbook()
        >> half("A")
        >> half("B")
        >> unread(commit("B"), commit("A"))
        >> read_ops
        << delivered("B") + delivered("A")
    )


def test_ops_behind_a_waiting_one_wait_too() -> None:
    """An op is never applied before an earlier one, although its own half is there."""
    book = Playbook() >> half("A") >> unread(half("B"), commit("B"), commit("A")) >> read_ops
    assert book.ledger.waits_for_half
    assert book.ledger.ops_waiting == 2
    book << nothing >> read_half << delivered("B") + delivered("A")


def test_what_is_undecided_and_what_waits_is_told() -> None:
    """Decided transactions are left out; an op waits as long as its half message is not read."""
    book = Playbook() >> half("A") >> half("B") >> commit("A") << delivered("A")
    book >> unread(half("C"), commit("C")) >> read_ops
    (entry,) = book.ledger.undecided()
    assert [one.metadata.transaction_id for one in entry.in_order()] == ["B"]
    assert [read.op.transaction_id for read in book.ledger.waiting()] == ["C"]


def test_the_end_of_the_half_partition_counts_as_read() -> None:
    """An op may name the offset of a transaction marker, which no consumer is handed."""
    book = Playbook() >> half("A")
    book.log.half_end += 1  # a marker
    book >> unread(commit("A", half_offset=1)) >> read_ops << nothing >> read_half << delivered("A")


def test_the_end_of_the_half_partition_is_asked_after_a_second() -> None:
    """Only an op that has waited a second makes the worker ask where half p ends."""
    book = Playbook() >> half("A") >> commit("A", half_offset=7) << nothing
    ledger, now_ms = book.ledger, book.now_ms
    assert ledger.wants_half_end(now_ms) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS - 1) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS) is not None


def test_the_wait_begins_anew_with_each_op() -> None:
    """Time that an earlier op waited does not count for the next one."""
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
    """What can never be read is not waited for; the decision is applied to what is there."""
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
    """The consumer lags behind: it is given its time again, and nothing is called invalid."""
    book = Playbook() >> half("A") >> unread(half("B"), commit("B")) >> read_ops << nothing
    tell_half_end(book.ledger, 2, book.now_ms)
    ledger, now_ms = book.ledger, book.now_ms + OP_WAIT_MS
    assert ledger.wants_half_end(now_ms) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS - 1) is None
    assert ledger.wants_half_end(now_ms + OP_WAIT_MS) is not None
    book << nothing >> read_half << delivered("B") << nothing_counted


def test_what_is_proven_of_one_op_is_proven_of_all_that_were_read() -> None:
    """A row of forged ops holds its partition up once; one that came behind the question waits."""
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
    """Its half message may have been stored in between: a good COMMIT is delivered whole."""
    book = Playbook() >> half("A") >> commit("A", half_offset=1) << nothing
    ledger, now_ms = book.ledger, book.now_ms
    assert ledger.wants_half_end(now_ms) is None
    token = ledger.wants_half_end(now_ms + OP_WAIT_MS)
    assert token is not None
    book >> unread(half("B"), half("C"), commit("C")) >> read_ops
    ledger.half_end(1, token)
    book << delivered("A") >> read_half << delivered("C") << nothing_counted


def test_the_next_op_beyond_the_end_holds_up_nobody_for_long() -> None:
    """After a first one the proof is asked for at once: 10 ms later, for an hour."""
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


def test_a_decision_beyond_the_end_stands_after_a_restart() -> None:
    """A rebuild that reads such a decision again takes it for what it was: the first one."""
    book = Playbook() >> half("X") >> half("A") >> half("B") >> commit("A") << delivered("A")
    book >> commit("B", half_offset=99) << nothing
    tell_half_end(book.ledger, book.log.half_end, book.now_ms)
    book << delivered("B") >> restart << nothing >> rollback("B") << nothing
    book << counted(Count.CONFLICT)


def test_an_answer_about_another_ops_wait_changes_nothing() -> None:
    """The end of half p, asked for an op that was applied since, is ignored."""
    book = Playbook() >> half("A") >> commit("A", half_offset=7) << nothing
    book.ledger.half_end(1, 5)
    assert book.ledger.waits_for_half
    book.ledger.half_end(8, 0)
    assert book.ledger.waits_for_half
    book = Playbook() >> junk_op()
    book.ledger.half_end(1, 0)
    book << junk_buried("op", 0)
    book.ledger.half_end(1, 0)
    assert not book.ledger.waits_for_half


# --- rules 2 and 3: the first decision in the log wins -------------------------------------


def test_a_discard_of_the_daemon_that_lost_is_no_conflict() -> None:
    """A producer's decision may stand before the daemon's own discard; nobody is to blame."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> discard("A", OpSource.CHECKER) << nothing << nothing_counted


def test_an_answer_after_the_decision_changes_nothing() -> None:
    """An UNKNOWN that comes too late is not even counted."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> unknown("A", 1) << nothing << nothing_counted


# --- rule 8: what cannot be read holds nothing up ------------------------------------------


def test_junk_is_buried_and_holds_nothing() -> None:
    """Unreadable records go to the dead-letter topic once; H and O pass them."""
    book = Playbook() >> junk_half() >> junk_op()
    book << junk_buried("half", 0) + junk_buried("op", 0) << nothing
    assert (book.progress.half, book.progress.op) == (1, 1)
    book >> restart << nothing


def test_junk_is_not_lost_with_a_kafka_txn() -> None:
    """Junk whose burial was not committed is buried after the restart."""
    book = Playbook() >> junk_half() >> junk_op() >> killed_before_commit
    book.reader.read()
    book << junk_buried("half", 0) + junk_buried("op", 0) >> restart << nothing


def test_junk_among_ops_keeps_its_turn() -> None:
    """An unreadable op is buried when its turn comes, not before the ops that wait ahead."""
    book = Playbook() >> unread(half("A"), commit("A"), junk_op()) >> read_ops << nothing
    assert book.ledger.ops_waiting == 2
    book >> read_half << delivered("A") + junk_buried("op", 1)


# --- plans and progress --------------------------------------------------------------------


def test_a_plan_is_bounded_in_records() -> None:
    """Ops beyond the limit stay for the next plan; O says so."""
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
    """Records may be read between a plan and its commit; their effects are in the next plan."""
    book = Playbook() >> half("A") >> commit("A")
    plan = book.take_plan()
    book >> junk_half() >> half("B", index=1) >> commit("B")
    book.plan = plan
    book.commit()
    assert book.progress == Progress(half=1, op=1, rebuild_to=1, ops_from=0, position=1)
    book >> restart << dead("B", "INCOMPLETE", 1) + junk_buried("half", 1)


def test_a_plan_is_committed_before_the_next_one_is_made() -> None:
    """What a plan changed would be lost if its kafka_txn failed and another plan was written."""
    book = Playbook() >> half("A") >> commit("A")
    plan = book.take_plan()
    book >> half("B") >> commit("B")
    with pytest.raises(RuntimeError, match="commit it, or drop the ledger"):
        book.take_plan()
    book.plan = plan
    book.commit()
    book << delivered("B")


def test_a_plan_without_records_needs_no_commit() -> None:
    """Nothing of such a plan is in a kafka_txn: a worker asks again when there may be work."""
    book = Playbook()
    assert book.take_plan().records == 0
    book >> half("A") >> commit("A") << delivered("A")


def test_nothing_happens_before_the_rebuild_is_complete() -> None:
    """Without its log read again a ledger plans nothing, asks nobody and moves no offset."""
    ledger = Ledger(SETTINGS, Progress(half=3, op=5, rebuild_to=4, ops_from=2, position=4))
    assert ledger.plan(1, records_max=9, size_bytes_max=9).records == 0
    assert ledger.checks(1, 9) == []
    assert ledger.next_due_ms() is None
    assert ledger.wants_half_end(1) is None
    assert not ledger.is_rebuilt
    assert ledger.progress() == Progress(half=3, op=5, rebuild_to=4, ops_from=2, position=4)


def test_the_first_ledger_begins_at_the_start() -> None:
    """An empty partition pair is rebuilt at once and stays at its start."""
    book = Playbook() >> op_end << nothing
    assert book.ledger.is_rebuilt
    assert book.progress == START
