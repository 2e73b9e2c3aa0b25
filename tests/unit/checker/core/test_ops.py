"""Playbook cases: effects of COMMIT, ROLLBACK, UNKNOWN and DISCARD, and who may write them."""

import pytest

from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.ops import Ops, discard_reason, judge_commit
from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.settings import ALLOWED_MAX, NOTES_MAX
from halfbridge.serde.limits import STUB_BYTES_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.protocol import REASON_AGE, REASON_CHECK_TIMES, REASON_TOO_LARGE
from halfbridge.serde.records import COUNT_UNKNOWN, DeadReason, OpKind, OpSource
from tests.playbook import (
    HALF_BYTES_MAX,
    HOUR_MS,
    Playbook,
    Step,
    commit,
    counted,
    dead,
    dead_by_reference,
    delivered,
    discard,
    discard_for_age,
    discard_written,
    half,
    junk_half,
    junk_letter,
    killed_before_commit,
    metadata,
    nothing,
    nothing_counted,
    op_record,
    put_back,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)

AGE_MS = 72 * HOUR_MS


# --- rule 4: COMMIT ------------------------------------------------------------------------


def test_a_gap_delivers_nothing() -> None:
    """If a message is missing, nothing is delivered; the stored messages are dead-lettered."""
    book = Playbook() >> half("A", 0) >> half("A", 2) >> commit("A", count=3)
    book << dead("A", "INCOMPLETE", 0) + dead("A", "INCOMPLETE", 2)
    assert book.plan.dead[0].detail == "of 3 messages 2 are there: [0, 2] ..."


def test_an_unreadable_last_message_is_missed_by_its_count_only() -> None:
    """A missing last message is found only with a count; a gap is found without one, too."""
    book = Playbook() >> half("A", 0) >> half("A", 1) >> junk_half() >> commit("A", count=3)
    book << dead("A", "INCOMPLETE", 0) + dead("A", "INCOMPLETE", 1) + junk_letter("half", 2)
    book = Playbook() >> half("A", 0) >> half("A", 1) >> junk_half() >> commit("A")
    book << delivered("A", 0, 1) + junk_letter("half", 2)
    book = Playbook() >> half("A", 0) >> junk_half() >> half("A", 2) >> commit("A")
    book << dead("A", "INCOMPLETE", 0) + dead("A", "INCOMPLETE", 2) + junk_letter("half", 1)


def test_a_message_after_the_decision_is_late() -> None:
    """A message stored after the decision is LATE, read before its application or after."""
    book = Playbook() >> half("A", 0) >> commit("A") << delivered("A", 0)
    book >> half("A", 1) << dead("A", "LATE", 1)
    book = Playbook() >> half("A", 0) >> half("A", 1) >> commit("A", half_offset=0)
    book << delivered("A", 0) + dead("A", "LATE", 1)


def test_a_forbidden_topic_gets_a_dead_letter() -> None:
    """A COMMIT to a topic that the group may not write to is applied once, as dead letters."""
    book = Playbook() >> half("A", 0) >> half("A", 1, real_topic="forbidden") >> commit("A")
    book << dead("A", "NOT_ALLOWED", 0) + dead("A", "NOT_ALLOWED", 1)
    assert book.plan.dead[0].detail == "group orders may not write to forbidden"
    book >> commit("A") << nothing << counted(Count.DUPLICATE)


def test_the_policy_is_asked_once_for_each_pair() -> None:
    """Answers of the policy are cached, up to ALLOWED_MAX, and not for names too long."""
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


def test_other_unknowns_do_not_count() -> None:
    """A repeated answer, and one too far ahead, change nothing."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    for number in (1, 3):
        book >> unknown("A", number) << nothing << counted(Count.ANSWER_NOT_COUNTED)


def test_a_counted_answer_is_seen_in_the_delivery() -> None:
    """A delivery has the number of counted answers."""
    book = Playbook() >> half("A") >> unknown("A", 1) << put_back("A", "answer", 1)
    book >> commit("A") << delivered("A")
    assert book.plan.deliveries[0].check_times == 1


def test_a_second_last_answer_writes_no_second_discard() -> None:
    """Answers that are read before the DISCARD write no second one."""
    book = Playbook(check_count_max=1) >> half("A") >> unread(unknown("A", 1), unknown("A", 2))
    book.reader.read_op()
    book << discard_written("A", "CHECK_TIMES") >> wait(1) << dead("A", "CHECK_TIMES")


def test_the_count_of_answers_survives_a_restart_before_the_discard() -> None:
    """The dead letter has the number of counted answers, although no copy has the last one."""
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
    """The daemon's AGE discard takes effect only if its append time proves the age."""
    book = Playbook() >> half("A") >> wait(AGE_MS - 1)
    book >> discard_for_age("A", AGE_MS) << nothing
    book << counted(Count.INVALID_OP)
    book >> wait(1) >> discard_for_age("A", AGE_MS) << dead("A", "AGE")


def test_a_discard_for_answers_needs_no_age() -> None:
    """A CHECK_TIMES discard is valid at any age."""
    book = Playbook() >> half("A") >> discard("A", OpSource.CHECKER, reason=REASON_CHECK_TIMES)
    book << dead("A", "CHECK_TIMES")


# --- rule 6: groups; orphans ---------------------------------------------------------------
def test_another_groups_half_under_a_known_id_is_a_transaction_of_its_own() -> None:
    """Two groups with one id have separate transactions, decided in any order."""
    book = Playbook() >> half("A") >> half("A", producer_group="billing")
    book >> rollback("A") << nothing >> wait(20_000) << nothing << nothing
    book >> half("A", 1, producer_group="billing")
    book >> commit("A", count=2, producer_group="billing") << delivered("A", 0, 1)
    assert book.plan.deliveries[0].producer_group == "billing"


def test_another_resume_count_is_another_transaction() -> None:
    """A half with another resume count is not decided by an op of the earlier life."""
    book = Playbook() >> half("A") >> rollback("A") << nothing
    book >> half("A", resume_count=1) >> commit("A", resume_count=1) << delivered("A")


def test_an_orphan_answer_is_forgotten() -> None:
    """An UNKNOWN before its half is counted as orphan, and leaves the half undecided."""
    book = Playbook() >> unknown("A", 1, half_offset=-1) << nothing << counted(Count.ORPHAN_OP)
    book >> half("A") << nothing << nothing_counted >> commit("A") << delivered("A")


def test_notes_are_bounded() -> None:
    """All invalid ops are counted, and NOTES_MAX of them noted."""
    book = Playbook() >> half("A")
    for _ in range(NOTES_MAX + 5):
        book >> discard("A", OpSource.PRODUCER)
    book << nothing << counted(Count.INVALID_OP, NOTES_MAX + 5)
    assert len(book.plan.notes) == NOTES_MAX


# --- the effect of a COMMIT on messages: the table of cases --------------------------------


def _half(
    index: int, offset: int, *, flaw: str = "", topic: str = "real", user_bytes: int = 0
) -> HalfRead:
    reported = metadata("A", index)._replace(real_topic=topic)
    return HalfRead(offset, 1, reported, flaw, 10, None, user_bytes)


@pytest.mark.parametrize(
    ("life", "source", "count", "is_delivered"),
    [
        (1, OpSource.OPERATOR, COUNT_UNKNOWN, True),
        (0, OpSource.OPERATOR, COUNT_UNKNOWN, False),  # life 0 must be complete
        (1, OpSource.CHECK, COUNT_UNKNOWN, False),  # resumed, and decided by a check
        (1, OpSource.OPERATOR, 2, False),  # a count requires messages 0 to count - 1
    ],
)
def test_what_an_operator_redelivers_may_have_gaps(
    life: int, source: OpSource, count: int, is_delivered: bool
) -> None:
    """Messages 1 and 3 of a later life are delivered by an operator's COMMIT without a count."""
    op = op_record("A", OpKind.COMMIT, half_offset=2)._replace(
        resume_count=life, source=source, message_count=count
    )
    verdict = judge_commit([_half(1, 1), _half(3, 2)], op, lambda _group, _topic: True)
    assert [half.metadata.message_index for half in verdict.deliver] == [1, 3] * is_delivered
    assert len(verdict.dead) == 2 * (not is_delivered)


@pytest.mark.parametrize(
    ("messages", "count", "half_offset", "delivered", "dead"),
    [
        # (index, offset) of each message; count; half_offset -> indices; (index, reason)
        ([(0, 5)], 1, 5, [0], []),
        ([(0, 5)], COUNT_UNKNOWN, 9, [0], []),
        ([(0, 5)], 1, 4, [], [(0, "LATE")]),
        ([(0, 5)], COUNT_UNKNOWN, 4, [], [(0, "LATE")]),
        ([(0, 5)], 2, 5, [], [(0, "INCOMPLETE")]),
        ([(0, 5)], 0, 5, [], [(0, "EXTRA")]),
        ([(1, 5)], 1, 5, [], [(1, "EXTRA")]),
        ([(1, 5)], COUNT_UNKNOWN, 5, [], [(1, "INCOMPLETE")]),
        ([(0, 1), (1, 2)], 2, 2, [0, 1], []),
        ([(0, 1), (1, 2)], COUNT_UNKNOWN, 2, [0, 1], []),
        ([(0, 1), (1, 2)], 1, 2, [0], [(1, "EXTRA")]),
        ([(0, 1), (1, 2)], 2, 1, [], [(0, "INCOMPLETE"), (1, "LATE")]),
        ([(0, 1), (1, 2)], COUNT_UNKNOWN, 1, [0], [(1, "LATE")]),
        ([(0, 1), (2, 2)], 3, 2, [], [(0, "INCOMPLETE"), (2, "INCOMPLETE")]),
        ([(0, 1), (2, 2)], 1, 2, [0], [(2, "EXTRA")]),
        ([(0, 1), (2, 2)], 2, 2, [], [(0, "INCOMPLETE"), (2, "EXTRA")]),
        ([(1, 1), (2, 2)], 2, 2, [], [(1, "INCOMPLETE"), (2, "EXTRA")]),
    ],
)
def test_all_or_nothing(
    messages: list[tuple[int, int]],
    count: int,
    half_offset: int,
    delivered: list[int],
    dead: list[tuple[int, str]],
) -> None:
    """Messages 0 .. n-1 are delivered without a gap or not at all; all others are dead letters."""
    op = op_record("A", OpKind.COMMIT, half_offset=half_offset)._replace(message_count=count)
    verdict = judge_commit([_half(*each) for each in messages], op, lambda _group, _topic: True)
    assert [half.metadata.message_index for half in verdict.deliver] == delivered
    dead_lettered = sorted(
        (half.metadata.message_index, why.value) for half, why, _ in verdict.dead
    )
    assert dead_lettered == sorted(dead)


@pytest.mark.parametrize(
    ("messages", "count", "half_offset", "outcome"),
    [
        # (index, offset, bytes) of each message; count; half_offset -> outcome of all
        ([(0, 5, TRANSACTION_BYTES_MAX)], 1, 5, "delivered"),
        ([(0, 5, TRANSACTION_BYTES_MAX + 1)], 1, 5, "TOO_LARGE"),
        ([(0, 1, TRANSACTION_BYTES_MAX), (1, 2, 0)], 2, 2, "delivered"),
        ([(0, 1, TRANSACTION_BYTES_MAX), (1, 2, 1)], 2, 2, "TOO_LARGE"),
        # Too large and incomplete: the size is checked first.
        ([(0, 1, TRANSACTION_BYTES_MAX + 1)], 2, 2, "TOO_LARGE"),
        ([(number, number, 1) for number in range(1_000)], 1_000, 999, "delivered"),
        ([(number, number, 1) for number in range(1_001)], 1_001, 1_000, "TOO_LARGE"),
        ([(number, number, 1) for number in range(1_001)], COUNT_UNKNOWN, 1_000, "TOO_LARGE"),
        ([(5_000, 1, 1)], COUNT_UNKNOWN, 1, "TOO_LARGE"),
    ],
)
def test_what_is_too_large_is_not_delivered(
    messages: list[tuple[int, int, int]], count: int, half_offset: int, outcome: str
) -> None:
    """A transaction of more than 1,000 messages or 8 MiB is TOO_LARGE."""
    op = op_record("A", OpKind.COMMIT, half_offset=half_offset)._replace(message_count=count)
    halves = [_half(index, offset, user_bytes=size) for index, offset, size in messages]
    verdict = judge_commit(halves, op, lambda _group, _topic: True)
    assert len(verdict.deliver) == (len(halves) if outcome == "delivered" else 0)
    assert {why.value for _, why, _ in verdict.dead} == ({outcome} - {"delivered"})


def test_only_what_the_decision_covers_is_weighed() -> None:
    """Messages beyond the count, or after the decision, do not count towards the size limit."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=1)
    halves = [
        _half(0, 1, user_bytes=1),
        _half(1, 2, user_bytes=TRANSACTION_BYTES_MAX),
        _half(1_000, 6),
    ]
    verdict = judge_commit(halves, op, lambda _group, _topic: True)
    assert verdict.deliver == (halves[0],)
    assert [why for _, why, _ in verdict.dead] == [DeadReason.EXTRA, DeadReason.LATE]


def test_a_forged_count_costs_nothing() -> None:
    """A count of 2,147,483,647 makes the messages INCOMPLETE, without a loop over the count."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=(1 << 31) - 1)
    verdict = judge_commit([_half(0, 1), _half(1, 2)], op, lambda _group, _topic: True)
    assert [why for _, why, _ in verdict.dead] == [DeadReason.INCOMPLETE] * 2


def test_one_refused_message_refuses_all() -> None:
    """One flawed message makes all covered ones NOT_ALLOWED; extra ones keep their reason."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=2)
    messages = [_half(0, 1), _half(1, 2, flaw="two RMQ_HALF"), _half(2, 3)]
    verdict = judge_commit(messages, op, lambda _group, _topic: True)
    assert verdict.deliver == ()
    assert [(why, detail) for _, why, detail in verdict.dead] == [
        (DeadReason.NOT_ALLOWED, "two RMQ_HALF"),
        (DeadReason.NOT_ALLOWED, "two RMQ_HALF"),
        (DeadReason.EXTRA, "the commit covers 2 messages"),
    ]


def test_a_single_message_is_refused_likewise() -> None:
    """A transaction of one message is checked against the policy, too."""
    op = op_record("A", OpKind.COMMIT, half_offset=5)._replace(message_count=1)
    verdict = judge_commit([_half(0, 1, topic="t")], op, lambda _group, topic: topic != "t")
    assert verdict.deliver == ()
    assert verdict.dead[0][1:] == (DeadReason.NOT_ALLOWED, "group orders may not write to t")


@pytest.mark.parametrize(
    ("source", "reason", "expected"),
    [
        (OpSource.CHECKER, REASON_CHECK_TIMES, DeadReason.CHECK_TIMES),
        (OpSource.CHECKER, REASON_AGE, DeadReason.AGE),
        (OpSource.CHECKER, REASON_TOO_LARGE, DeadReason.TOO_LARGE),
        (OpSource.CHECKER, "something else", DeadReason.OPERATOR),
        (OpSource.OPERATOR, REASON_AGE, DeadReason.OPERATOR),
        (OpSource.OPERATOR, "ticket 7", DeadReason.OPERATOR),
    ],
)
def test_a_discard_says_why(source: OpSource, reason: str, expected: DeadReason) -> None:
    """The daemon's three reasons count only from the daemon; all others mean OPERATOR."""
    op = op_record("A", OpKind.DISCARD, half_offset=5)._replace(source=source, reason=reason)
    assert discard_reason(op) is expected


# --- playbook cases: transactions and copies that are larger than the protocol allows ------

HALF_OF_IT = TRANSACTION_BYTES_MAX // 2
EXCESS = TRANSACTION_MESSAGES_MAX
TOO_LARGE = "TOO_LARGE"


def _large(name: str) -> Step:
    """Store a transaction of three messages, of which two have the maximum size."""
    return unread(*(half(name, index, user_bytes=HALF_OF_IT) for index in range(3)))


def _letters(name: str, reason: str = TOO_LARGE) -> tuple[str, ...]:
    return tuple(line for index in range(3) for line in dead_by_reference(name, reason, index))


def test_a_commit_of_too_many_bytes_buries_references() -> None:
    """The dead letters are stubs without bodies, and count with STUB_BYTES_MAX."""
    book = Playbook() >> _large("A") >> half("B") >> commit("A", 3) >> commit("B")
    book << delivered("B") + _letters("A")
    assert book.plan.size_bytes == 3 * STUB_BYTES_MAX + 100
    assert [each.half.body for each in book.plan.dead] == [None] * 3
    assert (book.progress.half, book.progress.op) == (4, 2)


def test_a_rebuild_judges_likewise() -> None:
    """A ledger after a crash before commit writes the same dead letters, once."""
    book = Playbook() >> _large("A") >> commit("A", 3)
    book >> killed_before_commit
    book.reader.read()
    book << _letters("A") >> restart << nothing


def test_messages_of_an_oversize_transaction_are_dead_lettered_by_reference_whatever_decides() -> (
    None
):
    """Dead letters of an oversize transaction have no bodies, for every kind of decision."""
    book = Playbook() >> _large("A") >> discard("A") << _letters("A", "OPERATOR")
    book >> _large("B") >> wait(73 * HOUR_MS) >> discard_for_age("B", HOUR_MS)
    book << _letters("B", "AGE")
    book >> _large("C") >> commit("C", 1)
    book << delivered("C") + _letters("C", "EXTRA")[1:]
    book >> _large("D") >> rollback("D") << nothing


def test_a_message_beyond_the_last_index_is_excess() -> None:
    """The first excess message makes the transaction TOO_LARGE; others are dead letters at once."""
    book = (
        Playbook() >> half("A") >> half("A", EXCESS) >> half("A", EXCESS + 7) >> half("A", EXCESS)
    )
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 7) << counted(Count.DUPLICATE)
    assert book.progress.position == 4
    book >> commit("A")
    book << dead_by_reference("A", TOO_LARGE) + dead_by_reference("A", TOO_LARGE, EXCESS)


def test_excess_is_dead_lettered_once_over_restarts() -> None:
    """P prevents a second letter of an excess message, and the first excess message holds H."""
    book = Playbook() >> half("A", EXCESS) >> half("A", EXCESS + 1)
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 1)
    book >> restart >> half("A", EXCESS + 2)
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 2)
    assert book.progress.half == 0
    book >> killed_before_commit >> half("A") >> commit("A")
    book << dead_by_reference("A", TOO_LARGE) + dead_by_reference("A", TOO_LARGE, EXCESS)


def test_what_was_not_committed_of_excess_is_dead_lettered_after_the_restart() -> None:
    """An excess message whose letter was not committed is dead-lettered after the restart."""
    book = Playbook() >> half("A", EXCESS) >> half("A", EXCESS + 1)
    book >> killed_before_commit
    book.reader.read()
    book << dead_by_reference("A", TOO_LARGE, EXCESS + 1)


def test_an_oversize_transaction_is_discarded_in_place_of_being_put_back() -> None:
    """Instead of a copy a DISCARD is written; H stays until it is read."""
    book = Playbook() >> _large("A") >> unknown("A", 1)
    book << discard_written("A", TOO_LARGE)
    assert book.progress.half == 0
    book >> wait(1)
    book << _letters("A")
    assert book.progress.half == 3


def test_the_window_rule_discards_it_too() -> None:
    """The window rule writes a DISCARD for an oversize transaction, once."""
    book = Playbook(republish_window_records=2) >> _large("A")
    for number in range(12):
        book >> half(f"B{number}") >> commit(f"B{number}")
    book << sum((delivered(f"B{number}") for number in range(12)), ()) + discard_written(
        "A", TOO_LARGE
    )
    book << nothing << nothing_counted
    book >> wait(1) << _letters("A")


def test_a_copy_that_does_not_fit_discards_its_transaction() -> None:
    """If a copy, longer by its header, exceeds the half topic's limit, a DISCARD is written."""
    full = half("A", size_bytes=HALF_BYTES_MAX)
    book = Playbook() >> full >> unknown("A", 1) << discard_written("A", TOO_LARGE)
    book >> restart >> wait(1)
    book << ("dead A[0] TOO_LARGE",)
    almost = half("B", size_bytes=HALF_BYTES_MAX - 1)
    book >> almost >> unknown("B", 1) << put_back("B", "answer", 1)


def test_a_decision_before_that_discard_wins() -> None:
    """Rule 2: a COMMIT before the DISCARD in the op log wins."""
    book = Playbook() >> half("A", size_bytes=HALF_BYTES_MAX)
    book >> unread(unknown("A", 1), commit("A"))
    book.reader.read_op(1)
    book << discard_written("A", TOO_LARGE)
    book >> wait(1) << delivered("A") << nothing
