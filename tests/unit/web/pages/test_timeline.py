"""Where the marks of a transaction's life stand."""

from __future__ import annotations

import itertools
from typing import Any

from halfbridge.checker.admin.transactions.life import Event, Kind, Verdict
from halfbridge.web.pages.transactions import (
    LEFT,
    MARKS_MAX,
    RIGHT,
    TICK_DISTANCE,
    WIDTH,
    text_of,
    timeline,
)

BEGIN_MS = 1_700_000_000_000


def _event(kind: Kind, after_ms: int | None, **more: Any) -> Event:
    at_ms = None if after_ms is None else BEGIN_MS + after_ms
    return Event(kind=kind, at_ms=at_ms, topic="t", partition=0, offset=0, **more)


def test_marks_stand_in_the_order_of_time() -> None:
    """The first at the left edge, the last at the right one, later ones never before earlier."""
    steps = (0, 0, 1, 6_000, 6_020, 3_600_000)
    picture = timeline([_event(Kind.HALF, each) for each in steps])
    places = [mark.x for mark in picture.marks]
    assert places == sorted(places)
    assert len(set(places)) == len(steps)  # also what came at the same moment can be seen
    assert (places[0], places[-1]) == (LEFT, WIDTH - RIGHT)
    short, long = places[2] - places[1], places[5] - places[4]
    assert short > 0
    assert short < long < 10 * short


def test_each_kind_has_its_lane_and_style() -> None:
    """A decision that lost looks other than the one that won."""
    won = _event(Kind.DECISION, 1, verdict=Verdict.WON)
    lost = _event(Kind.DECISION, 2, verdict=Verdict.CONFLICT)
    picture = timeline([*(_event(kind, 0) for kind in Kind), won, lost])
    lanes = dict(picture.lanes)
    by_kind = dict(zip(Kind, picture.marks, strict=False))
    assert by_kind[Kind.COPY].y == lanes["messages"]
    assert by_kind[Kind.ANSWER].y == lanes["checks"]
    assert by_kind[Kind.DEAD_LETTER].y == lanes["delivery"]
    assert [mark.style for mark in picture.marks[-2:]] == ["decision", "other"]
    assert all(0 < mark.y < picture.height for mark in picture.marks)


def test_times_of_the_axis_do_not_overlap() -> None:
    """Fewer times than marks, each said once."""
    picture = timeline([_event(Kind.CHECK, each * 1000) for each in range(100)])
    places = [x for x, _ in picture.ticks]
    assert all(b - a >= TICK_DISTANCE for a, b in itertools.pairwise(places))
    assert picture.ticks[0][1] == "begin"
    assert len({text for _, text in picture.ticks}) == len(picture.ticks)
    assert LEFT >= TICK_DISTANCE / 2 <= RIGHT  # each time stands below its mark, the last one too


def test_a_life_of_any_length_is_a_picture_of_bounded_size() -> None:
    """1,000 messages with copies are told in the table."""
    picture = timeline([_event(Kind.HALF, each) for each in range(MARKS_MAX + 7)])
    assert len(picture.marks) == MARKS_MAX
    assert picture.left_out == 7


def test_strange_times_break_nothing() -> None:
    """No event, one event, events without a time, and clocks that went back."""
    assert timeline([]).marks == ()
    assert len(timeline([_event(Kind.HALF, None)]).marks) == 1
    steps = (None, 5, None, 3, 10**15)
    places = [mark.x for mark in timeline([_event(Kind.HALF, each) for each in steps]).marks]
    assert places == sorted(places)
    assert places[-1] <= WIDTH - RIGHT


def test_a_mark_says_what_it_is() -> None:
    """For a pointer that rests on it; a stranger's text has one line."""
    event = _event(
        Kind.DECISION, 0, op="COMMIT", source="PRODUCER", actor="a\nb", verdict=Verdict.WON
    )
    assert text_of(event) == ("decision COMMIT by PRODUCER a\\nb WON, 2023-11-14 22:13:20.000 UTC")
