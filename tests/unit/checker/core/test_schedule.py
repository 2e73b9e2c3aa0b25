"""The order in which entries fall due, its limits, and entries that are decided or moved."""

from functools import cache
from itertools import repeat
from time import process_time

import pytest

from halfbridge.checker.core import schedule as module
from halfbridge.checker.core.entries import Entry
from halfbridge.checker.core.events import HalfRead
from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.schedule import (
    REPEAT_SHARE,
    SORTED_MAX,
    STALE_MAX,
    CheckSchedule,
    backoff_ms,
    first_due_ms,
)
from halfbridge.serde.protocol import NO_APPEND_MS, State
from tests.playbook import (
    HOUR_MS,
    INTERVAL_MS,
    MINUTE_MS,
    TIMEOUT_MS,
    Playbook,
    all_asked,
    asked,
    commit,
    counted,
    dead,
    delivered,
    discard_written,
    half,
    half_without_time,
    metadata,
    nobody_asked,
    nothing,
    nothing_counted,
    op_end,
    put_back,
    restart,
    unknown,
    wait,
)


@cache
def _half_of(group: str) -> HalfRead:
    return HalfRead(0, 0, metadata("A")._replace(producer_group=group), "", 1, None)


def _entry(group: str = "orders") -> Entry:
    return Entry(_half_of(group))


@pytest.mark.parametrize(
    ("immunity_ms", "expected"),
    [(-1, 6_000), (0, 6_000), (5_000, 6_000), (7_000, 7_000), (60_000, 60_000), (1 << 50, 90_000)],
)
def test_immunity_is_floored_by_the_timeout(immunity_ms: int, expected: int) -> None:
    """Immunity is at least the timeout and at most half the maximum age, from the append time."""
    assert first_due_ms(1_000, immunity_ms, 6_000, 90_000) == 1_000 + expected


@pytest.mark.parametrize(
    ("attempt", "expected"), [(1, 30), (2, 60), (3, 120), (5, 480), (6, 600), (1_000, 600)]
)
def test_back_off_doubles_up_to_its_maximum(attempt: int, expected: int) -> None:
    """The back-off doubles from the interval, and is the maximum also after a thousand attempts."""
    assert backoff_ms(attempt, 30, 600) == expected


def test_the_interval_may_exceed_the_maximum_back_off() -> None:
    """An interval longer than the maximum is kept as it is."""
    assert backoff_ms(9, 1_000, 600) == 1_000


def test_entries_come_up_when_due() -> None:
    """Due entries of both queues are taken; others stay."""
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
    """An entry that falls due before an earlier added one does not wait for it."""
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
    """An entry that was decided after it was sorted by group is not taken."""
    schedule = CheckSchedule()
    first, second, third = _entry(), _entry(), _entry()
    for entry in (first, second, third):
        schedule.add_in_turn(entry, 10)
    assert schedule.pop_due(10, 1) == [first]
    second.state = State.ROLLED_BACK
    assert schedule.pop_due(10, 9) == [third]


def test_an_entry_is_taken_once_however_often_it_came_up() -> None:
    """An entry that is moved while it waits its turn, and is due again, is taken once."""
    schedule = CheckSchedule()
    first, twice = _entry(), _entry()
    schedule.add_in_turn(first, 10)
    schedule.add_in_turn(twice, 10)
    assert schedule.pop_due(10, 1) == [first]
    schedule.add(twice, 20)
    assert schedule.pop_due(20, 9) == [twice]


def test_an_entry_that_waits_its_turn_survives_a_clock_that_is_set_back() -> None:
    """A due entry that waits its turn is taken at an earlier time, too."""
    schedule = CheckSchedule()
    first, second = _entry(), _entry()
    schedule.add_in_turn(first, 10)
    schedule.add_in_turn(second, 10)
    assert schedule.pop_due(10, 1) == [first]
    assert schedule.pop_due(9, 1) == [second]


def test_a_million_due_at_once_are_sorted_out_in_parts() -> None:
    """One call sorts a limited number of entries (SORTED_MAX), not all of them."""
    schedule = CheckSchedule()
    entry = _entry()
    schedule._in_turn.extend(repeat(entry, 1_000_000))
    schedule._in_turn_due.extend(repeat(10, 1_000_000))
    schedule._first._heap.extend((10, number, entry) for number in range(250_000))
    entry.due_ms = 10
    began = process_time()
    assert schedule.pop_due(10, 3) == [entry]
    assert process_time() - began < 1
    assert schedule._first.count < 2 * SORTED_MAX
    assert schedule._repeats.count == 0


def test_first_checks_find_room_beside_a_million_repeats() -> None:
    """Waiting repeats do not delay a first check."""
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
    """One check in REPEAT_SHARE is a repeat, for any number of first checks and any limit."""
    schedule = CheckSchedule()
    for number in range(8 * REPEAT_SHARE):
        schedule.add_in_turn(_entry(), 5)
        schedule.add(_entry(), 5)  # with its own immunity
        if number < 4:
            schedule.add(_repeat(), 10)
    taken: list[Entry] = []
    while len(taken) < 4 * REPEAT_SHARE:
        taken += schedule.pop_due(20, min(limit, 4 * REPEAT_SHARE - len(taken)))
    repeats = [number for number, entry in enumerate(taken) if entry.attempt]
    assert repeats == [3, 7, 11, 15]


def test_the_share_of_repeats_goes_from_group_to_group() -> None:
    """Groups take turns in the share of repeats."""
    schedule = CheckSchedule()
    for _ in range(40):
        schedule.add_in_turn(_entry(), 5)
    for group in ("many", "many", "many", "few"):
        schedule.add(_repeat(group), 10)
    taken = [entry.group for entry in schedule.pop_due(20, 2 * REPEAT_SHARE) if entry.attempt]
    assert taken == ["many", "few"]


def test_repeats_find_room_beside_a_million_first_checks() -> None:
    """Waiting first checks with their own immunity do not delay a repeat."""
    schedule = CheckSchedule()
    for number in range(2 * SORTED_MAX + 10):
        schedule.add(_entry(), number)
    repeat = _repeat()
    schedule.add(repeat, 1 << 39)
    assert repeat in schedule.pop_due(1 << 40, REPEAT_SHARE)


def test_a_group_without_room_delays_no_other_group() -> None:
    """Entries of a group without room keep their order, and do not delay other groups."""
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
    """First checks and repeats share the room of their group."""
    schedule = CheckSchedule()
    for number in range(4):
        schedule.add_in_turn(_entry("slow"), number)
        schedule.add(_repeat("slow"), number)
    assert len(schedule.pop_due(10, 9, lambda _group: 3)) == 3
    assert schedule.pop_due(10, 9, lambda _group: 0) == []
    assert len(schedule.pop_due(10, 9)) == 5


def test_what_waits_its_turn_does_not_hide_what_falls_due() -> None:
    """While entries wait their turn, next_unsorted_ms is the next due time."""
    schedule = CheckSchedule()
    for due_ms in (5, 5, 30):
        schedule.add_in_turn(_entry(), due_ms)
    assert len(schedule.pop_due(10, 1)) == 1
    assert schedule.next_due_ms() == 0
    assert schedule.next_unsorted_ms() == 30


def test_decided_entries_that_wait_their_turn_are_swept_out() -> None:
    """`trim` removes decided entries that wait in a group without room."""
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
    """`trim` removes decided entries after an undecided one from queue and heap."""
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


# --- playbook cases: time and order of checks, and checks without an answer ----------------


def test_an_attempt_that_failed_is_not_one_that_nobody_answered() -> None:
    """A check after a failed attempt does not count as expired; one without any answer does."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS) >> op_end << nothing << asked("A", attempt=1)
    book >> unknown("A", 0) << nothing << counted(Count.ATTEMPT_FAILED)
    book >> wait(INTERVAL_MS) >> op_end << nothing << asked("A", attempt=2)
    book << nothing << nothing_counted
    book >> wait(2 * INTERVAL_MS) >> op_end << nothing << asked("A", attempt=3)
    book << nothing << counted(Count.CHECK_EXPIRED)


def test_an_op_end_of_earlier_does_not_confirm_what_fell_due_since() -> None:
    """A check is sent only after an op end that was read after the check fell due."""
    book = Playbook() >> half("A") >> wait(TIMEOUT_MS - 1) >> op_end << nothing
    book >> wait(1) << nothing << nobody_asked
    assert book.ledger.wants_op_end


def test_groups_take_turns() -> None:
    """Checks of groups alternate, whatever the number of their transactions."""
    book = Playbook()
    for name in "ABCD":
        book >> half(name)
    book >> half("X", producer_group="billing") >> half("Y", producer_group="billing")
    book >> wait(TIMEOUT_MS) >> op_end << nothing
    book << all_asked(asked("A"), asked("X"), asked("B"), asked("Y"), asked("C"))
    book << all_asked(asked("D")) << nobody_asked


def test_the_first_message_is_shown() -> None:
    """A check has the transaction's message 0, also if message 1 is stored first."""
    book = Playbook() >> half("A", 1) >> half("A", 0) >> wait(TIMEOUT_MS) >> op_end << nothing
    (check,) = book.ledger.checks(book.now_ms, 9)
    assert check.half.metadata.message_index == 0


def test_a_check_tells_how_far_the_messages_reach() -> None:
    """A check's last_offset is that of the highest message or copy."""
    book = Playbook() >> half("A", 0) >> half("B") >> half("A", 1) >> wait(TIMEOUT_MS) >> op_end
    book << nothing
    assert [check.last_offset for check in book.ledger.checks(book.now_ms, 9)] == [2, 1]
    book >> unknown("A", 1) << put_back("A", "answer", 1) + put_back("A", "answer", 1, 1)
    book >> wait(INTERVAL_MS) >> op_end << nothing
    assert {check.last_offset for check in book.ledger.checks(book.now_ms, 9)} >= {4}


# --- age -----------------------------------------------------------------------------------
def _ask_until_old(book: Playbook) -> Playbook:
    book >> wait(72 * HOUR_MS) >> op_end << nothing << asked("A")
    book >> wait(INTERVAL_MS) >> op_end << nothing << asked("A", attempt=2)
    return book >> wait(2 * INTERVAL_MS) >> op_end << nothing << asked("A", attempt=3)


def test_an_answer_begins_the_asking_anew() -> None:
    """After a counted answer the next request is check 2, attempt 1."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> unknown("A", 1) << put_back("A", "answer", 1) >> wait(INTERVAL_MS) >> op_end << nothing
    book << asked("A", 2)


def test_a_restart_begins_the_asking_anew() -> None:
    """Requests before a restart do not count: the next one has attempt 1."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> restart >> op_end << nothing >> op_end << nothing << asked("A", attempt=1)


def test_an_age_discard_that_came_too_early_is_written_again() -> None:
    """An AGE discard whose append time does not prove the age is invalid, and written again."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> wait(4 * INTERVAL_MS) >> op_end << nothing << nobody_asked
    behind = 73 * HOUR_MS
    book.now_ms -= behind
    book << discard_written("A", "AGE")
    book.now_ms += behind
    book >> wait(0) << nothing << counted(Count.INVALID_OP)
    book >> wait(10 * MINUTE_MS) >> op_end << nothing << nobody_asked
    book << discard_written("A", "AGE") >> wait(0) << dead("A", "AGE")


def test_one_age_discard_is_written_while_it_is_on_its_way() -> None:
    """No second DISCARD is written until the first one is read back."""
    book = _ask_until_old(Playbook(readiness_before_discard_ms=0) >> half("A"))
    book >> wait(4 * INTERVAL_MS) >> op_end << nothing << nobody_asked
    plan = book.take_plan()
    assert len(plan.discards) == 1
    book.commit()
    book.now_ms += 10 * MINUTE_MS
    book.ledger.op_end(0, book.now_ms)
    book << nobody_asked << nothing


# --- records without an append time --------------------------------------------------------
@pytest.mark.parametrize(("immunity_ms", "after_ms"), [(-1, TIMEOUT_MS), (HOUR_MS, HOUR_MS)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_has_no_append_time_is_asked_about_as_if_it_came_now(
    immunity_ms: int, after_ms: int, *, is_restarted: bool
) -> None:
    """The first check of a half without an append time is due as if it was appended now."""
    book = Playbook() >> half("B") >> commit("B") << delivered("B") >> wait(100 * HOUR_MS)
    book >> half_without_time("A", immunity_ms=immunity_ms) << nothing
    if is_restarted:
        book >> restart << nothing
    book >> op_end << nothing << nobody_asked
    book >> wait(after_ms - 1) >> op_end << nothing << nobody_asked
    book >> wait(1) >> op_end << nothing << asked("A")


def test_another_message_may_put_the_first_check_off() -> None:
    """A second message without an append time may postpone the first check by its immunity."""
    book = Playbook() >> half_without_time("A") >> op_end << nothing << nobody_asked
    book >> half_without_time("A", 1, immunity_ms=HOUR_MS) >> op_end << nothing << nobody_asked
    book >> wait(HOUR_MS - 1) >> op_end << nothing << nobody_asked
    book >> wait(1) >> op_end << nothing << asked("A")


def test_nothing_without_an_append_time_is_asked_about_before_time_is_known() -> None:
    """A half without an append time is not due before the pair has read any append time."""
    book = Playbook() >> half_without_time("A")
    assert book.ledger.checks(0, 9) == []
    assert book.ledger.next_due_ms() is None
    book >> op_end << nothing << nobody_asked
    assert book.ledger.next_due_ms() == book.now_ms + TIMEOUT_MS


def test_what_is_decided_is_not_kept_until_time_is_known() -> None:
    """Decided entries without an append time are removed from `unaged`."""
    book = Playbook()
    for number in range(STALE_MAX + 2):
        book.reader.ledger.half(HalfRead(number, NO_APPEND_MS, metadata(str(number)), "", 1, None))
    book << nothing
    for entry in list(book.ledger._book.entries):
        book.ledger._book.decide(entry, State.ROLLED_BACK, 0, 0)
    book.ledger.checks(0, 9)
    assert book.ledger._book.unaged == []


def test_without_an_append_time_nothing_is_given_up_for_its_age() -> None:
    """A half without an append time is never discarded for age, but checked again and again."""
    book = Playbook(readiness_before_discard_ms=0) >> half_without_time("A") >> op_end << nothing
    for attempt in range(1, 20):
        book << nobody_asked >> wait(50 * HOUR_MS) >> op_end << nothing
        book << asked("A", attempt=attempt) << nothing
