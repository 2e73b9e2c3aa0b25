"""Conformance cases 80 to 105, and 111, 112, 116, 121: who is asked when, as the ledger says it."""

import pytest

from halfbridge.checker.core.plan import Count
from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.checker.core.schedule import first_due_ms
from halfbridge.serde.progress import Progress, ProgressError
from halfbridge.serde.records import OpSource
from tests.playbook import (
    HOUR_MS,
    INTERVAL_MS,
    MINUTE_MS,
    SECOND_MS,
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
    junk_half,
    junk_letter,
    killed_before_commit,
    nobody_asked,
    nothing,
    op_end,
    put_back,
    restart,
    rollback,
    unknown,
    wait,
)


def started(**changes: object) -> Playbook:
    """Return a playbook whose ledger has nothing to rebuild."""
    return Playbook(**changes) << nothing


def test_case_080_a_check_count_in_a_half_discards_nobody() -> None:
    """Deviates: an original cannot have been checked, so 100,000 is a forgery (case 35)."""
    book = started() >> half("A", check_times=100_000) >> wait(TIMEOUT_MS) >> op_end
    book << asked("A", 1) << nothing


def test_case_081_a_half_without_decision_is_asked_about_once_a_round() -> None:
    """80 s old, no op: one request, and none more before the interval is over."""
    book = started() >> half("A") >> wait(80 * SECOND_MS) >> op_end << asked("A") << nobody_asked
    book >> wait(INTERVAL_MS - 1) >> op_end << nobody_asked
    book >> wait(1) >> op_end << asked("A", 1, 2) << nothing


def test_case_082_not_before_the_timeout_and_at_once_after_it() -> None:
    """At the timeout, to the millisecond."""
    book = started() >> half("A") >> wait(TIMEOUT_MS - 1) >> op_end << nobody_asked
    book >> wait(1) >> op_end << asked("A")


def test_case_083_a_young_half_waits_for_its_own_time() -> None:
    """There are no rounds: each half has its due time (D-005)."""
    book = started() >> half("old") >> wait(TIMEOUT_MS) >> half("young") >> op_end
    book << asked("old") << nobody_asked
    book >> wait(TIMEOUT_MS) >> op_end << asked("young")


@pytest.mark.parametrize("decision", [commit, rollback])
def test_case_084_a_decided_transaction_is_never_asked_about(decision: object) -> None:
    """Neither a committed nor a rolled back one."""
    book = started() >> half("A") >> decision("A")
    book << (delivered("A") if decision is commit else nothing)
    for _ in range(3):
        book >> wait(HOUR_MS) >> op_end << nobody_asked
        book >> restart << nothing
    assert book.ledger.next_due_ms() is None


def test_case_085_all_ops_are_read_before_anybody_is_asked() -> None:
    """A half that fell due is not asked about before op p was read to its end after that."""
    book = started() >> half("A") >> wait(TIMEOUT_MS) << nobody_asked
    assert book.ledger.wants_op_end
    book.reads = False
    commit("A")(book)
    book.ledger.op_end(book.log.op_end, book.now_ms)
    book << nobody_asked
    book.reader.read()
    book << delivered("A") << nobody_asked


def test_case_086_an_empty_log_is_nothing_to_do() -> None:
    """No plan, no check, no due time, no exception; offsets stay."""
    book = started() >> wait(HOUR_MS) >> op_end << nobody_asked << nothing
    assert book.ledger.next_due_ms() is None
    assert (book.progress.half, book.progress.op) == (0, 0)


def test_case_087_deleted_records_stop_the_partition() -> None:
    """D-008: RocketMQ jumps to the first that is left; nothing is skipped silently here."""
    progress = Progress(half=5, op=5, rebuild_to=8, ops_from=4, position=8)
    with pytest.raises(ProgressError, match="still needed were deleted"):
        check_against_log(progress, half_range=(6, 9), op_range=(0, 9))


def test_case_088_one_bad_record_holds_nobody_up() -> None:
    """The unreadable is kept as a dead letter; halves around it are asked about and decided."""
    book = started() >> half("A") >> junk_half() >> half("B") << junk_letter("half", 1)
    book >> wait(TIMEOUT_MS) >> op_end << all_asked(asked("A"), asked("B"))
    book >> commit("B") << delivered("B")


def test_case_089_fifteen_counted_answers_and_no_sixteenth_check() -> None:
    """The checker sees 1 to 15; then the discard, its dead letter, and nothing more."""
    book = started() >> half("A") >> wait(TIMEOUT_MS)
    for number in range(1, 15):
        book >> op_end << asked("A", number)
        book >> unknown("A", number) << put_back("A", "answer", number)
        book >> wait(INTERVAL_MS)
    book >> op_end << asked("A", 15)
    book >> unknown("A", 15) << discard_written("A", "CHECK_TIMES")
    book >> wait(0) << dead("A", "CHECK_TIMES")
    book >> wait(HOUR_MS) >> op_end << nobody_asked
    assert book.ledger.held_halves == 0


def test_case_090_too_old_is_a_dead_letter() -> None:
    """At 72 h, after three requests over an hour that nobody answered (D-003)."""
    book = started() >> half("A") >> wait(TIMEOUT_MS)
    for attempt in range(1, 4):
        book >> op_end << asked("A", 1, attempt)
        book >> wait(10 * MINUTE_MS)
    book >> wait(72 * HOUR_MS) >> op_end << nobody_asked << discard_written("A", "AGE")
    book >> wait(0) << dead("A", "AGE")


def test_case_090_age_alone_is_not_enough() -> None:
    """A daemon that was away for a week asks first."""
    book = started() >> half("A") >> wait(7 * 24 * HOUR_MS) >> restart << nothing
    book >> op_end << asked("A") << nothing


def test_case_091_a_dead_letter_that_fails_is_written_later() -> None:
    """It goes with its progress, in one kafka_txn; the half is kept until that commits."""
    book = started(check_count_max=1) >> half("A") >> wait(TIMEOUT_MS) >> op_end << asked("A")
    book >> unknown("A", 1) << discard_written("A", "CHECK_TIMES")
    book >> wait(0) >> killed_before_commit >> wait(0) << dead("A", "CHECK_TIMES")
    assert book.log.written.count(*dead("A", "CHECK_TIMES")) == 1


@pytest.mark.parametrize(
    ("immunity_s", "due_s"), [(1, 6), (5, 6), (6, 6), (7, 7), (-0.001, 6), (60, 60), (100, 100)]
)
def test_case_092_the_timeout_is_a_floor_for_immunity(immunity_s: float, due_s: int) -> None:
    """One definition: max(immunity, timeout); -1 on the wire is the default."""
    immunity_ms = int(immunity_s * SECOND_MS)
    assert first_due_ms(0, immunity_ms, TIMEOUT_MS, HOUR_MS) == due_s * SECOND_MS
    book = started() >> half("A", immunity_ms=immunity_ms) >> wait(due_s * SECOND_MS - 1)
    book >> op_end << nobody_asked
    book >> wait(1) >> op_end << asked("A")


def test_case_093_immunity_delays_nobody_else() -> None:
    """A half with an hour of it in front; the one behind is asked about at its own time."""
    book = started() >> half("slow", immunity_ms=HOUR_MS) >> half("A")
    book >> wait(TIMEOUT_MS) >> op_end << asked("A") << nobody_asked << nothing
    book >> wait(HOUR_MS) >> commit("A") << delivered("A")
    book >> op_end << asked("slow")


def test_case_094_waiting_does_not_count_as_checks() -> None:
    """Immunity beyond 15 intervals: still the first check, afterwards."""
    long_ms = 20 * INTERVAL_MS
    book = started() >> half("A", immunity_ms=long_ms) >> wait(long_ms - 1) >> op_end
    book << nobody_asked
    book >> wait(1) >> op_end << asked("A", 1)


def test_case_095_decided_during_immunity_is_never_asked_about() -> None:
    """Delivered once, and that is all; also when it was put back meanwhile."""
    book = started(republish_window_records=1) >> half("A", immunity_ms=HOUR_MS)
    for number in range(8):
        book >> half(str(number)) >> rollback(str(number))
    book << put_back("A", "window")
    book >> commit("A") << delivered("A")
    book >> wait(HOUR_MS) >> op_end << nobody_asked << nothing


def test_case_096_at_exactly_its_immunity_a_half_is_due() -> None:
    """Once: it is neither passed over nor asked about in a loop."""
    book = started() >> half("A", immunity_ms=7_000) >> wait(7_000) >> op_end
    book << asked("A") << nobody_asked << nothing


def test_case_097_a_copy_keeps_its_origin_and_its_birth() -> None:
    """First append time, original offset, born time and immunity go with every copy."""
    book = started(republish_window_records=1) >> half("A", immunity_ms=HOUR_MS)
    first = book.log.half[0]
    for name in "BCDEFGHI":
        book >> wait(SECOND_MS) >> half(name) >> rollback(name)
    book << put_back("A", "window")
    (copy,) = (each.metadata for each in book.log.half if each.metadata.origin_offset >= 0)
    assert copy.origin_offset == 0
    assert copy.first_append_timestamp == first.append_ms
    expected = first.metadata._replace(origin_offset=0, first_append_timestamp=first.append_ms)
    assert copy == expected


@pytest.mark.parametrize("born_ms", [1, 1 << 50])
def test_case_098_and_099_the_clients_clock_decides_nothing(born_ms: int) -> None:
    """Born long ago or in the future: due by the broker's append time (D-012)."""
    book = started() >> half("skewed", born_timestamp=born_ms) >> half("A")
    book >> wait(TIMEOUT_MS - 1) >> op_end << nobody_asked
    book >> wait(1) >> op_end << all_asked(asked("skewed"), asked("A"))


def test_case_100_what_one_turn_cannot_ask_the_next_one_does() -> None:
    """A turn has a limit; nobody is lost or asked twice over it."""
    book = started() >> half("A") >> half("B") >> half("C") >> wait(TIMEOUT_MS) >> op_end
    book << asked("A") << asked("B") << asked("C") << nobody_asked


def test_case_102_asking_writes_nothing_to_the_log() -> None:
    """However often nobody answers, no body is appended again (D-006)."""
    book = started() >> half("A") >> wait(TIMEOUT_MS)
    before = book.log.half_end, book.log.op_end
    for attempt in range(1, 20):
        book >> op_end << asked("A", 1, attempt) << nothing
        book >> wait(10 * MINUTE_MS)
    assert (book.log.half_end, book.log.op_end) == before


def test_case_105_counts_and_decisions_survive_a_restart() -> None:
    """Two counted answers, a long immunity, a decided one: each is as it was."""
    book = started() >> half("A") >> half("slow", immunity_ms=HOUR_MS) >> half("done")
    book >> commit("done") << delivered("done")
    book >> wait(TIMEOUT_MS) >> op_end << asked("A")
    book >> unknown("A", 1) << put_back("A", "answer", 1)
    book >> restart << nothing
    book >> wait(INTERVAL_MS) >> op_end << asked("A", 2) << nobody_asked
    book >> wait(HOUR_MS) >> rollback("A") << nothing
    book >> op_end << asked("slow") << nobody_asked


def test_case_111_nobody_alive_costs_no_check() -> None:
    """Requests without answers leave the number at 1, for as long as it takes."""
    book = started() >> half("A") >> wait(TIMEOUT_MS)
    for attempt in range(1, 30):
        book >> op_end << asked("A", 1, attempt)
        book >> wait(10 * MINUTE_MS)
    book >> unknown("A", 1) << put_back("A", "answer", 1)


def test_case_112_a_member_that_returns_is_asked_within_the_longest_interval() -> None:
    """However long nobody answered: at most check_backoff_ms_max lie between two requests."""
    most_ms = 10 * MINUTE_MS
    book = started() >> half("A") >> wait(TIMEOUT_MS) >> op_end << asked("A", 1, 1)
    waits_ms = [INTERVAL_MS, 2 * INTERVAL_MS, 4 * INTERVAL_MS, 8 * INTERVAL_MS, 16 * INTERVAL_MS]
    for attempt, wait_ms in enumerate(waits_ms + 40 * [most_ms], start=2):
        book >> wait(wait_ms - 1) >> op_end << nobody_asked
        book >> wait(1) >> op_end << asked("A", 1, attempt)
    book >> commit("A", source=OpSource.CHECK, check_number=1) << delivered("A")


def test_case_116_and_140_a_request_that_was_lost_is_sent_again_and_not_counted() -> None:
    """The second attempt has the same number."""
    book = started() >> half("A") >> wait(TIMEOUT_MS) >> op_end << asked("A", 1, 1)
    book >> wait(INTERVAL_MS) >> op_end << asked("A", 1, 2)
    book << nothing << counted(Count.CHECK_EXPIRED)


def test_case_121_the_gauge_returns_to_zero() -> None:
    """After committed, rolled back and discarded ones, with duplicates, nothing is left."""
    book = started(check_count_max=1) >> half("A") >> half("A") >> half("B") >> half("C")
    assert book.ledger.halves_by_topic == {"real": 3}
    assert book.ledger.memory.bodies_bytes > 0
    book >> commit("A") >> rollback("B") << delivered("A")
    book >> wait(TIMEOUT_MS) >> op_end << asked("C")
    book >> unknown("C", 1) << discard_written("C", "CHECK_TIMES")
    book >> wait(0) << dead("C", "CHECK_TIMES")
    book >> commit("A") >> rollback("C") << nothing
    assert book.ledger.halves_by_topic["real"] == 0
    assert (book.ledger.held_halves, book.ledger.memory.bodies_bytes) == (0, 0)
