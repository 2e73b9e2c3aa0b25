"""Letters and marks by transaction, and what may be deleted."""

from __future__ import annotations

import pytest

from halfbridge.checker.admin.dead import letters as transactions
from halfbridge.checker.admin.dead.letters import Found, Letter, LetterPlace, Mark, Wanted
from halfbridge.serde.avro import DeadMark, MarkAction
from halfbridge.serde.records import DeadReason
from tests.kit.records import A_HALF, A_LETTER


def letter(name: str, offset: int, *, partition: int = 0, life: int = 0, index: int = 0) -> Letter:
    """Return a letter of a transaction; without a name its RMQ_HALF cannot be read."""
    half = A_HALF._replace(transaction_id=name, resume_count=life, message_index=index)
    dead = A_LETTER._replace(reason=DeadReason.EXTRA, source_offset=offset, op_offset=offset)
    place = LetterPlace(partition, offset)
    return Letter(place, offset, dead, half if name else None, "", 1)


def mark(name: str, offset: int, about: int, *, partition: int = 0, life: int = 1) -> Mark:
    """Return a mark about the letter at `about`."""
    said = DeadMark(name, 0, MarkAction.REDELIVERED, about, life, "ann", "why")
    return Mark(LetterPlace(partition, offset), said)


def found(*records: Letter | Mark | None) -> Found:
    """Return what was read."""
    every = Found()
    for each in records:
        every.add(each)
    return every


def states(every: Found) -> list[tuple[str, str]]:
    """Return name and state of each transaction."""
    return [(each.name, each.state) for each in every.transactions(Wanted())]


def test_letters_are_grouped_by_life_and_sorted_by_decision() -> None:
    """Another life is another transaction; a letter without RMQ_HALF is known by its place."""
    every = found(letter("b", 3), letter("a", 1), letter("a", 2, index=1), letter("", 4), None)
    assert states(every) == [("a", "OPEN"), ("b", "OPEN"), ("0:4", "OPEN")]
    assert every.strange == 1


def test_a_mark_is_believed_of_its_own_transaction_only() -> None:
    """A mark that names another transaction's letter says nothing; the first true one stands."""
    every = found(letter("a", 0), mark("b", 1, 0), mark("a", 2, 0), mark("a", 3, 0, life=7))
    assert states(every) == [("a", "REDELIVERED")]
    (only,) = every.transactions(Wanted())
    assert only.marks[LetterPlace(0, 0)].resume_count == 1


def test_part_of_a_transaction_may_be_dealt_with() -> None:
    """One of two letters has a mark; open ones are what `is_open` takes."""
    every = found(letter("a", 0), letter("a", 1, index=1), mark("a", 2, 1))
    assert states(every) == [("a", "PARTLY")]
    (only,) = every.transactions(Wanted(is_open=True))
    assert [each.place.offset for each in only.open_letters] == [0]


def test_the_next_life_is_above_all_that_letters_and_marks_name() -> None:
    """Life 2 has no letter left, but its mark is there."""
    every = found(letter("a", 0), mark("a", 1, 0, life=2), letter("b", 2, life=5))
    assert [every.next_resume_count(name) for name in ("a", "b", "c")] == [3, 6, 1]


@pytest.mark.parametrize(
    ("records", "upto"),
    [
        ([letter("a", 0), mark("a", 1, 0)], {0: 10, 1: 10}),
        ([letter("a", 0), letter("b", 1), mark("a", 2, 0)], {0: 1, 1: 10}),
        # Open in another partition: what tells its lives is kept.
        ([letter("a", 0), mark("a", 1, 0), letter("a", 5, partition=1)], {0: 0, 1: 5}),
        ([mark("a", 4, 3), letter("a", 5, partition=1)], {0: 3, 1: 5}),
        ([letter("", 0)], {0: 0, 1: 10}),
        ([letter("", 0), mark("", 1, 0, life=-1)], {0: 10, 1: 10}),
    ],
)
def test_what_may_be_deleted(records: list[Letter | Mark], upto: dict[int, int]) -> None:
    """Up to the first letter or mark of a transaction that has an open letter anywhere."""
    assert found(*records).deletable({0: 10, 1: 10}) == upto


def test_transactions_beyond_the_limit_are_left_out_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two letters fit: the transaction of the third is not seen in part."""
    monkeypatch.setattr(transactions, "LETTERS_MAX", 2)
    every = found(letter("a", 0), letter("b", 1), letter("b", 2, index=1))
    assert states(every) == [("a", "OPEN")]
    assert every.left_out == 1
    assert every.deletable({0: 10}) == {0: 0}


def test_what_was_left_out_does_not_keep_what_is_dealt_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The letters of a and b are deleted, so that c is seen next; d of partition 1 is kept too."""
    monkeypatch.setattr(transactions, "LETTERS_MAX", 2)
    every = found(
        *(letter("a", 0), letter("b", 1), letter("c", 2), mark("a", 3, 0), mark("b", 4, 1)),
        letter("d", 7, partition=1),
    )
    assert every.left_out == 2
    assert every.deletable({0: 10, 1: 10}) == {0: 2, 1: 7}


def test_letters_without_an_id_are_seen_although_others_were_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing says that they belong to one transaction."""
    monkeypatch.setattr(transactions, "LETTERS_MAX", 2)
    every = found(letter("", 0), letter("a", 1), letter("", 2))
    assert states(every) == [("0:0", "OPEN"), ("a", "OPEN")]
