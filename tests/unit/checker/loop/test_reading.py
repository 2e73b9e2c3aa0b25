"""Since when a consumer is read, and how long the group's word counts."""

from __future__ import annotations

from halfbridge.checker.loop.intake import SAID_S, UNREAD_S, GroupTrouble, Reading

BEGIN = 1000.0


def test_reading_goes_on_while_records_are_taken_often_enough() -> None:
    """A commit that takes a moment is no pause."""
    reading = Reading()
    reading.begin({}, BEGIN)
    for step in range(100):
        reading.takes(BEGIN + step * UNREAD_S)
    assert reading.since(BEGIN + 99 * UNREAD_S) == BEGIN


def test_nothing_is_read_while_nobody_takes_records() -> None:
    """Whatever the consumer has fetched: it would look as if it stood still."""
    reading = Reading()
    reading.begin({}, BEGIN)
    reading.takes(BEGIN)
    late = BEGIN + UNREAD_S + 1
    assert reading.since(late) == late
    reading.takes(late)
    assert reading.since(late + 1) == late


def test_a_new_beginning_counts_anew() -> None:
    """Rebuilds in a row, each from the same offsets, are no stall."""
    reading = Reading()
    reading.begin({("half", 0): 7}, BEGIN)
    reading.takes(BEGIN)
    reading.begin({("half", 0): 7}, BEGIN + 3)
    assert reading.since(BEGIN + 4) == BEGIN + 3
    assert reading.ends == {("half", 0): 7}


def test_the_groups_word_counts_until_we_are_in_or_it_is_old() -> None:
    """It is said every 30 s while it is true, and nobody says when it is over."""
    trouble = GroupTrouble()
    assert trouble.text(BEGIN) == ""
    trouble.note("not authorized", BEGIN)
    assert trouble.text(BEGIN + SAID_S) == "not authorized"
    assert trouble.text(BEGIN + SAID_S + 1) == ""
    trouble.note("not authorized", BEGIN)
    trouble.end()
    assert trouble.text(BEGIN) == ""
