"""When which entry comes up: order, bounds, and entries that were decided or moved."""

from __future__ import annotations

from time import process_time

import pytest

from halfbridge.checker.core import schedule as module
from halfbridge.checker.core.entries import Entry
from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.schedule import (
    REPEAT_SHARE,
    SORTED_MAX,
    STALE_MAX,
    CheckSchedule,
    backoff_ms,
    first_due_ms,
)
from halfbridge.serde.protocol import State
from tests.playbook import metadata


def _entry(group: str = "orders") -> Entry:
    told = metadata("A")._replace(producer_group=group)
    return Entry(HalfRead(0, 0, told, "", 1, None))


@pytest.mark.parametrize(
    ("immunity_ms", "expected"),
    [(-1, 6_000), (0, 6_000), (5_000, 6_000), (7_000, 7_000), (60_000, 60_000), (1 << 50, 90_000)],
)
def test_immunity_is_floored_by_the_timeout(immunity_ms: int, expected: int) -> None:
    """The timeout is the least, half the maximum age the most; the broker's append time counts."""
    assert first_due_ms(1_000, immunity_ms, 6_000, 90_000) == 1_000 + expected


@pytest.mark.parametrize(
    ("attempt", "expected"), [(1, 30), (2, 60), (3, 120), (5, 480), (6, 600), (1_000, 600)]
)
def test_back_off_doubles_up_to_its_maximum(attempt: int, expected: int) -> None:
    """Also after a thousand attempts."""
    assert backoff_ms(attempt, 30, 600) == expected


def test_the_interval_may_exceed_the_maximum_back_off() -> None:
    """An interval longer than the maximum is kept as it is."""
    assert backoff_ms(9, 1_000, 600) == 1_000


def test_entries_come_up_when_due() -> None:
    """Both queues are looked at; what is not due stays."""
    schedule = CheckSchedule()
    assert schedule.next_due_ms() is None
    early, late = _entry(), _entry()
    schedule.add_in_turn(late, 20)
    assert schedule.next_due_ms() == 20
    schedule.add(early, 10)
    assert schedule.next_due_ms() == 10
    assert schedule.pop_due(9, 9) == []
    assert schedule.pop_due(10, 9) == [early]
    assert schedule.next_due_ms() == 20
    assert schedule.pop_due(20, 9) == [late]
    assert schedule.next_due_ms() is None


def test_a_clock_that_was_set_back_delays_nobody() -> None:
    """An entry that falls due before the one added ahead of it does not wait for that one."""
    schedule = CheckSchedule()
    future, present = _entry(), _entry()
    schedule.add_in_turn(future, 1 << 50)
    schedule.add_in_turn(present, 10)
    assert schedule.pop_due(10, 9) == [present]


def test_moved_and_decided_entries_do_not_come_up() -> None:
    """Only the newest due time of an undecided entry counts."""
    schedule = CheckSchedule()
    moved, decided, moved_in_turn = _entry(), _entry(), _entry()
    schedule.add(moved, 10)
    schedule.add(moved, 30)
    schedule.add(decided, 5)
    schedule.add_in_turn(moved_in_turn, 6)
    schedule.add(moved_in_turn, 40)
    decided.state = State.COMMITTED
    assert schedule.next_due_ms() == 30
    assert schedule.pop_due(29, 9) == []
    assert schedule.pop_due(40, 9) == [moved, moved_in_turn]


def test_an_entry_that_was_decided_while_it_waited_its_turn_is_skipped() -> None:
    """Sorted out by group, but decided before it was taken."""
    schedule = CheckSchedule()
    first, second, third = _entry(), _entry(), _entry()
    for entry in (first, second, third):
        schedule.add_in_turn(entry, 10)
    assert schedule.pop_due(10, 1) == [first]
    second.state = State.ROLLED_BACK
    assert schedule.pop_due(10, 9) == [third]


def test_an_entry_is_taken_once_however_often_it_came_up() -> None:
    """Moved while it waited its turn, and due again before it was taken."""
    schedule = CheckSchedule()
    first, twice = _entry(), _entry()
    schedule.add_in_turn(first, 10)
    schedule.add_in_turn(twice, 10)
    assert schedule.pop_due(10, 1) == [first]
    schedule.add(twice, 20)
    assert schedule.pop_due(20, 9) == [twice]


def test_an_entry_that_waits_its_turn_survives_a_clock_that_is_set_back() -> None:
    """It was due, so its turn comes, whatever the time is by then; nothing is lost."""
    schedule = CheckSchedule()
    first, second = _entry(), _entry()
    schedule.add_in_turn(first, 10)
    schedule.add_in_turn(second, 10)
    assert schedule.pop_due(10, 1) == [first]
    assert schedule.pop_due(9, 1) == [second]


def test_a_million_due_at_once_are_sorted_out_in_parts() -> None:
    """One call costs what SORTED_MAX entries cost, not what all of them do."""
    schedule = CheckSchedule()
    entry = _entry()
    for number in range(1_000_000):
        schedule._in_turn.append(entry)
        schedule._in_turn_due.append(10)
        if number % 4 == 0:
            schedule._first._heap.append((10, number, entry))
    entry.due_ms = 10
    began = process_time()
    assert schedule.pop_due(10, 3) == [entry]
    assert process_time() - began < 1
    assert schedule._first.count < 2 * SORTED_MAX
    assert schedule._repeats.count == 0


def test_first_checks_find_room_beside_a_million_repeats() -> None:
    """Repeats that wait for their turn delay no first check."""
    schedule = CheckSchedule()
    for number in range(SORTED_MAX + 10):
        repeat = _entry()
        repeat.attempt = 1
        schedule.add(repeat, number)
    assert len(schedule.pop_due(1 << 40, 1)) == 1
    newcomer = _entry()
    schedule.add_in_turn(newcomer, 5)
    assert schedule.pop_due(1 << 40, 1) == [newcomer]


def _repeat(group: str = "orders") -> Entry:
    entry = _entry(group)
    entry.attempt = 1
    return entry


@pytest.mark.parametrize("limit", [1, 3, 1_000])
def test_repeats_do_not_starve_behind_first_checks(limit: int) -> None:
    """One check in four is a repeat, however many first checks are due, and however few fit."""
    schedule = CheckSchedule()
    for number in range(8 * REPEAT_SHARE):
        schedule.add_in_turn(_entry(), 5)
        schedule.add(_entry(), 5)  # with an immunity of its own
        if number < 4:
            schedule.add(_repeat(), 10)
    taken: list[Entry] = []
    while len(taken) < 4 * REPEAT_SHARE:
        taken += schedule.pop_due(20, min(limit, 4 * REPEAT_SHARE - len(taken)))
    repeats = [number for number, entry in enumerate(taken) if entry.attempt]
    assert repeats == [3, 7, 11, 15]


def test_the_share_of_repeats_goes_from_group_to_group() -> None:
    """As first checks do: a group with many repeats leaves the others theirs."""
    schedule = CheckSchedule()
    for _ in range(40):
        schedule.add_in_turn(_entry(), 5)
    for group in ("many", "many", "many", "few"):
        schedule.add(_repeat(group), 10)
    taken = [entry.group for entry in schedule.pop_due(20, 2 * REPEAT_SHARE) if entry.attempt]
    assert taken == ["many", "few"]


def test_repeats_find_room_beside_a_million_first_checks() -> None:
    """First checks with an immunity of their own that wait for their turn delay no repeat."""
    schedule = CheckSchedule()
    for number in range(2 * SORTED_MAX + 10):
        schedule.add(_entry(), number)
    repeat = _repeat()
    schedule.add(repeat, 1 << 39)
    assert repeat in schedule.pop_due(1 << 40, REPEAT_SHARE)


def test_a_group_without_room_delays_no_other_group() -> None:
    """However many of its entries were due before; and they keep their turns."""
    schedule = CheckSchedule()
    slow = [_entry("slow") for _ in range(2 * SORTED_MAX)]
    for entry in slow:
        schedule.add_in_turn(entry, 5)
    quick = _entry("quick")
    schedule.add_in_turn(quick, 6)
    room = {"slow": 1, "quick": 9}
    taken = [schedule.pop_due(10, 9, lambda group: room[group]) for _ in range(3)]
    assert taken == [[slow[0]], [slow[1]], [slow[2], quick]]
    room = {"slow": 2}
    assert schedule.pop_due(10, 9, lambda group: room[group]) == slow[3:5]


def test_a_group_without_room_for_first_checks_has_none_for_repeats() -> None:
    """Both are requests that the group has to answer."""
    schedule = CheckSchedule()
    for number in range(4):
        schedule.add_in_turn(_entry("slow"), number)
        schedule.add(_repeat("slow"), number)
    assert len(schedule.pop_due(10, 9, lambda _group: 3)) == 3
    assert schedule.pop_due(10, 9, lambda _group: 0) == []
    assert len(schedule.pop_due(10, 9)) == 5


def test_what_waits_its_turn_does_not_hide_what_falls_due() -> None:
    """The end of the op partition is asked for again, although entries wait for their turn."""
    schedule = CheckSchedule()
    for due_ms in (5, 5, 30):
        schedule.add_in_turn(_entry(), due_ms)
    assert len(schedule.pop_due(10, 1)) == 1
    assert schedule.next_due_ms() == 0
    assert schedule.next_unsorted_ms() == 30


def test_decided_entries_that_wait_their_turn_are_swept_out() -> None:
    """A group that may not be asked for a day keeps no memory of what was decided since."""
    schedule = CheckSchedule()
    entries = [_entry() for _ in range(STALE_MAX + 5)]
    for entry in entries:
        schedule.add_in_turn(entry, 5)
    assert schedule.pop_due(10, 9, lambda _group: 0) == []
    for entry in entries[:-1]:
        entry.state = State.COMMITTED
    schedule.trim(1)
    assert schedule._first.count == 1
    assert schedule.pop_due(10, 9) == entries[-1:]
    assert schedule.next_due_ms() is None


def test_decided_entries_are_swept_out() -> None:
    """Behind an undecided head the rest does not pile up, in the queue or in the heap."""
    schedule = CheckSchedule()
    head, moved = _entry(), _entry()
    schedule.add_in_turn(head, 1)
    schedule.add(moved, 2)
    for number in range(STALE_MAX + 5):
        for add in (schedule.add_in_turn, schedule.add):
            entry = _entry()
            add(entry, 10 + number)
            entry.state = State.COMMITTED
    schedule.trim(2)
    assert list(schedule._in_turn) == [head]
    assert len(schedule._in_turn_due) == 1
    assert [each for _, _, each in schedule._first._heap] == [moved]
    head.state = State.COMMITTED
    schedule.trim(2)
    assert not schedule._in_turn
    assert not schedule._in_turn_due
    assert module.NOT_SCHEDULED > 1 << 60
