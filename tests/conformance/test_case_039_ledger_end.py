"""Conformance cases 40 to 61 and 67: the end of a transaction, as the ledger applies it."""

import pytest

from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.settings import OP_WAIT_MS
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import HALF, parse_half
from halfbridge.serde.records import OpKind, OpSource
from tests.playbook import (
    INTERVAL_MS,
    SECOND_MS,
    TIMEOUT_MS,
    Counted,
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
    junk_letter,
    junk_op,
    killed_before_commit,
    metadata,
    nobody_asked,
    nothing,
    nothing_counted,
    op_end,
    op_record,
    put_back,
    read_half,
    restart,
    rollback,
    unknown,
    wait,
)


def started() -> Playbook:
    """Return a playbook whose ledger has nothing to rebuild."""
    return Playbook() << nothing


def test_case_040_commit_from_a_check_delivers() -> None:
    """The answer to a check decides like the producer itself; the count is not known then."""
    book = started() >> half("A") >> wait(TIMEOUT_MS) >> op_end << asked("A")
    book >> commit("A", source=OpSource.CHECK, check_number=1) << delivered("A")


def test_case_041_rollback_delivers_nothing() -> None:
    """Not now and not after a restart."""
    book = started() >> half("A") >> rollback("A") << nothing << counted(Count.ROLLED_BACK)
    book >> restart << nothing
    assert book.log.written == []


def test_case_042_unknown_from_a_check_leaves_it_undecided() -> None:
    """Its only trace is the count; it is asked about again."""
    book = started() >> half("A") >> wait(TIMEOUT_MS) >> op_end << asked("A")
    book >> unknown("A", 1) << put_back("A", "answer", 1)
    book >> wait(INTERVAL_MS) >> op_end << asked("A", 2)


def test_case_043_a_kind_outside_the_enum_cannot_be_read() -> None:
    """It is a decode error with the reason; the record becomes a dead letter."""
    good = OP.encode(op_record("A", OpKind.COMMIT, half_offset=0))
    other = OP.encode(op_record("A", OpKind.ROLLBACK, half_offset=0))
    (at,) = (i for i, (a, b) in enumerate(zip(good, other, strict=True)) if a != b)
    with pytest.raises(DecodeError):
        OP.decode(good[:at] + b"\x7e" + good[at + 1 :])
    book = started() >> junk_op("unknown kind") << junk_letter("op", 0)
    book << nothing
    assert book.progress.op == 1


@pytest.mark.parametrize(
    ("end", "written", "counts"),
    [
        pytest.param(commit("A"), delivered("A"), nothing_counted, id="44"),
        pytest.param(rollback("A"), nothing, counted(Count.ROLLED_BACK), id="45"),
    ],
)
def test_case_044_and_045_a_late_decision_of_the_producer_is_final(
    end: Step, written: Lines, counts: Counted
) -> None:
    """D-014: behind the immunity the first decision still wins; RocketMQ refuses it (604)."""
    book = started() >> half("A", immunity_ms=60 * SECOND_MS) >> wait(65 * SECOND_MS)
    book >> end << written << counts
    book >> op_end << nobody_asked
    assert book.ledger.held_halves == 0


def test_case_046_behind_the_immunity_a_check_decides_too() -> None:
    """As in RocketMQ."""
    book = started() >> half("A", immunity_ms=60 * SECOND_MS) >> wait(65 * SECOND_MS)
    book >> op_end << asked("A")
    book >> commit("A", source=OpSource.CHECK, check_number=1) << delivered("A")


def test_case_047_without_immunity_a_late_commit_is_applied() -> None:
    """However late, as long as nothing was decided before."""
    started() >> half("A") >> wait(1_000 * SECOND_MS) >> commit("A") << delivered("A")


def test_case_049_a_decision_without_a_half_has_no_effect() -> None:
    """It is counted as an orphan; a half that comes after it is late, not delivered."""
    book = started() >> half("B") >> commit("A", half_offset=0)
    book << nothing << counted(Count.ORPHAN_OP)
    assert book.progress.op == 1
    book >> half("A") << dead("A", "LATE")
    book >> restart << nothing
    assert book.log.written == list(dead("A", "LATE"))


def test_case_050_another_group_decides_nothing() -> None:
    """Counted as invalid; the owner's decision rules."""
    book = started() >> half("A") >> rollback("A", producer_group="thieves")
    book << nothing << counted(Count.INVALID_OP)
    book >> commit("A") << delivered("A")


def test_case_051_a_half_without_a_group_cannot_be_read() -> None:
    """A decode error, and no exception that stops the daemon."""
    header = HALF_METADATA.encode(metadata("A")._replace(producer_group=""))
    with pytest.raises(DecodeError, match="producer group"):
        parse_half([(HALF, header)])


def test_case_052_a_decision_below_the_half_delivers_nothing_in_part() -> None:
    """A commit of one message that covers no stored one: dead letters, never a delivery."""
    book = started() >> half("B") >> half("A")
    book >> commit("A", 1, half_offset=0) << dead("A", "LATE")


def test_case_053_a_decision_beyond_the_log_is_noted_and_applied() -> None:
    """It waits for the proof, no longer; then it holds for what is there (rule 1)."""
    book = started() >> half("A") >> commit("A", 1, half_offset=99) << nothing
    assert book.ledger.wants_half_end(book.now_ms) is None
    book >> wait(OP_WAIT_MS) << nothing
    question = book.ledger.wants_half_end(book.now_ms)
    assert question is not None
    book.ledger.half_end(book.log.half_end, question)
    book << delivered("A") << nothing


@pytest.mark.parametrize("apart", [False, True])
def test_case_055_two_equal_commits_deliver_once(*, apart: bool) -> None:
    """In one plan or in two; the second is a duplicate."""
    book = started() >> half("A") >> commit("A")
    if apart:
        book << delivered("A")
        book >> commit("A") << nothing << counted(Count.DUPLICATE)
    else:
        book >> commit("A") << delivered("A") << nothing


def test_case_056_rollback_then_commit_delivers_nothing() -> None:
    """The commit is a conflict, counted and noted."""
    book = started() >> half("A") >> rollback("A") << nothing
    book >> commit("A") << nothing << counted(Count.CONFLICT)
    assert "came after it was rolled back" in book.plan.notes[0]


def test_case_057_commit_then_rollback_leaves_the_message() -> None:
    """Delivered once; the rollback is a conflict."""
    book = started() >> half("A") >> commit("A") << delivered("A")
    book >> rollback("A") << nothing << counted(Count.CONFLICT)


def test_case_058_commit_after_discard_is_a_conflict() -> None:
    """Never a silent delivery: the dead letter stays, the commit is counted and noted."""
    book = started() >> half("A") >> discard("A", reason="by hand") << dead("A", "OPERATOR")
    book >> commit("A") << nothing << counted(Count.CONFLICT)


def test_case_059_a_delivery_that_fails_is_made_later_and_once() -> None:
    """Its kafka_txn did not happen; nor did the progress; the next life delivers."""
    book = started() >> half("A") >> commit("A") >> killed_before_commit
    book >> wait(0) << delivered("A")
    assert book.log.written == list(delivered("A"))


def test_case_060_a_crash_behind_the_delivery_repeats_nothing() -> None:
    """Delivery and progress are one write: after it there is nothing left to do, nor to ask."""
    book = started() >> half("A") >> commit("A") << delivered("A")
    book >> restart << nothing
    book >> wait(TIMEOUT_MS) >> op_end << nobody_asked
    assert book.log.written == list(delivered("A"))


def test_case_061_decisions_survive_any_end_of_the_daemon() -> None:
    """With H held back by an undecided half, a rebuild meets decided ones: none is asked again."""
    book = started() >> half("open") >> half("A") >> half("B")
    book >> commit("A") >> rollback("B") << delivered("A")
    book >> restart << nothing
    book >> wait(TIMEOUT_MS) >> op_end << asked("open")
    book << nobody_asked
    book >> commit("A") << nothing << counted(Count.DUPLICATE)


def test_case_067_another_member_of_the_group_may_decide() -> None:
    """From any process of the group."""
    started() >> half("A") >> commit("A", actor="another host") << delivered("A")


def test_case_074_one_decision_covers_all_messages_of_its_transaction() -> None:
    """A restart in the middle reads it again, and delivers all or none."""
    book = started() >> half("A") >> half("A", 1) >> half("A", 2)
    book >> commit("A", 3) >> killed_before_commit >> wait(0) << delivered("A", 0, 1, 2)


def test_case_074_it_waits_for_all_of_them() -> None:
    """An op that is read before its halves is applied when they were read."""
    book = started()
    book.reads = False
    half("A")(book)
    half("A", 1)(book)
    commit("A", 2)(book)
    book.reader.read_op()
    book << nothing
    book >> read_half << delivered("A", 0, 1)
