"""What counts as a reader that stands still, and what as one that has nothing to read."""

from __future__ import annotations

from halfbridge.kafka.stalls import Behind, compare

HALF, OP = ("half", 0), ("op", 0)


def test_who_has_read_all_is_not_behind() -> None:
    """However long nothing comes."""
    assert compare({}, {HALF: 7, OP: 9}, {HALF: 7, OP: 9}, 100.0) == {}


def test_a_log_that_goes_on_is_behind_since_it_was_first_found() -> None:
    """Not since it was last found: that would be for ever."""
    first = compare({}, {HALF: 7}, {HALF: 8}, 100.0)
    assert first == {HALF: Behind(7, 100.0)}
    assert compare(first, {HALF: 7}, {HALF: 30}, 120.0) == first


def test_who_reads_on_is_not_still_behind() -> None:
    """A backlog may take an hour: as long as it shrinks, time begins again."""
    first = compare({}, {HALF: 7}, {HALF: 8000}, 100.0)
    assert compare(first, {HALF: 20}, {HALF: 9000}, 120.0) == {HALF: Behind(20, 120.0)}


def test_where_no_broker_answers_time_begins_anew_with_the_next_answer() -> None:
    """Nobody could read while it was away, and the client may learn later that it is back."""
    first = compare({}, {HALF: 7, OP: 3}, {HALF: 8, OP: 4}, 100.0)
    away = compare(first, {HALF: 7, OP: 3}, {OP: 4}, 120.0)
    assert away == {OP: Behind(3, 100.0)}
    assert compare(away, {HALF: 7, OP: 3}, {HALF: 8, OP: 4}, 140.0)[HALF] == Behind(7, 140.0)


def test_what_is_not_fetched_is_not_behind() -> None:
    """A paused partition, or one that was taken away, is nobody's fault."""
    first = compare({}, {HALF: 7}, {HALF: 8}, 100.0)
    assert compare(first, {}, {HALF: 9}, 120.0) == {}
