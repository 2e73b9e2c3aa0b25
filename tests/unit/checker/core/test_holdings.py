"""What undecided transactions weigh, and whose bodies are let go."""

from __future__ import annotations

from halfbridge.checker.core.entries import IN_FLIGHT, STALE_MAX, Entry, Holdings
from halfbridge.checker.core.events import HalfRead
from halfbridge.serde.protocol import State
from tests.playbook import Playbook, commit, delivered, half, metadata, nothing, unknown, unread


def _half(offset: int, *, size_bytes: int = 10, index: int = 0) -> HalfRead:
    return HalfRead(offset, 0, metadata("A", index), "", size_bytes, "body", body_bytes=size_bytes)


def test_the_oldest_bodies_are_let_go_beyond_the_budget() -> None:
    """They are delivered all the same, to be read again by offset."""
    book = Playbook(ledger_bytes_max=250) << nothing
    for name in "ABC":
        book >> half(name, size_bytes=100)
    book << nothing
    assert book.ledger.memory.bodies_bytes == 200
    book >> commit("A") >> commit("B") << delivered("A") + delivered("B")
    bodies = [each.messages[0].body for each in book.plan.deliveries]
    assert bodies == [None, ("body", 1)]
    assert book.ledger.memory.bodies_bytes == 100


def test_a_copy_brings_its_body_back() -> None:
    """A body that was let go counts again when its copy is read."""
    book = Playbook(ledger_bytes_max=150) >> half("A") >> half("B") << nothing
    assert book.ledger.memory.bodies_bytes == 100
    book >> unread(unknown("A", 1))
    book.reader.read_op()
    assert book.take_plan().put_backs[0].half.body is None
    book.commit()
    book.reader.read()
    assert book.ledger.memory.bodies_bytes == 200
    book << nothing
    assert book.ledger.memory.bodies_bytes == 100


def test_a_copy_of_another_size_keeps_the_totals_right() -> None:
    """A copy's header is longer than its original's; nothing must drift."""
    held = Holdings()
    entry = Entry(_half(0, size_bytes=10))
    held.hold(entry)
    held.replace(entry, _half(5, size_bytes=17))
    assert (held.halves, held.size_bytes, held.held_bytes, held.read_bytes) == (1, 17, 17, 27)
    held.release(entry)
    assert (held.halves, held.size_bytes, held.held_bytes) == (0, 0, 0)


def test_an_entry_in_flight_holds_nothing() -> None:
    """Until a copy is read back the next one is the lowest."""
    held = Holdings()
    flying, standing = Entry(_half(0)), Entry(_half(1))
    held.hold(flying)
    held.hold(standing)
    assert held.lowest() is flying
    flying.offset = IN_FLIGHT
    assert held.lowest() is standing
    held.replace(flying, _half(7))
    assert (flying.offset, flying.bytes_at) == (7, 30)
    assert held.lowest() is standing
    standing.state = State.COMMITTED
    assert held.lowest() is flying


def test_decided_ones_are_swept_out_behind_an_undecided_head() -> None:
    """One old transaction does not keep millions of decided ones in memory."""
    held = Holdings()
    head = Entry(_half(0))
    held.hold(head)
    for offset in range(1, STALE_MAX + 5):
        entry = Entry(_half(offset))
        held.hold(entry)
        held.release(entry)
        entry.decide(State.COMMITTED, offset, 0)
    held.keep_budget(1 << 60)
    assert list(held._at_offsets) == [head]
    assert len(held._offsets) == 1
    assert list(held._with_body) == [head]
    assert len(held._body_indices) == 1
    assert held.lowest() is head


def test_bodies_of_decided_ones_are_skipped() -> None:
    """At the head of the queue the decided are dropped, whatever the budget."""
    held = Holdings()
    entry = Entry(_half(0))
    held.hold(entry)
    held.release(entry)
    entry.decide(State.COMMITTED, 0, 0)
    held.keep_budget(0)
    assert not held._with_body
    assert not held._body_indices
    assert held.held_bytes == 0
