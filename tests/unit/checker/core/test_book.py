"""Playbook cases: duplicates, late halves, copies, put back by window, immunity of several."""

import pytest

from halfbridge.checker.core.entries import Entry
from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.plan import Count, Draft, PutBackRule
from halfbridge.checker.core.settings import RECENT_MAX, RECENT_MS
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource
from tests.playbook import (
    MINUTE_MS,
    SECOND_MS,
    TIMEOUT_MS,
    Lines,
    Playbook,
    Step,
    asked,
    commit,
    counted,
    dead,
    delivered,
    discard,
    half,
    metadata,
    nobody_asked,
    nothing,
    op_end,
    put_back,
    read_half,
    read_ops,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)


# --- rule 7: the first half wins -----------------------------------------------------------
def test_a_duplicate_does_not_age_its_transaction_anew() -> None:
    """Checks fall due by the append time of the first half."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS - 1) >> half("A") >> op_end << nothing
    book << nobody_asked >> wait(1) >> op_end << nothing << asked("A")


# --- copies --------------------------------------------------------------------------------
def test_a_copy_stands_for_its_original() -> None:
    """H moves past the original when the copy is committed, and stays at the copy."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    assert (book.progress.half, book.progress.rebuild_to) == (1, 2)
    book << nothing
    assert book.progress.half == 1
    book >> wait(1) << nothing
    assert book.progress.half == 1
    book >> commit("A") << delivered("A")
    assert book.plan.deliveries[0].messages[0].origin == 0
    assert book.progress.half == book.log.half_end


def test_a_decision_may_come_while_copies_are_in_flight() -> None:
    """Copies that are read after the decision change nothing."""
    book = Playbook() >> half("A") >> unread(unknown("A", 1), commit("A")) >> read_ops
    book << delivered("A") + put_back("A", "answer", 1) >> wait(1) << nothing
    assert book.progress.half == book.log.half_end
    book >> restart << nothing >> commit("A") << nothing << counted(Count.DUPLICATE)


def test_two_answers_may_be_counted_before_the_first_copy_is_back() -> None:
    """Each counted answer writes a copy; the newest copy counts."""
    book = Playbook() >> half("A") >> unread(unknown("A", 1), unknown("A", 2)) >> read_ops
    book << put_back("A", "answer", 1) + put_back("A", "answer", 2)
    book.reader.read_half(1)
    assert book.ledger._book.held.lowest().unread_copies == {0: 1}
    book >> wait(1) << nothing >> restart << nothing
    book >> unknown("A", 3) << put_back("A", "answer", 3) >> wait(1) >> commit("A")
    book << delivered("A")
    assert book.plan.deliveries[0].check_times == 3


def test_a_message_that_comes_while_copies_are_in_flight_holds_h() -> None:
    """H stays at a new message below the copies."""
    book = Playbook() >> half("A", 0) >> unread(unknown("A", 1), half("A", 1)) >> read_ops
    book << put_back("A", "answer", 1) >> wait(1) << nothing
    assert book.progress.half == 1
    book >> commit("A") << delivered("A", 0, 1)


def test_a_copy_that_nobody_wrote_changes_nothing() -> None:
    """A forged copy does not replace the original."""
    forged = half("A", origin_offset=0, check_times=14, first_append_timestamp=1)
    book = Playbook() >> half("A") << nothing >> forged << nothing << counted(Count.DUPLICATE)
    book >> commit("A") << delivered("A")
    assert book.plan.deliveries[0].messages[0].offset == 0
    assert book.plan.deliveries[0].check_times == 0


def test_a_copy_from_the_future_is_asked_about() -> None:
    """A forged copy with a first append time years ahead falls due, and so do others."""
    far = half("A", origin_offset=0, first_append_timestamp=1 << 50)
    book = Playbook() << nothing >> far >> half("B") >> wait(TIMEOUT_MS) >> op_end << nothing
    book << asked("A") << asked("B")


# --- 5.3: the window rule ------------------------------------------------------------------
def test_the_oldest_undecided_is_put_back_by_records() -> None:
    """If H lags more than the window plus four records per undecided half, H moves up."""
    book = Playbook(republish_window_records=10) >> half("A") << nothing
    for number in range(13):
        book >> half(f"T{number}") >> commit(f"T{number}") << delivered(f"T{number}")
        assert book.progress.half == 0
    book >> half("B") >> commit("B") << delivered("B") + put_back("A", "window")
    assert book.progress.half == 15
    book >> commit("A") << delivered("A")


def test_the_oldest_undecided_is_put_back_by_bytes() -> None:
    """The window is limited in bytes, too."""
    book = Playbook(republish_window_bytes=1_000) >> half("A") << nothing
    book >> half("B", size_bytes=1_300) >> commit("B") << delivered("B")
    book >> half("C", size_bytes=1) >> commit("C") << delivered("C") + put_back("A", "window")


def test_the_window_is_kept_within_the_bounds_of_a_plan() -> None:
    """Put backs do not exceed a plan's limits of records and bytes."""
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
    """Put backs by the window rule are at most a third of the half records read."""
    book = Playbook(republish_window_records=0)
    for number in range(undecided):
        book >> half(f"U{number}")
    copies = 0
    for number in range(2_000):
        book >> half(f"T{number}") >> commit(f"T{number}")
        copies += len(book.take_plan().put_backs)
        book.commit()
    assert 0 < copies <= book.log.half_end / 3


# --- immunity ------------------------------------------------------------------------------
def test_the_longest_immunity_of_a_transaction_counts() -> None:
    """A later message's longer immunity applies to the whole transaction."""
    book = Playbook() >> half("A", 0) >> half("A", 1, immunity_ms=MINUTE_MS)
    book >> wait(TIMEOUT_MS) >> op_end << nothing << nobody_asked
    book >> wait(MINUTE_MS - TIMEOUT_MS) >> op_end << nothing << asked("A")


def test_immunity_that_comes_after_the_first_check_is_too_late() -> None:
    """After the first check, a new immunity does not change the next check's time."""
    book = Playbook() >> half("A", 0) >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A")
    book >> half("A", 1, immunity_ms=1 << 40) >> wait(30_000) >> op_end << nothing
    book << asked("A", attempt=2)


# --- playbook cases: how long decisions stay known, and the resulting T --------------------


def _forget(book: Playbook) -> Playbook:
    """Read a half message and its rollback so late that older decisions are forgotten."""
    name = f"later-{book.log.half_end}"
    return book >> wait(RECENT_MS + 1) >> half(name) >> rollback(name) << nothing


def test_a_decision_is_known_for_ten_seconds() -> None:
    """A duplicate half within RECENT_MS of the decision is not a new transaction."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> wait(RECENT_MS) << nothing
    book >> half("A") << nothing << counted(Count.DUPLICATE)


def test_a_duplicate_that_is_read_late_counts_by_when_it_was_appended() -> None:
    """A duplicate that was appended within RECENT_MS is recognized, also when read later."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> unread(wait(SECOND_MS), half("A"), wait(2 * RECENT_MS)) << nothing << nothing
    book >> read_half << nothing << counted(Count.DUPLICATE)
    assert book.ledger.held_halves == 0


def test_a_decision_is_forgotten_after_that() -> None:
    """A duplicate half after that is a new transaction."""
    book = _forget(Playbook() >> half("A") >> commit("A") << delivered("A"))
    assert book.progress.ops_from == 1
    book >> half("A") << nothing
    assert book.ledger.held_halves == 1


def test_a_restart_knows_recent_decisions_too() -> None:
    """A duplicate half after a restart is not delivered again."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> restart << nothing
    book >> half("A") << dead("A", "LATE")
    assert "no longer known" in book.plan.dead[0].detail
    book = Playbook() >> half("B") >> rollback("B") << nothing >> restart >> half("B") << nothing


def test_a_decision_stays_known_while_a_rebuild_would_meet_its_half() -> None:
    """While H is at or below a decided half, T stays at its decision."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    _forget(book)
    assert (book.progress.half, book.progress.ops_from) == (0, 0)
    book >> restart << nothing >> commit("A") << nothing << counted(Count.DUPLICATE)
    book >> commit("X") << delivered("X")
    _forget(book)
    assert (book.progress.half, book.progress.ops_from) == (book.log.half_end, book.log.op_end - 1)


def test_a_late_record_keeps_its_decision_known() -> None:
    """A record of a decided transaction at or above H keeps T at its decision."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A") >> half("X") >> half("A")
    _forget(book)
    assert book.progress.ops_from == 0
    book >> restart << nothing >> commit("X") << delivered("X")
    assert book.ledger.held_halves == 0


def test_copies_in_flight_keep_their_decision_known() -> None:
    """While a copy is not read back, the decision stays known."""
    book = Playbook() >> half("A") >> unread(unknown("A", 1), commit("A")) >> read_ops
    book.take_plan()
    book.commit()
    book.now_ms += RECENT_MS + 1
    book << nothing
    assert book.progress.ops_from == 1
    _forget(book) << nothing
    assert book.progress.ops_from == book.log.op_end - 1
    assert book.ledger.held_halves == 0


def test_decisions_are_forgotten_from_the_front_only() -> None:
    """A decision that is needed keeps the later ones known: a rebuild reads their ops too."""
    book = Playbook() >> half("A") >> half("B") >> half("X") >> commit("B") >> commit("A")
    book << delivered("B") + delivered("A") >> half("B") << nothing
    _forget(book)
    assert book.progress.ops_from == 0
    book >> half("A") << nothing << counted(Count.DUPLICATE)


def _said_again(*again: Step) -> Playbook:
    """Forget A's COMMIT, but not B's decision, which precedes the ops `again`."""
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
    """After T passed the first op, the repeated op keeps the decision known, as in a rebuild."""
    book = _said_again(*said) >> again << nothing
    assert book.ledger.held_halves == 0
    book >> half("A") << late
    assert book.ledger.held_halves == 0


@pytest.mark.parametrize("again", [restart, wait(0)])
def test_what_was_said_again_is_forgotten_too(again: Step) -> None:
    """A repeated decision is forgotten RECENT_MS after its last op."""
    book = _said_again(commit("A"), rollback("A")) >> again << nothing
    _forget(book)
    _forget(book)
    assert book.progress.ops_from == book.log.op_end - 1
    assert len(book.ledger._book.entries) == 1
    book >> half("A") << nothing
    assert book.ledger.held_halves == 1


def test_what_does_not_decide_keeps_nothing_known() -> None:
    """An answer or invalid discard does not keep the transaction known, as in a rebuild."""
    book = _said_again(unknown("A", 1), discard("A", OpSource.PRODUCER)) >> half("A") << nothing
    assert book.ledger.held_halves == 1
    book >> restart >> commit("A") << delivered("A")


def test_a_group_apart_that_says_it_again_stays_apart() -> None:
    """Repeated decisions of two groups with one id are forgotten separately."""
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
    """Beyond RECENT_MAX the oldest decisions are forgotten early."""
    book = Playbook() << nothing
    for number in range(RECENT_MAX + 1):
        book >> unread(half(f"T{number}"), rollback(f"T{number}"))
    book >> op_end << nothing << nothing
    assert len(book.ledger._book.entries) == RECENT_MAX
    assert book.progress.ops_from == 1


def test_nobody_keeps_more_known_by_saying_it_again() -> None:
    """Repeated ops count towards RECENT_MAX."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    for _ in range(RECENT_MAX + 10):
        book >> unread(rollback("A"))
    book >> op_end << nothing << nothing
    assert len(book.ledger._book.entries) == 1
    assert book.progress.ops_from == book.log.op_end - RECENT_MAX


# --- the plan under construction: copies, discards, sizes ----------------------------------


def _entry() -> Entry:
    entry = Entry(HalfRead(4, 500, metadata("A"), "", 10, "body"))
    entry.messages[1] = HalfRead(6, 501, metadata("A", 1), "", 20, "body")
    entry.check_times = 2
    return entry


def test_a_copy_tells_the_life_of_its_original() -> None:
    """A copy has check count, first append time and origin; other header fields do not change."""
    draft = Draft(1_000)
    draft.put_back(_entry(), PutBackRule.WINDOW)
    first, second = draft.plan.put_backs
    expected = metadata("A")._replace(check_times=2, first_append_timestamp=500, origin_offset=4)
    assert first.metadata == expected
    assert (second.metadata.origin_offset, second.metadata.first_append_timestamp) == (6, 500)
    assert (draft.plan.records, draft.plan.size_bytes) == (2, 30)


def test_a_copy_of_a_copy_keeps_the_origin() -> None:
    """A copy of a copy has the original's offset and first append time."""
    draft = Draft(1_000)
    copy = metadata("A")._replace(origin_offset=1, first_append_timestamp=300)
    draft.put_back(Entry(HalfRead(4, 500, copy, "", 10, None)), PutBackRule.ANSWER)
    (put_back,) = draft.plan.put_backs
    assert put_back.metadata == copy


def test_a_discard_names_what_it_is_about() -> None:
    """A DISCARD's half_offset is the transaction's last record, so that it waits for all."""
    draft = Draft(1_000)
    draft.discard(_entry(), "CHECK_TIMES", "worker-0", 900)
    (op,) = draft.plan.discards
    assert (op.kind, op.source, op.actor) == (OpKind.DISCARD, OpSource.CHECKER, "worker-0")
    assert (op.half_offset, op.message_count, op.check_number) == (6, COUNT_UNKNOWN, 2)
    assert (op.transaction_id, op.producer_group, op.reason) == ("A", "orders", "CHECK_TIMES")


def test_a_taken_plan_is_not_touched_again() -> None:
    """Records that are added after `pop` belong to the next plan."""
    draft = Draft(1_000)
    draft.dead_letter_junk_op(JunkRead(1, 2, "broken", 10, None))
    taken = draft.pop()
    draft.dead_letter_junk_op(JunkRead(2, 2, "broken", 20, None))
    assert (len(taken.junk), taken.records, taken.size_bytes) == (1, 1, 10)
    assert len(draft.plan.junk) == 1
