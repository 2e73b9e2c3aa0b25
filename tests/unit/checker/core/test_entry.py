"""One transaction: what it takes from its first record, and what it keeps when decided."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.entries import Entry
from halfbridge.checker.core.events import HalfRead
from halfbridge.serde.protocol import State
from halfbridge.serde.records import OpKind
from tests.playbook import metadata, op_record


def _half(index: int, **fields: object) -> HalfRead:
    return HalfRead(9, 500, metadata("A", index)._replace(**fields), "", 1, "body")


def test_an_original_begins_its_life() -> None:
    """Its own append time counts; what it claims of checks does not."""
    entry = Entry(_half(0, check_times=3, first_append_timestamp=1))
    assert (entry.first_append_ms, entry.check_times, entry.offset) == (500, 0, 9)


def test_a_copy_carries_on() -> None:
    """A copy tells the first append and the counted answers, but not a future."""
    entry = Entry(_half(0, origin_offset=2, check_times=3, first_append_timestamp=100))
    assert (entry.first_append_ms, entry.check_times) == (100, 3)
    assert Entry(_half(0, origin_offset=2, first_append_timestamp=900)).first_append_ms == 500


@pytest.mark.parametrize("indices", [[0], [1], [0, 1, 2], [2, 0], [5, 3]])
def test_a_decided_entry_knows_its_indices(indices: list[int]) -> None:
    """The messages are let go, in order while they are there; which there were stays known."""
    entry = Entry(_half(indices[0]))
    for index in indices[1:]:
        entry.messages[index] = _half(index)
    assert [half.metadata.message_index for half in entry.in_order()] == sorted(indices)
    entry.decide(State.COMMITTED, 7, 1)
    assert set(entry.known) == set(indices)
    assert not entry.messages
    assert (entry.op_offset, entry.decided_ms) == (7, 1)


def test_entries_never_share_what_can_change() -> None:
    """Copies written of one transaction are not awaited in another."""
    one, other = Entry(_half(0)), Entry(_half(0))
    one.decide(State.COMMITTED, 1, 1)
    assert one.messages is not other.messages
    assert other.messages.keys() == {0}


def test_a_decision_without_a_half_knows_nothing() -> None:
    """Whatever comes for it is late."""
    op = op_record("A", OpKind.COMMIT, half_offset=1)
    entry = Entry.decided_unseen(op, State.COMMITTED, 4, 9)
    assert not entry.known
    assert not entry.messages
    assert (entry.state, entry.op_offset, entry.last_record) == (State.COMMITTED, 4, -1)
