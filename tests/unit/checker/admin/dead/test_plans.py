"""Plans for a dead transaction: the records to write, or a refusal that names the remedy."""

import json
from typing import Any

import pytest

from halfbridge.checker.admin.dead import letters as transactions
from halfbridge.checker.admin.dead.describe import exported, given
from halfbridge.checker.admin.dead.letters import (
    RESUME_COUNT_MAX,
    Authenticity,
    Body,
    Choice,
    DeadTransaction,
    ExaminedLetter,
    Found,
    Key,
    Letter,
    LetterPosition,
    Mark,
    Remedy,
    ReplacementMessage,
    Wanted,
)
from halfbridge.checker.admin.dead.plans import NewLife, Refusal, chosen_letters, plan_life
from halfbridge.checker.admin.dead.redoing import purge
from halfbridge.checker.admin.operator_log import ActionFilter, read
from halfbridge.checker.errors import AdminSetupError
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.avro import HALF_METADATA, DeadMark, MarkAction
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import CONTEXT, HALF, parse_half
from halfbridge.serde.limits import TRANSACTION_BYTES_MAX
from halfbridge.serde.records import COUNT_UNKNOWN, ActionOutcome, DeadReason
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.client import Kind
from tests.kit.dead_letters import TOPIC, Dying, Scene, order
from tests.kit.records import A_HALF, A_LETTER, AN_OP

KEY = Key(A_HALF.transaction_id, 0, A_HALF.producer_group, 0)
MARK = DeadMark(KEY.transaction_id, 0, MarkAction.REDELIVERED, 0, 1, "ann", "")
DELIVER = Choice(remedy=Remedy.REDELIVER)


def letter(index: int, reason: DeadReason, *, at: int = -1, flaw: str = "") -> Letter:
    """Return the dead letter of message `index`, at offset `index` unless given."""
    dead = A_LETTER._replace(reason=reason, source_offset=index, op_offset=0)
    half = A_HALF._replace(message_index=index, check_times=3, origin_offset=2)
    return Letter(LetterPosition(0, index if at < 0 else at), 1, dead, half, flaw, 10)


def examined(each: Letter, count: int | None = None, **changes: Any) -> ExaminedLetter:
    """Return a proven letter, with an op that covers `count` messages; None: no op."""
    assert each.half is not None
    headers = [("h", b"1"), (CONTEXT, b"c"), (HALF, HALF_METADATA.encode(each.half))]
    body = Body(b"k", b"%d" % each.message_index, headers)
    op = None if count is None else AN_OP._replace(message_count=count)
    return ExaminedLetter(each, Authenticity.PROVEN, body, op)._replace(**changes)


def planned(
    *every: ExaminedLetter, choice: Choice = DELIVER, marks: tuple[Letter, ...] = (), life: int = 1
) -> NewLife | str:
    """Return the plan, or the reason for the refusal."""
    letters = tuple(each.letter for each in every) + marks
    transaction = DeadTransaction(KEY, letters, {each.place: MARK for each in marks})
    plan = plan_life(transaction, every, choice, life)
    return plan.why if isinstance(plan, Refusal) else plan


UNDELIVERABLE, INCOMPLETE = DeadReason.UNDELIVERABLE, DeadReason.INCOMPLETE
EXTRA, LATE = DeadReason.EXTRA, DeadReason.LATE


def test_a_new_half_begins_anew_and_keeps_everything_else() -> None:
    """The half has no check count, no origin and the next life; key, value and headers are kept."""
    plan = planned(examined(letter(0, UNDELIVERABLE), 1), life=4)
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
    """The count is the number of messages if these are 0 to n - 1, else unknown."""
    plan = planned(*(examined(letter(each, EXTRA), 0) for each in indices))
    assert isinstance(plan, NewLife)
    assert plan.message_count == count
    assert [each.metadata.message_index for each in plan.halves] == list(indices)


def test_duplicates_are_written_once_and_all_marked() -> None:
    """A LATE duplicate of message 0 gives one half and two marks."""
    first, again = letter(0, UNDELIVERABLE), letter(0, LATE, at=9)
    plan = planned(examined(again, 1), examined(first, 1))
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
    """All messages that the COMMIT covers are needed, from dead letters of any reason."""
    plan = planned(*(examined(letter(index, reason), 3) for index, reason in every))
    if text:
        assert isinstance(plan, str)
        assert plan.startswith(text)
    else:
        assert isinstance(plan, NewLife)
        assert plan.message_count == len(every)


def test_an_incomplete_one_whose_op_is_gone_needs_the_operators_word() -> None:
    """Without the op the count is unknown: --accept-partial or --message is needed."""
    gone = examined(letter(0, INCOMPLETE))._replace(standing=Authenticity.DELETED)
    believes = {"remedy": Remedy.REDELIVER, "accept_unverified": True}
    assert "--accept-partial" in str(planned(gone, choice=Choice(**believes)))
    for more in ({"accept_partial": True}, {"messages": frozenset((0,))}):
        assert isinstance(planned(gone, choice=Choice(**believes, **more)), NewLife)


def test_a_forged_count_costs_nothing() -> None:
    """The refusal of a COMMIT of two billion messages names ten missing ones."""
    why = str(planned(examined(letter(0, INCOMPLETE), (1 << 31) - 1)))
    assert "and 989 more are missing" in why


@pytest.mark.parametrize(
    ("index", "count", "marked", "text"),
    [
        (1, 1, (), ""),  # not covered by the COMMIT: it was not delivered
        (1, 2, (), "was delivered with its transaction"),
        (1, COUNT_UNKNOWN, (), "may have been delivered"),
        (1, 3, (letter(0, INCOMPLETE), letter(2, INCOMPLETE)), ""),
        (2, 3, (letter(0, INCOMPLETE), letter(2, INCOMPLETE, at=8)), "was delivered with its"),
    ],
)
def test_a_late_message_is_not_delivered_twice(
    index: int, count: int, marked: tuple[Letter, ...], text: str
) -> None:
    """A covered LATE message is refused unless all were INCOMPLETE and it was not redelivered."""
    each = examined(letter(index, LATE, at=9), count)
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
        (examined(letter(0, UNDELIVERABLE), 1, standing=Authenticity.FORGED), "contradicts"),
        (
            examined(letter(0, UNDELIVERABLE), 1, standing=Authenticity.DELETED),
            "--accept-unverified",
        ),
        (examined(letter(0, UNDELIVERABLE), 1, body=None), "give them by --with FILE"),
        (examined(letter(0, UNDELIVERABLE, flaw="reserved header X"), 1), "reserved header X"),
    ],
)
def test_what_cannot_be_delivered_is_refused(each: ExaminedLetter, text: str) -> None:
    """Forged, unproven, missing or flawed letters are refused with the reason or the option."""
    assert text in str(planned(each))


def test_a_flawed_message_is_replaced_by_a_given_one() -> None:
    """The file's message replaces that of the letter; its topic may be another."""
    given = ReplacementMessage("other", 3, Body(None, b"mended", [("h", None)]))
    choice = Choice(remedy=Remedy.REDELIVER, given={(KEY.transaction_id, 0): given})
    plan = planned(examined(letter(0, UNDELIVERABLE, flaw="forged"), 1), choice=choice)
    assert isinstance(plan, NewLife)
    (half,) = plan.halves
    assert (half.metadata.real_topic, half.metadata.real_partition) == ("other", 3)
    assert (half.body.value, half.headers[0]) == (b"mended", ("h", None))


def test_of_a_file_only_chosen_messages_are_taken() -> None:
    """It has all messages of the transaction, as `dead export` writes it."""
    bodies = [Body(b"k", b"mended", []) for _ in range(3)]
    given = {
        (KEY.transaction_id, index): ReplacementMessage("orders", -1, body)
        for index, body in enumerate(bodies)
    }
    choice = Choice(remedy=Remedy.REDELIVER, messages=frozenset((2,)), given=given)
    plan = planned(examined(letter(2, UNDELIVERABLE), 3), choice=choice)
    assert isinstance(plan, NewLife)
    assert [each.metadata.message_index for each in plan.halves] == [2]


def test_limits_of_a_transaction_hold() -> None:
    """More than 8 MiB, or a life above RESUME_COUNT_MAX, is refused."""
    large = examined(letter(0, EXTRA), 0, body=Body(None, bytes(TRANSACTION_BYTES_MAX + 1), []))
    assert "a transaction has at most" in str(planned(large))
    why = planned(examined(letter(0, EXTRA), 0), life=RESUME_COUNT_MAX + 1)
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
    """A discarded transaction can only be resumed, a committed one only redelivered."""
    letters = tuple(letter(number, each) for number, each in enumerate(reasons))
    transaction = DeadTransaction(KEY, letters, {})
    assert transaction.remedy is remedy
    for tried in (Remedy.RESUME, Remedy.REDELIVER):
        chosen = chosen_letters(transaction, Choice(remedy=tried))
        assert isinstance(chosen, Refusal) == (tried is not remedy)


def test_a_dead_change_event_is_refused_with_the_way_on() -> None:
    """The text names the change topic and `dead purge`."""
    dead = A_LETTER._replace(reason=UNDELIVERABLE, source_topic="shop.public.orders")
    of_change = Letter(LetterPosition(0, 5), 1, dead, None, "", 10)
    found = chosen_letters(DeadTransaction(Key("", 5, "x", 0), (of_change,), {}), DELIVER)
    assert isinstance(found, Refusal)
    assert "change event of shop.public.orders" in found.why
    assert "dead purge" in found.why


# --- letters and marks by transaction, and the offsets that may be deleted -----------------


def letter_of(
    name: str, offset: int, *, partition: int = 0, life: int = 0, index: int = 0
) -> Letter:
    """Return a letter of a transaction; without a name its RMQ_HALF cannot be read."""
    half = A_HALF._replace(transaction_id=name, resume_count=life, message_index=index)
    dead = A_LETTER._replace(reason=DeadReason.EXTRA, source_offset=offset, op_offset=offset)
    place = LetterPosition(partition, offset)
    return Letter(place, offset, dead, half if name else None, "", 1)


def mark(name: str, offset: int, about: int, *, partition: int = 0, life: int = 1) -> Mark:
    """Return a mark about the letter at `about`."""
    said = DeadMark(name, 0, MarkAction.REDELIVERED, about, life, "ann", "why")
    return Mark(LetterPosition(partition, offset), said)


def found(*records: Letter | Mark | None) -> Found:
    """Return these records as read."""
    every = Found()
    for each in records:
        every.add(each)
    return every


def states(every: Found) -> list[tuple[str, str]]:
    """Return name and state of each transaction."""
    return [(each.name, each.state) for each in every.transactions(Wanted())]


def test_letters_are_grouped_by_life_and_sorted_by_decision() -> None:
    """Letters are grouped by transaction id; one without RMQ_HALF is named by its offset."""
    every = found(
        letter_of("b", 3), letter_of("a", 1), letter_of("a", 2, index=1), letter_of("", 4), None
    )
    assert states(every) == [("a", "OPEN"), ("b", "OPEN"), ("0:4", "OPEN")]
    assert every.unrecognized == 1


def test_a_mark_is_believed_of_its_own_transaction_only() -> None:
    """A mark about another transaction's letter is ignored; the first valid mark counts."""
    every = found(letter_of("a", 0), mark("b", 1, 0), mark("a", 2, 0), mark("a", 3, 0, life=7))
    assert states(every) == [("a", "REDELIVERED")]
    (only,) = every.transactions(Wanted())
    assert only.marks[LetterPosition(0, 0)].resume_count == 1


def test_part_of_a_transaction_may_be_dealt_with() -> None:
    """A transaction with one mark for two letters is PARTLY, and matches `is_open`."""
    every = found(letter_of("a", 0), letter_of("a", 1, index=1), mark("a", 2, 1))
    assert states(every) == [("a", "PARTLY")]
    (only,) = every.transactions(Wanted(is_open=True))
    assert [each.place.offset for each in only.open_letters] == [0]


def test_the_next_life_is_above_all_that_letters_and_marks_name() -> None:
    """The next life is one more than the highest life in letters and marks."""
    every = found(letter_of("a", 0), mark("a", 1, 0, life=2), letter_of("b", 2, life=5))
    assert [every.next_resume_count(name) for name in ("a", "b", "c")] == [3, 6, 1]


@pytest.mark.parametrize(
    ("records", "upto"),
    [
        ([letter_of("a", 0), mark("a", 1, 0)], {0: 10, 1: 10}),
        ([letter_of("a", 0), letter_of("b", 1), mark("a", 2, 0)], {0: 1, 1: 10}),
        # Open in another partition: the records with its lives are kept.
        ([letter_of("a", 0), mark("a", 1, 0), letter_of("a", 5, partition=1)], {0: 0, 1: 5}),
        ([mark("a", 4, 3), letter_of("a", 5, partition=1)], {0: 3, 1: 5}),
        ([letter_of("", 0)], {0: 0, 1: 10}),
        ([letter_of("", 0), mark("", 1, 0, life=-1)], {0: 10, 1: 10}),
    ],
)
def test_what_may_be_deleted(records: list[Letter | Mark], upto: dict[int, int]) -> None:
    """Deletable is all before the first letter or mark of a transaction with an open letter."""
    assert found(*records).deletable({0: 10, 1: 10}) == upto


def test_transactions_beyond_the_limit_are_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the limit allows only one of a transaction's letters, both are left out."""
    monkeypatch.setattr(transactions, "LETTERS_MAX", 2)
    every = found(letter_of("a", 0), letter_of("b", 1), letter_of("b", 2, index=1))
    assert states(every) == [("a", "OPEN")]
    assert every.left_out == 1
    assert every.deletable({0: 10}) == {0: 0}


def test_what_was_left_out_does_not_keep_what_is_dealt_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The letters of a and b are deletable, so that c is read next; c and d are kept."""
    monkeypatch.setattr(transactions, "LETTERS_MAX", 2)
    every = found(
        *(
            letter_of("a", 0),
            letter_of("b", 1),
            letter_of("c", 2),
            mark("a", 3, 0),
            mark("b", 4, 1),
        ),
        letter_of("d", 7, partition=1),
    )
    assert every.left_out == 2
    assert every.deletable({0: 10, 1: 10}) == {0: 2, 1: 7}


def test_letters_without_an_id_are_seen_although_others_were_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Letters without an id are separate transactions, of which one alone is left out."""
    monkeypatch.setattr(transactions, "LETTERS_MAX", 2)
    every = found(letter_of("", 0), letter_of("a", 1), letter_of("", 2))
    assert states(every) == [("0:0", "OPEN"), ("a", "OPEN")]


# --- a purge that fails is recorded as FAILED in the audit topic ---------------------------


class _NoDeletion(Dying):
    """Brokers refuse to delete records."""

    def request(self, client: Any, kind: Kind, place: Any, do: Any, timeout_s: float) -> Any:
        """Refuse a deletion, execute every other request."""
        if kind is Kind.DELETE_RECORDS:
            raise KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED, "no right")
        return super().request(client, kind, place, do, timeout_s)


def test_a_deletion_that_is_refused_is_an_action_that_failed() -> None:
    """The action of giving up is DONE; that of the refused deletion is FAILED."""
    with MemoryStack(partitions=1) as stack:
        stack.create_topic(TOPIC)
        scene = Scene(stack)
        scene.extra(1)
        scene.settle()
        scene.network = _NoDeletion(stack.machine.scheduler)
        with pytest.raises(AdminSetupError, match="no right"):
            purge(scene.letters(), order(1), lambda _meant: True, gives_up=True)
        kept = read(scene.letters().cluster, scene.names, ActionFilter(limit=9))
        outcomes = [each.action.outcome for each in kept if each.action is not None]
        assert outcomes == [
            ActionOutcome.INTENDED,
            ActionOutcome.DONE,
            ActionOutcome.INTENDED,
            ActionOutcome.FAILED,
        ]


# --- messages from a file: lines of `exported` are read, all others refused ----------------

BODY = Body(b"\xff", None, [("h", b"\x00"), ("none", None), (HALF, b"x")])


def line(**changes: Any) -> str:
    """Return an exported line with some fields changed."""
    letter = Letter(LetterPosition(0, 7), 1, A_LETTER, A_HALF, "", 1)
    transaction = DeadTransaction(Key(A_HALF.transaction_id, 0, "orders", 0), (letter,), {})
    reported = exported(transaction, ExaminedLetter(letter, Authenticity.PROVEN, BODY, None))
    return json.dumps({**reported, **changes})


def test_a_line_comes_back_byte_for_byte() -> None:
    """Key, value and the user's headers are unchanged; null and empty stay different."""
    identity, message = given(line(value=""))
    assert identity == (A_HALF.transaction_id, 0)
    assert (message.real_topic, message.real_partition) == ("real", -1)
    assert message.body == Body(b"\xff", b"", [("h", b"\x00"), ("none", None)])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key": "no base64!"}, "not as `dead export` writes it"),
        ({"headers": [["RMQ_HALF", None]]}, "reserved name"),
        ({"headers": 3}, "not as `dead export` writes it"),
        ({"message_index": 1_000}, "message_index"),
        ({"message_index": True}, "message_index"),
        ({"transaction_id": ""}, "transaction_id"),
        ({"real_topic": "x" * 250}, "real_topic"),
        ({"real_partition": -2}, "real_partition"),
    ],
)
def test_what_cannot_be_written_is_refused(changes: dict[str, Any], text: str) -> None:
    """A line with an invalid field is rejected with the name of the field."""
    with pytest.raises(DecodeError, match=text):
        given(line(**changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\ud800"])
def test_no_message_at_all(text: str) -> None:
    """A line that is no JSON or no object of this form is rejected."""
    with pytest.raises(DecodeError):
        given(text)
