"""Transactions in memory: fields from the first record, decided state, lookup, held bytes."""

import pytest

from halfbridge.checker.core.entries import IN_FLIGHT, STALE_MAX, Entries, Entry, Holdings
from halfbridge.checker.core.events import HalfRead
from halfbridge.serde.protocol import State
from halfbridge.serde.records import OpKind
from tests.playbook import (
    Playbook,
    commit,
    delivered,
    half,
    metadata,
    nothing,
    op_record,
    unknown,
    unread,
)


def _half(index: int, **fields: object) -> HalfRead:
    return HalfRead(9, 500, metadata("A", index)._replace(**fields), "", 1, "body")


def test_an_original_begins_its_life() -> None:
    """An original counts with its append time, and without its check count."""
    entry = Entry(_half(0, check_times=3, first_append_timestamp=1))
    assert (entry.first_append_ms, entry.check_times, entry.offset) == (500, 0, 9)


def test_a_copy_carries_on() -> None:
    """A copy has first append time and counted answers, but no time after its own append."""
    entry = Entry(_half(0, origin_offset=2, check_times=3, first_append_timestamp=100))
    assert (entry.first_append_ms, entry.check_times) == (100, 3)
    assert Entry(_half(0, origin_offset=2, first_append_timestamp=900)).first_append_ms == 500


@pytest.mark.parametrize("indices", [[0], [1], [0, 1, 2], [2, 0], [5, 3]])
def test_a_decided_entry_knows_its_indices(indices: list[int]) -> None:
    """Messages are in index order; a decided entry has no messages, but their indices."""
    entry = Entry(_half(indices[0]))
    for index in indices[1:]:
        entry.messages[index] = _half(index)
    assert [half.metadata.message_index for half in entry.in_order()] == sorted(indices)
    entry.decide(State.COMMITTED, 7, 1)
    assert set(entry.known) == set(indices)
    assert not entry.messages
    assert (entry.op_offset, entry.decided_ms) == (7, 1)


def test_entries_never_share_what_can_change() -> None:
    """A decision of one entry does not change another."""
    one, other = Entry(_half(0)), Entry(_half(0))
    one.decide(State.COMMITTED, 1, 1)
    assert one.messages is not other.messages
    assert other.messages.keys() == {0}


def test_a_decision_without_a_half_knows_nothing() -> None:
    """An entry of a decision without halves has no messages and no known index."""
    op = op_record("A", OpKind.COMMIT, half_offset=1)
    entry = Entry.decided_unseen(op, State.COMMITTED, 4, 9)
    assert not entry.known
    assert not entry.messages
    assert (entry.state, entry.op_offset, entry.last_record) == (State.COMMITTED, 4, -1)


# --- transactions by identity: id, resume count and, where two groups share them, the group


def _entry(group: str) -> Entry:
    reported = metadata("A")._replace(producer_group=group)
    return Entry(HalfRead(0, 0, reported, "", 1, None))


def test_groups_with_one_id_are_kept_apart() -> None:
    """Each group finds its own transaction, in any order of insertion and removal."""
    entries = Entries()
    mine, theirs = _entry("orders"), _entry("billing")
    assert entries.find("A", 0, "orders") is None
    assert not entries.is_other_groups("A", 0)
    entries.put(mine, "A", 0)
    assert entries.is_other_groups("A", 0)
    entries.put(theirs, "A", 0)
    assert entries.find("A", 0, "orders") is mine
    assert entries.find("A", 0, "billing") is theirs
    assert entries.find("A", 1, "orders") is None
    entries.remove(mine)
    assert entries.find("A", 0, "billing") is theirs
    entries.put(mine, "A", 0)
    entries.remove(theirs)
    assert list(entries) == [mine]
    assert len(entries) == 1


# --- bytes of undecided transactions, and released bodies ----------------------------------


def _held_half(offset: int, *, size_bytes: int = 10, index: int = 0) -> HalfRead:
    return HalfRead(offset, 0, metadata("A", index), "", size_bytes, "body", body_bytes=size_bytes)


def test_the_oldest_bodies_are_let_go_beyond_the_budget() -> None:
    """Beyond the budget the oldest bodies are released; their transactions are still delivered."""
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
    """A released body counts again when its copy is read."""
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
    """The totals stay exact when a copy replaces an original of another size."""
    held = Holdings()
    entry = Entry(_held_half(0, size_bytes=10))
    held.hold(entry)
    held.replace(entry, _held_half(5, size_bytes=17))
    assert (held.halves, held.size_bytes, held.held_bytes, held.read_bytes) == (1, 17, 17, 27)
    held.release(entry)
    assert (held.halves, held.size_bytes, held.held_bytes) == (0, 0, 0)


def test_an_entry_in_flight_holds_nothing() -> None:
    """While a copy is in flight, the next entry is the lowest."""
    held = Holdings()
    flying, standing = Entry(_held_half(0)), Entry(_held_half(1))
    held.hold(flying)
    held.hold(standing)
    assert held.lowest() is flying
    flying.offset = IN_FLIGHT
    assert held.lowest() is standing
    held.replace(flying, _held_half(7))
    assert (flying.offset, flying.bytes_at) == (7, 30)
    assert held.lowest() is standing
    standing.state = State.COMMITTED
    assert held.lowest() is flying


def test_decided_ones_are_swept_out_behind_an_undecided_head() -> None:
    """Decided entries after an undecided one are removed from the queues."""
    held = Holdings()
    head = Entry(_held_half(0))
    held.hold(head)
    for offset in range(1, STALE_MAX + 5):
        entry = Entry(_held_half(offset))
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
    """keep_budget removes decided entries from the head of the queue."""
    held = Holdings()
    entry = Entry(_held_half(0))
    held.hold(entry)
    held.release(entry)
    entry.decide(State.COMMITTED, 0, 0)
    held.keep_budget(0)
    assert not held._with_body
    assert not held._body_indices
    assert held.held_bytes == 0
