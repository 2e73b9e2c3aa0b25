"""Playbook cases: dead letters are written in order, within the limits of a plan."""

from halfbridge.checker.core.events import HalfRead, JunkRead
from halfbridge.checker.core.plan import Plan
from tests.playbook import (
    Playbook,
    commit,
    dead,
    delivered,
    half,
    junk_half,
    junk_letter,
    junk_op,
    killed_before_commit,
    nothing,
    put_back,
    read_half,
    read_ops,
    restart,
    unknown,
    unread,
)


def _bodies(plan: Plan) -> list[HalfRead | JunkRead]:
    letters = [*(each.half for each in plan.dead), *(each.record for each in plan.junk)]
    return [each for each in letters if each.body is not None]


def test_junk_that_is_read_at_once_is_dead_lettered_plan_by_plan() -> None:
    """Junk records that are read together are written within the record limit of each plan."""
    book = Playbook() >> unread(*[junk_half()] * 5) >> read_half
    book.records_max = 2
    book << junk_letter("half", 0) + junk_letter("half", 1)
    assert (book.progress.half, book.progress.position, book.ledger.letters_waiting) == (2, 2, 3)
    book << junk_letter("half", 2) + junk_letter("half", 3) << junk_letter("half", 4) << nothing
    assert (book.progress.half, book.progress.position, book.ledger.letters_waiting) == (5, 5, 0)


def test_junk_has_a_size() -> None:
    """Junk half records and ops are dead-lettered within the byte limit of each plan."""
    book = Playbook() >> unread(*[junk_half()] * 3, *[junk_op()] * 2) >> read_half >> read_ops
    assert book.ledger.memory.junk_op_bytes == 200
    book.size_bytes_max = 150
    book << junk_letter("half", 0) + junk_letter("half", 1)
    assert book.plan.size_bytes == 200
    book << junk_letter("half", 2) + junk_letter("op", 0) << junk_letter("op", 1) << nothing
    assert book.ledger.memory.junk_op_bytes == 0


def test_late_messages_are_dead_lettered_plan_by_plan() -> None:
    """Late messages and junk are dead-lettered in log order, within the limit of each plan."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> unread(half("A", 1), junk_half(), half("A", 2)) >> read_half
    book.records_max = 1
    book << dead("A", "LATE", 1) << junk_letter("half", 2) << dead("A", "LATE", 2) << nothing


def test_a_letter_is_written_once_across_restarts() -> None:
    """P is at the first letter that is not written."""
    book = Playbook() >> half("A") >> commit("A") << delivered("A")
    book >> unread(half("A", 1), junk_half(), half("A", 2), junk_half()) >> read_half
    book.records_max = 1
    book << dead("A", "LATE", 1) >> restart << junk_letter("half", 2)
    book >> killed_before_commit >> unread(read_half) >> read_ops
    book << dead("A", "LATE", 2) >> restart << junk_letter("half", 4) >> restart << nothing


def test_ops_wait_for_the_letters_before_them() -> None:
    """An op is applied after the letters before it: a rebuild treats messages from P on as new."""
    book = Playbook() >> unread(junk_half(), junk_half(), half("A"), commit("A"))
    book >> read_half >> read_ops
    book.records_max = 1
    book << junk_letter("half", 0) << junk_letter("half", 1)
    assert book.progress.op == 0
    book << delivered("A") >> restart << nothing
    book = Playbook() >> unread(junk_half(), junk_half(), half("A"), commit("A"))
    book >> read_half >> read_ops
    book.records_max = 1
    book << junk_letter("half", 0) >> restart << junk_letter("half", 1) >> restart << delivered("A")


def test_junk_behind_copies_is_dead_lettered_plan_by_plan_after_a_rebuild() -> None:
    """Junk that waits for the rebuild's end is written within the record limit of each plan."""
    book = Playbook() >> half("X") >> half("A") >> commit("A") << delivered("A")
    book >> unread(*[junk_half()] * 3) >> unread(restart, read_half) << nothing
    assert not book.ledger.is_rebuilt
    assert book.ledger.letters_waiting == 3
    book.records_max = 2
    book >> unread(read_ops) << junk_letter("half", 2) + junk_letter("half", 3)
    book >> restart << junk_letter("half", 4) << nothing


def test_what_a_rebuild_needs_is_no_reason_to_stop_reading() -> None:
    """Junk below R does not count as waiting until the rebuild is complete."""
    book = Playbook() >> half("A")
    book >> unread(unknown("A", 1), junk_half()) >> read_ops << put_back("A", "answer", 1)
    assert (book.progress.position, book.progress.rebuild_to) == (1, 3)
    book >> unread(restart)
    book.reader.read_half(1)
    assert book.ledger.letters_waiting == 0
    book.reader.read()
    assert book.ledger.letters_waiting == 1
    book << junk_letter("half", 1)


def test_letters_keep_the_budget() -> None:
    """Bodies of letters beyond half of the budget are released, during a rebuild and after it."""
    book = Playbook(ledger_bytes_max=500) >> half("A") >> commit("A") << delivered("A")
    book >> unread(half("A", 1), *[junk_half()] * 4) >> read_half
    assert book.ledger.memory.bodies_bytes == 200
    assert [each.offset for each in _bodies(book.take_plan())] == [1, 2]
    assert book.ledger.memory.bodies_bytes == 0
    book >> restart
    assert len(_bodies(book.take_plan())) == 2
    assert len(book.plan.junk) == 4


def test_letters_and_messages_share_the_budget() -> None:
    """Bodies of undecided messages are released for waiting letters and for those in a plan."""
    halves = [half(name) for name in "ABCD"]
    book = Playbook(ledger_bytes_max=450) >> unread(*halves, *[junk_half()] * 2)
    book >> read_half
    book.records_max = 1
    book << junk_letter("half", 4)
    assert book.ledger.memory.bodies_bytes == 100 + 200
