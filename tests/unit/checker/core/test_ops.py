"""Playbook cases: what COMMIT, ROLLBACK, UNKNOWN and DISCARD do, and who may say them."""

from __future__ import annotations

from halfbridge.checker.core.ops import Ops
from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.settings import ALLOWED_MAX, NOTES_MAX
from halfbridge.serde.protocol import REASON_CHECK_TIMES
from halfbridge.serde.records import OpSource
from tests.playbook import (
    HOUR_MS,
    Playbook,
    commit,
    counted,
    dead,
    delivered,
    discard,
    discard_for_age,
    discard_written,
    half,
    junk_buried,
    junk_half,
    nothing,
    nothing_counted,
    put_back,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)

AGE_MS = 72 * HOUR_MS

# --- rule 4: COMMIT ------------------------------------------------------------------------


def test_messages_of_one_transaction_come_out_in_the_order_sent() -> None:
    """A COMMIT delivers all messages of the transaction, by index."""
    book = Playbook() >> half("A", 0) >> half("B", 0) >> half("A", 1) >> half("A", 2)
    book >> commit("A", count=3) << delivered("A", 0, 1, 2)


def test_a_gap_delivers_nothing() -> None:
    """Part of a transaction is never delivered; what is there is dead-lettered."""
    book = Playbook() >> half("A", 0) >> half("A", 2) >> commit("A", count=3)
    book << dead("A", "INCOMPLETE", 0) + dead("A", "INCOMPLETE", 2)
    assert book.plan.dead[0].detail == "of 3 messages 2 are there: [0, 2] ..."


def test_an_unreadable_last_message_is_missed_by_its_count_only() -> None:
    """Who names no count, as a check's answer does, cannot mean it; a gap is found either way."""
    book = Playbook() >> half("A", 0) >> half("A", 1) >> junk_half() >> commit("A", count=3)
    book << dead("A", "INCOMPLETE", 0) + dead("A", "INCOMPLETE", 1) + junk_buried("half", 2)
    book = Playbook() >> half("A", 0) >> half("A", 1) >> junk_half() >> commit("A")
    book << delivered("A", 0, 1) + junk_buried("half", 2)
    book = Playbook() >> half("A", 0) >> junk_half() >> half("A", 2) >> commit("A")
    book << dead("A", "INCOMPLETE", 0) + dead("A", "INCOMPLETE", 2) + junk_buried("half", 1)


def test_messages_beyond_the_committed_count_are_extra() -> None:
    """Messages 0 .. n-1 are delivered, the others dead-lettered."""
    book = Playbook() >> half("A", 0) >> half("A", 1) >> commit("A", count=1)
    book << delivered("A", 0) + dead("A", "EXTRA", 1)


def test_a_message_after_the_decision_is_late() -> None:
    """Whether it was read before the decision was applied or after: it is dead-lettered."""
    book = Playbook() >> half("A", 0) >> commit("A") << delivered("A", 0)
    book >> half("A", 1) << dead("A", "LATE", 1)
    book = Playbook() >> half("A", 0) >> half("A", 1) >> commit("A", half_offset=0)
    book << delivered("A", 0) + dead("A", "LATE", 1)


def test_a_message_after_the_rollback_vanishes() -> None:
    """Nothing of a rolled back transaction is delivered or dead-lettered."""
    book = Playbook() >> half("A", 0) >> rollback("A") << nothing
    book >> half("A", 1) << nothing << counted(Count.DUPLICATE)


def test_a_forbidden_topic_gets_a_dead_letter() -> None:
    """A COMMIT of a group that may not write there is applied, as a dead letter, once."""
    book = Playbook() >> half("A", 0) >> half("A", 1, real_topic="forbidden") >> commit("A")
    book << dead("A", "NOT_ALLOWED", 0) + dead("A", "NOT_ALLOWED", 1)
    assert book.plan.dead[0].detail == "group orders may not write to forbidden"
    book >> commit("A") << nothing << counted(Count.DUPLICATE)


def test_a_flawed_half_gets_a_dead_letter() -> None:
    """A half with forged headers is never delivered."""
    book = Playbook() >> half("A", flaw="reserved header RMQ_DEAD") >> commit("A")
    book << dead("A", "NOT_ALLOWED")
    assert book.plan.dead[0].detail == "reserved header RMQ_DEAD"


def test_the_policy_is_asked_once_for_each_pair() -> None:
    """Answers of the policy are remembered, and forgotten before they become too many."""
    asked = []

    def allows(group: str, topic: str) -> bool:
        asked.append((group, topic))
        return True

    book = Playbook(allows=allows)
    book >> half("A") >> half("B") >> commit("A") >> commit("B") << delivered("A") + delivered("B")
    assert asked == [("orders", "real")]
    ops = Ops(book.ledger._book)
    for number in range(ALLOWED_MAX + 1):
        assert ops._allows("orders", f"topic-{number}")
    assert len(ops._allowed) == 1
    assert ops._allows("orders", "t" * 250)
    assert len(ops._allowed) == 1


# --- rule 5: UNKNOWN -----------------------------------------------------------------------


def test_an_answered_check_counts_and_puts_back() -> None:
    """An UNKNOWN that names the next check number counts, and a copy carries the count."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    book << nothing >> unknown("A", 2) << put_back("A", "answer", 2)


def test_other_unknowns_do_not_count() -> None:
    """An answer given twice, and one too far ahead change nothing."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    for number in (1, 3):
        book >> unknown("A", number) << nothing << counted(Count.ANSWER_NOT_COUNTED)


def test_a_failed_attempt_changes_nothing_but_the_bookkeeping() -> None:
    """A checker that raised is no answer; `checks` says what becomes of the attempt."""
    book = Playbook() >> half("A") >> unknown("A", 0)
    book << nothing << counted(Count.ATTEMPT_FAILED)


def test_a_counted_answer_is_seen_in_the_delivery() -> None:
    """A transaction that commits after two answers says so."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    book >> commit("A") << delivered("A")
    assert book.plan.deliveries[0].check_times == 1


def test_the_last_answer_discards_through_the_log() -> None:
    """At the maximum a DISCARD is written; it dead-letters when it is read back."""
    book = Playbook(check_count_max=2) >> half("A") >> unknown("A", 1)
    book << put_back("A", "answer", 1) >> unknown("A", 2) << discard_written("A", "CHECK_TIMES")
    book >> wait(1) << dead("A", "CHECK_TIMES") << nothing
    assert book.log.op[-1].op.source is OpSource.CHECKER


def test_a_second_last_answer_writes_no_second_discard() -> None:
    """One DISCARD is enough, whatever is answered while it is on its way."""
    book = Playbook(check_count_max=1) >> half("A") >> unread(unknown("A", 1), unknown("A", 2))
    book.reader.read_op()
    book << discard_written("A", "CHECK_TIMES") >> wait(1) << dead("A", "CHECK_TIMES")


def test_the_count_of_answers_survives_a_restart_before_the_discard() -> None:
    """The dead letter tells all counted answers, although no copy carries the last one."""
    book = Playbook(check_count_max=2) >> half("A") >> unknown("A", 1)
    book << put_back("A", "answer", 1) >> unknown("A", 2) << discard_written("A", "CHECK_TIMES")
    book >> restart << dead("A", "CHECK_TIMES")
    assert book.plan.dead[0].check_times == 2


# --- DISCARD -------------------------------------------------------------------------------


def test_an_operator_may_discard() -> None:
    """All messages go to the dead-letter topic with the operator's reason."""
    book = Playbook() >> half("A", 0) >> half("A", 1) >> discard("A", reason="ticket 7")
    book << dead("A", "OPERATOR", 0) + dead("A", "OPERATOR", 1)
    assert {each.detail for each in book.plan.dead} == {"ticket 7"}


def test_a_discard_for_age_must_prove_the_age() -> None:
    """The daemon's AGE discard takes effect only by its own append time."""
    book = Playbook() >> half("A") >> wait(AGE_MS - 1)
    book >> discard_for_age("A", AGE_MS) << nothing
    book << counted(Count.INVALID_OP)
    book >> wait(1) >> discard_for_age("A", AGE_MS) << dead("A", "AGE")


def test_a_discard_for_answers_needs_no_age() -> None:
    """CHECK_TIMES is no matter of time."""
    book = Playbook() >> half("A") >> discard("A", OpSource.CHECKER, reason=REASON_CHECK_TIMES)
    book << dead("A", "CHECK_TIMES")


# --- rule 6: groups; orphans ---------------------------------------------------------------


def test_another_groups_half_under_a_known_id_is_a_transaction_of_its_own() -> None:
    """Two groups with one id never touch each other, in whatever order they end."""
    book = Playbook() >> half("A") >> half("A", producer_group="billing")
    book >> rollback("A") << nothing >> wait(20_000) << nothing << nothing
    book >> half("A", 1, producer_group="billing")
    book >> commit("A", count=2, producer_group="billing") << delivered("A", 0, 1)
    assert book.plan.deliveries[0].producer_group == "billing"


def test_another_resume_count_is_another_transaction() -> None:
    """A resumed transaction has a life of its own."""
    book = Playbook() >> half("A") >> rollback("A") << nothing
    book >> half("A", resume_count=1) >> commit("A", resume_count=1) << delivered("A")


def test_an_orphan_answer_is_forgotten() -> None:
    """An UNKNOWN decides nothing: the half that comes after it is undecided."""
    book = Playbook() >> unknown("A", 1, half_offset=-1) << nothing << counted(Count.ORPHAN_OP)
    book >> half("A") << nothing << nothing_counted >> commit("A") << delivered("A")


def test_notes_are_bounded() -> None:
    """A flood of refused ops is counted in full and described in part."""
    book = Playbook() >> half("A")
    for _ in range(NOTES_MAX + 5):
        book >> discard("A", OpSource.PRODUCER)
    book << nothing << counted(Count.INVALID_OP, NOTES_MAX + 5)
    assert len(book.plan.notes) == NOTES_MAX
