"""The two memory budgets of a ledger: bodies are released, and reading stops for entries."""

import pytest

from halfbridge.checker.core import memory
from halfbridge.checker.core.memory import (
    ALARM_PERCENT,
    FULL_SHARE,
    HALVES_PERCENT,
    NEEDED_HALVES_PERCENT,
    OPS_PERCENT,
    OPS_SHARE,
    PRESSED_PERCENT,
    RESUME_PERCENT,
)
from halfbridge.checker.core.plan import PutBackRule
from halfbridge.checker.core.settings import RECENT_MAX
from tests.ledger_weights import counted, weighed
from tests.playbook import (
    Playbook,
    commit,
    delivered,
    half,
    junk_half,
    junk_op,
    nothing,
    put_back,
    read_half,
    read_ops,
    restart,
    rollback,
    unknown,
    unread,
    wait,
)

# Bytes of one undecided transaction of the playbook, with overhead.
ONE = 1_100


def filled(book: Playbook, percent: int, prefix: str = "T") -> int:
    """Store undecided transactions until `percent` of the budget is used; return their number."""
    count = 0
    while book.ledger.memory.fill_percent(0) < percent:
        book >> half(f"{prefix}{count}")
        count += 1
    return count


def takes_halves(book: Playbook, *, is_paused: bool = False) -> bool:
    """Return whether the throttle reads half records."""
    ledger = book.ledger
    return ledger.memory.takes_halves(0, are_needed=ledger.waits_for_half, is_paused=is_paused)


def takes_ops(book: Playbook, *, is_paused: bool = False) -> bool:
    """Return whether the throttle reads ops."""
    return book.ledger.memory.takes_ops(0, wait=book.ledger.waits_for_half, is_paused=is_paused)


# --- entries -------------------------------------------------------------------------------


def test_halves_are_read_up_to_their_limit() -> None:
    """At HALVES_PERCENT only ops are read; halves are read again RESUME_PERCENT below."""
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    filled(book, ALARM_PERCENT)
    assert takes_halves(book)
    filled(book, HALVES_PERCENT, "U")
    assert not takes_halves(book)
    assert takes_ops(book)
    count = filled(book, HALVES_PERCENT + 1, "V")
    for number in range(count):
        book >> rollback(f"V{number}")
    book << nothing
    assert not takes_halves(book, is_paused=True)
    number = 0
    while book.ledger.memory.fill_percent(0) >= HALVES_PERCENT - RESUME_PERCENT:
        book >> rollback(f"T{number}") << nothing
        number += 1
    assert takes_halves(book, is_paused=True)


def test_an_op_that_waits_has_halves_read_on_within_the_reserve() -> None:
    """While an op waits, halves are read up to NEEDED_HALVES_PERCENT."""
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    filled(book, HALVES_PERCENT)
    assert not takes_halves(book)
    for number in range(60):
        book >> unread(half(f"U{number}"))
    book >> unread(half("A"), commit("A")) >> read_ops << nothing
    assert book.ledger.waits_for_half
    while takes_halves(book):
        book.reader.read_half(1)
    assert NEEDED_HALVES_PERCENT <= book.ledger.memory.fill_percent(0) < OPS_PERCENT
    assert book.ledger.waits_for_half
    assert not takes_ops(book)


def test_ops_that_wait_leave_room_for_what_they_wait_for() -> None:
    """A burst of ops behind a waiting op leaves room for the half message that it waits for."""
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    count = filled(book, HALVES_PERCENT - 2)
    book >> unread(half("A"), commit("A")) >> read_ops << nothing
    for number in range(count):
        book >> unread(rollback(f"T{number}"))
        if takes_ops(book):
            book.reader.read_op(1)
    assert takes_halves(book, is_paused=True)
    book >> read_half << delivered("A")


def test_nothing_more_is_read_when_all_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops about unknown transactions take memory until ops are not read either."""
    monkeypatch.setattr(memory, "RECENT_MAX", 0)
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    filled(book, NEEDED_HALVES_PERCENT)
    number = 0
    while takes_ops(book):
        book >> rollback(f"nobody-{number}") << nothing
        number += 1
    halves = book.ledger.held_halves
    assert book.ledger.memory.fill_percent(0) >= OPS_PERCENT
    assert number == halves // FULL_SHARE + 1
    assert not takes_ops(book, is_paused=True)


def test_ops_are_read_on_where_they_make_room() -> None:
    """Above OPS_PERCENT ops are still read if their decisions make room."""
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    count = filled(book, OPS_PERCENT + 10)
    assert takes_ops(book)
    for number in range(count):
        book >> rollback(f"T{number}") << nothing
    assert takes_halves(book, is_paused=True)


def test_copies_are_read_back_beyond_the_limit() -> None:
    """Above the limit, halves are read if unread copies keep decisions in memory."""
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    filled(book, HALVES_PERCENT + 5)
    book >> unread(unknown("T0", 1), commit("T0")) >> read_ops
    book << delivered("T0") + put_back("T0", "answer", 1)
    assert book.ledger.memory.needs_copies
    assert takes_halves(book)
    book >> read_half
    assert not book.ledger.memory.needs_copies
    assert not takes_halves(book)


def test_ops_that_wait_have_a_share() -> None:
    """Waiting ops take at most one part in OPS_SHARE of the memory."""
    book = Playbook(entries_bytes_max=100 * ONE) >> unread(half("A"), commit("A")) >> read_ops
    number = 0
    while takes_ops(book):
        book >> unread(rollback(f"B{number}", half_offset=0)) >> read_ops << nothing
        number += 1
    assert book.ledger.memory.ops_bytes * OPS_SHARE >= 100 * ONE
    assert number > 5
    book >> read_half << delivered("A")
    assert takes_ops(book)
    assert book.ledger.memory.ops_bytes == 0


def test_a_rebuild_reads_what_it_must() -> None:
    """A rebuild reads all halves and ops, also above a budget that was lowered."""
    book = Playbook(entries_bytes_max=200 * ONE) << nothing
    filled(book, HALVES_PERCENT)
    book << nothing
    book.settings = Playbook(entries_bytes_max=20 * ONE).settings  # more pairs share it now
    book >> unread(restart) >> read_half
    assert not book.ledger.is_rebuilt
    assert book.ledger.memory.fill_percent(0) > OPS_PERCENT
    assert takes_halves(book)
    assert takes_ops(book)
    book >> read_ops << nothing
    assert book.ledger.is_rebuilt
    assert not takes_halves(book)


# --- decisions kept in memory --------------------------------------------------------------


def test_ops_alone_have_the_oldest_undecided_put_back() -> None:
    """Ops without further halves have the oldest undecided put back, so that H and T advance."""
    book = Playbook(republish_window_records=10) >> half("A") >> half("B") << nothing
    book >> commit("B") << delivered("B")
    for number in range(13):
        book >> rollback(f"nobody-{number}") << nothing
    assert book.progress.half == 0
    book >> rollback("nobody") << put_back("A", "window")
    assert book.progress.half == 2
    book >> wait(1) << nothing
    for number in range(40):  # T is at recent decisions now, which no put back changes
        book >> rollback(f"other-{number}") << nothing
    book >> commit("A") << delivered("A")


def test_fewer_decisions_are_kept_when_memory_is_scarce() -> None:
    """With scarce memory, undecided messages are put back so that decisions can be forgotten."""
    settings = {"republish_window_records": 10 * RECENT_MAX}
    scarce = Playbook(**settings, entries_bytes_max=10_000) >> half("A") >> half("B") << nothing
    plenty = Playbook(**settings) >> half("A") >> half("B") << nothing
    for book in (scarce, plenty):
        book >> commit("B") << delivered("B")
        book.log.op_end += 2 * RECENT_MAX  # as if there were ops that decide nothing
        book >> rollback("nobody")
    while scarce.ledger.memory.fill_percent(0) < PRESSED_PERCENT + 10:
        scarce >> half(f"T{len(scarce.log.half)}")
    rules = [one.rule for one in scarce.take_plan().put_backs]
    assert set(rules) == {PutBackRule.WINDOW}
    assert not plenty.take_plan().put_backs


# --- bodies --------------------------------------------------------------------------------


def test_bodies_keep_their_budget_beside_a_plan_that_was_taken() -> None:
    """Bodies in a taken plan count in the budget of the bodies read meanwhile."""
    book = Playbook(ledger_bytes_max=1_000) >> half("A", size_bytes=600) << nothing
    book >> unread(commit("A"), read_ops)
    plan = book.take_plan()
    assert plan.body_bytes == 600
    for number in range(20):
        book >> half(f"T{number}", size_bytes=100)
    assert book.ledger.memory.bodies_bytes == 2_000
    book.ledger.memory.keep_bodies(plan.body_bytes)
    assert book.ledger.memory.bodies_bytes == 400
    book.ledger.memory.keep_bodies(0)
    assert book.ledger.memory.bodies_bytes == 400


def test_all_that_has_a_body_is_counted() -> None:
    """Bodies of undecided halves, letters and unreadable ops count, during and after a rebuild."""
    book = Playbook(ledger_bytes_max=10_000)
    book >> unread(half("A"), junk_half(), junk_op()) >> read_half >> read_ops
    assert book.ledger.memory.bodies_bytes == 300
    assert counted(book.ledger) == weighed(book.ledger)
    book >> unread(restart) >> read_half >> read_ops
    assert book.ledger.memory.bodies_bytes == 300
    assert book.take_plan().body_bytes == 200
    assert book.ledger.memory.bodies_bytes == 100


def test_a_plan_that_does_not_fit_is_reported() -> None:
    """A plan larger than the budget of bodies is too large."""
    ledger = Playbook(ledger_bytes_max=1_000).ledger
    assert not ledger.memory.is_too_large(1_000)
    assert ledger.memory.is_too_large(1_001)
