"""Positions between the inserts of a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfbridge.sql.log_subscription.assembly import Assembler
from halfbridge.sql.log_subscription.changes import Insert, Position

# A log: for each committed database transaction the number of its inserts into our table.
LOG = st.lists(st.integers(0, 4), max_size=8)


def _read(log: list[int], start: Position) -> list[Insert]:
    """Return what an assembler makes of the part of a log behind `start`."""
    assembler = Assembler(start)
    found: list[Insert | None] = []
    for number in range(int(start.commit), len(log)):
        assembler.begin()
        found += [assembler.insert("t", {"v": f"{number}.{each}"}) for each in range(log[number])]
        found.append(assembler.commit(str(number + 1)))
    return [each for each in found if each is not None]


@given(LOG)
def test_every_insert_comes_once_and_in_order(log: list[int]) -> None:
    """All inserts of all database transactions come out, and each transaction's last is marked."""
    inserts = _read(log, Position("0"))
    expected = [f"{n}.{i}" for n, count in enumerate(log) for i in range(count)]
    assert [each.values["v"] for each in inserts] == expected
    ends = [f"{n}.{count - 1}" for n, count in enumerate(log) if count]
    assert [each.values["v"] for each in inserts if each.ends_transaction] == ends


@given(LOG)
def test_reading_goes_on_behind_any_insert(log: list[int]) -> None:
    """Read again from the position behind any insert, a log gives exactly the rest."""
    inserts = _read(log, Position("0"))
    for place, insert in enumerate(inserts):
        assert _read(log, insert.position) == inserts[place + 1 :]


@given(LOG)
def test_a_position_at_a_transactions_end_is_its_commit(log: list[int]) -> None:
    """Only within a database transaction does a position count inserts."""
    for each in _read(log, Position("0")):
        assert each.ends_transaction == (each.position.inserts == 0)


def test_an_unfinished_transaction_is_forgotten() -> None:
    """What a reader told before it broke off leaves nothing behind at the next begin."""
    assembler = Assembler(Position("0"))
    assembler.begin()
    assembler.insert("t", {"v": "lost"})
    assembler.begin()
    assembler.insert("t", {"v": "kept"})
    last = assembler.commit("1")
    assert last is not None
    assert (last.values, last.position) == ({"v": "kept"}, Position("1"))


def test_idle_progress_never_splits_a_transaction() -> None:
    """Passing on is for the time between database transactions only."""
    assembler = Assembler(Position("0"))
    assembler.begin()
    assembler.insert("t", {})
    assembler.pass_to("7")
    assert assembler.read_to == "0"
    assembler.commit("1")
    assembler.pass_to("7")
    assert assembler.read_to == "7"
