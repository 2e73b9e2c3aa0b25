"""The committed position of a relay, and the events that it holds."""

from __future__ import annotations

import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbridge.changes.decide import Event
from halfbridge.changes.held import HELD_MAX, METADATA_CHARS_MAX, Held, Position, position_of


def _event(offset: int, partition: int = 0, value: bytes = b"") -> Event:
    return Event(partition, offset, None, value, [], 0)


@given(st.sets(st.integers(0, 2**50)), st.integers(2**50 + 1, 2**62))
def test_a_position_is_read_as_it_was_committed(due: set[int], end: int) -> None:
    """Offset and metadata tell all of it, and the offset is the first that is still needed."""
    position = Position("AbC-_1", end, tuple(sorted(due)))
    assert position_of(position.offset, position.metadata) == position
    assert position.offset == min({*due, end})


def test_metadata_of_the_usual_cases_fit() -> None:
    """All events of a topic, or every tenth event, may be held up to the limit of their number."""
    alone = Position("x" * 22, 10**15, tuple(range(10**14, 10**14 + HELD_MAX)))
    tenth = Position("x" * 22, 10**15, tuple(range(10**14, 10**14 + 10 * HELD_MAX, 10)))
    assert max(len(alone.metadata), len(tenth.metadata)) < METADATA_CHARS_MAX


WHOLE = Position("id", 9, (3, 5)).metadata
MANY = b64encode(zlib.compress(b"1+2000000")).decode()


@pytest.mark.parametrize(
    "metadata",
    ["v1;3", "c1;id;9", "c1;id;9;!", WHOLE[:-8], WHOLE.replace("9", "x", 1), f"c1;id;9;{MANY}"],
)
def test_strange_metadata_are_an_error(metadata: str) -> None:
    """They are never taken for a position."""
    with pytest.raises(ValueError, match=r"metadata|invalid literal"):
        position_of(5, metadata)


def test_metadata_of_earlier_commits_have_no_id() -> None:
    """An operator, or another tool, may have committed an offset without metadata."""
    assert position_of(7, None) == position_of(7, "") == Position("", 7)


def test_a_topic_takes_its_events_in_order() -> None:
    """And is waited for until it has taken the last one."""
    held = Held()
    for offset, topic in enumerate("abab"):
        held.add(topic, _event(offset, partition=offset // 3))
    assert held.topics == ("a", "b")
    assert held.offsets() == {0: (0, 1, 2), 1: (3,)}
    held.were_passed = True
    assert [held.take("a").offset for _ in range(2)] == [0, 2]
    assert not held.holds("a")
    assert held.were_passed
    assert [held.take("b").offset for _ in range(2)] == [1, 3]
    assert (len(held), held.were_passed, held.is_full) == (0, False, False)


def test_bytes_are_limited_too() -> None:
    """Large events fill the memory before their number does."""
    held = Held()
    for offset in range(64):
        assert not held.is_full
        held.add("a", _event(offset, value=b"x" * 1024 * 1024))
    assert held.is_full
