"""What is written for a transaction, and what is refused with a word on how to go on."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.admin.dead.letters import (
    RESUME_COUNT_MAX,
    Body,
    Choice,
    DeadTransaction,
    ExaminedLetter,
    Given,
    Key,
    Letter,
    LetterPlace,
    Remedy,
    Standing,
)
from halfbridge.checker.admin.dead.plans import NewLife, Refusal, chosen_letters, plan_life
from halfbridge.serde.avro import HALF_METADATA, DeadMark, MarkAction
from halfbridge.serde.headers import CONTEXT, HALF, parse_half
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.records import COUNT_UNKNOWN, DeadReason
from tests.kit.records import A_HALF, A_LETTER, AN_OP

KEY = Key(A_HALF.transaction_id, 0, A_HALF.producer_group, 0)
MARK = DeadMark(KEY.transaction_id, 0, MarkAction.REDELIVERED, 0, 1, "ann", "")
DELIVER = Choice(remedy=Remedy.REDELIVER)


def letter(index: int, reason: DeadReason, *, at: int = -1, flaw: str = "") -> Letter:
    """Return the dead letter of message `index`, at offset `index` unless given."""
    dead = A_LETTER._replace(reason=reason, source_offset=index, op_offset=0)
    half = A_HALF._replace(message_index=index, check_times=3, origin_offset=2)
    return Letter(LetterPlace(0, index if at < 0 else at), 1, dead, half, flaw, 10)


def looked(each: Letter, count: int | None = None, **changes: Any) -> ExaminedLetter:
    """Return a letter that is proven, with an op that covers so many messages; None: no op."""
    assert each.half is not None
    headers = [("h", b"1"), (CONTEXT, b"c"), (HALF, HALF_METADATA.encode(each.half))]
    body = Body(b"k", b"%d" % each.message_index, headers)
    op = None if count is None else AN_OP._replace(message_count=count)
    return ExaminedLetter(each, Standing.PROVEN, body, op)._replace(**changes)


def planned(
    *every: ExaminedLetter, choice: Choice = DELIVER, marks: tuple[Letter, ...] = (), life: int = 1
) -> NewLife | str:
    """Return the plan, or why there is none."""
    letters = tuple(each.letter for each in every) + marks
    transaction = DeadTransaction(KEY, letters, {each.place: MARK for each in marks})
    plan = plan_life(transaction, every, choice, life)
    return plan.why if isinstance(plan, Refusal) else plan


UNDELIVERABLE, INCOMPLETE = DeadReason.UNDELIVERABLE, DeadReason.INCOMPLETE
EXTRA, LATE = DeadReason.EXTRA, DeadReason.LATE


def test_a_new_half_begins_anew_and_keeps_everything_else() -> None:
    """No counted answers, no origin, the next life; key, value and the sender's headers stay."""
    plan = planned(looked(letter(0, UNDELIVERABLE), 1), life=4)
    assert isinstance(plan, NewLife)
    (half,) = plan.halves
    assert half.headers[:2] == [("h", b"1"), (CONTEXT, b"c")]
    assert parse_half(half.headers) == (A_HALF._replace(resume_count=4), "")
    assert (half.body.key, half.body.value) == (b"k", b"0")


@pytest.mark.parametrize(
    ("indices", "count"),
    [((0,), 1), ((0, 1, 2), 3), ((1,), COUNT_UNKNOWN), ((0, 2), COUNT_UNKNOWN)],
)
def test_a_gap_leaves_the_count_open(indices: tuple[int, ...], count: int) -> None:
    """Only messages 0 to n - 1 have a count; it is judged as any other."""
    plan = planned(*(looked(letter(each, EXTRA), 0) for each in indices))
    assert isinstance(plan, NewLife)
    assert plan.message_count == count
    assert [each.metadata.message_index for each in plan.halves] == list(indices)


def test_duplicates_are_written_once_and_all_marked() -> None:
    """A LATE duplicate of message 0: one half, two marks, and the first record stands."""
    first, again = letter(0, UNDELIVERABLE), letter(0, LATE, at=9)
    plan = planned(looked(again, 1), looked(first, 1))
    assert isinstance(plan, NewLife)
    assert len(plan.halves) == 1
    assert set(plan.marked) == {first.place, again.place}


@pytest.mark.parametrize(
    ("every", "text"),
    [
        ([(0, INCOMPLETE), (2, INCOMPLETE)], "messages 1 are missing"),
        ([(0, INCOMPLETE)], "messages 1, 2 are missing"),
        ([(0, INCOMPLETE), (1, LATE), (2, INCOMPLETE)], ""),
        ([(0, INCOMPLETE), (1, LATE), (2, INCOMPLETE), (3, EXTRA)], ""),
    ],
)
def test_an_incomplete_one_of_three(every: list[tuple[int, DeadReason]], text: str) -> None:
    """All that the COMMIT covers must be there, from whichever dead letters."""
    plan = planned(*(looked(letter(index, reason), 3) for index, reason in every))
    if text:
        assert isinstance(plan, str)
        assert plan.startswith(text)
    else:
        assert isinstance(plan, NewLife)
        assert plan.message_count == len(every)


def test_an_incomplete_one_whose_op_is_gone_needs_the_operators_word() -> None:
    """Nobody knows how many there were; --accept-partial or --message says it is meant."""
    gone = looked(letter(0, INCOMPLETE))._replace(standing=Standing.DELETED)
    believes = {"remedy": Remedy.REDELIVER, "accept_unverified": True}
    assert "--accept-partial" in str(planned(gone, choice=Choice(**believes)))
    for more in ({"accept_partial": True}, {"messages": frozenset((0,))}):
        assert isinstance(planned(gone, choice=Choice(**believes, **more)), NewLife)


def test_a_forged_count_costs_nothing() -> None:
    """A COMMIT of two billion messages: the text names ten."""
    why = str(planned(looked(letter(0, INCOMPLETE), (1 << 31) - 1)))
    assert "and 989 more are missing" in why


@pytest.mark.parametrize(
    ("index", "count", "marked", "text"),
    [
        (1, 1, (), ""),  # beyond what the COMMIT covered: it was not delivered
        (1, 2, (), "was delivered with its transaction"),
        (1, COUNT_UNKNOWN, (), "may have been delivered"),
        (1, 3, (letter(0, INCOMPLETE), letter(2, INCOMPLETE)), ""),
        (2, 3, (letter(0, INCOMPLETE), letter(2, INCOMPLETE, at=8)), "was delivered with its"),
    ],
)
def test_a_late_message_is_not_delivered_twice(
    index: int, count: int, marked: tuple[Letter, ...], text: str
) -> None:
    """What the COMMIT covered was delivered; unless all was refused, and redelivered in part."""
    each = looked(letter(index, LATE, at=9), count)
    plan = planned(each, marks=marked)
    if not text:
        assert isinstance(plan, NewLife)
        return
    assert text in str(plan)
    choice = Choice(remedy=Remedy.REDELIVER, accept_duplicates=True)
    assert isinstance(planned(each, marks=marked, choice=choice), NewLife)


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (looked(letter(0, UNDELIVERABLE), 1, standing=Standing.FORGED), "contradicts"),
        (looked(letter(0, UNDELIVERABLE), 1, standing=Standing.DELETED), "--accept-unverified"),
        (looked(letter(0, UNDELIVERABLE), 1, body=None), "give them by --with FILE"),
        (looked(letter(0, UNDELIVERABLE, flaw="reserved header X"), 1), "reserved header X"),
    ],
)
def test_what_cannot_be_delivered_is_refused(each: ExaminedLetter, text: str) -> None:
    """The text says what the operator can do."""
    assert text in str(planned(each))


def test_a_flawed_message_is_replaced_by_a_given_one() -> None:
    """The file's message takes the place of the letter's; its topic may be another."""
    given = Given("other", 3, Body(None, b"mended", [("h", None)]))
    choice = Choice(remedy=Remedy.REDELIVER, given={(KEY.transaction_id, 0): given})
    plan = planned(looked(letter(0, UNDELIVERABLE, flaw="forged"), 1), choice=choice)
    assert isinstance(plan, NewLife)
    (half,) = plan.halves
    assert (half.metadata.real_topic, half.metadata.real_partition) == ("other", 3)
    assert (half.body.value, half.headers[0]) == (b"mended", ("h", None))


def test_limits_of_a_transaction_hold() -> None:
    """More than 8 MiB, or a life beyond an int of 32 bits, is refused."""
    large = looked(letter(0, EXTRA), 0, body=Body(None, bytes(TRANSACTION_BYTES_MAX + 1), []))
    assert "a transaction has at most" in str(planned(large))
    why = planned(looked(letter(0, EXTRA), 0), life=RESUME_COUNT_MAX + 1)
    assert why == "its resume_count is used up"


@pytest.mark.parametrize(
    ("reasons", "remedy"),
    [
        ((DeadReason.CHECK_TIMES,), Remedy.RESUME),
        ((DeadReason.AGE, DeadReason.OPERATOR), Remedy.RESUME),
        ((UNDELIVERABLE, EXTRA), Remedy.REDELIVER),
        ((DeadReason.NOT_ALLOWED,), Remedy.REDELIVER),
        ((DeadReason.TOO_LARGE,), Remedy.EXPORT),
        ((DeadReason.CHECK_TIMES, UNDELIVERABLE), Remedy.EXPORT),  # no daemon writes that
    ],
)
def test_the_decision_says_what_helps(reasons: tuple[DeadReason, ...], remedy: Remedy) -> None:
    """A discarded transaction is resumed, a committed one redelivered, and nothing else."""
    letters = tuple(letter(number, each) for number, each in enumerate(reasons))
    transaction = DeadTransaction(KEY, letters, {})
    assert transaction.remedy is remedy
    for tried in (Remedy.RESUME, Remedy.REDELIVER):
        chosen = chosen_letters(transaction, Choice(remedy=tried))
        assert isinstance(chosen, Refusal) == (tried is not remedy)


def test_a_dead_change_event_is_refused_with_the_way_on() -> None:
    """It belongs to no message transaction; the text names the change topic."""
    dead = A_LETTER._replace(reason=UNDELIVERABLE, source_topic="shop.public.orders")
    of_change = Letter(LetterPlace(0, 5), 1, dead, None, "", 10)
    found = chosen_letters(DeadTransaction(Key("", 5, "x", 0), (of_change,), {}), DELIVER)
    assert isinstance(found, Refusal)
    assert "change event of shop.public.orders" in found.why
    assert "dead purge" in found.why
