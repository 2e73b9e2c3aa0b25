"""Times, sizes and numbers as people read them."""

from __future__ import annotations

import math

import pytest

from halfbridge.web.pages.page import (
    command,
    duration,
    labelled,
    milliseconds,
    moment,
    name,
    number,
    size,
    sparkline,
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        *[(None, "-"), (0, "0 ms"), (0.0123, "12 ms"), (1.25, "1.2 s"), (42.4, "42 s")],
        *[(60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3723, "1 h 2 min")],
        *[(86_400, "1 d"), (90_000, "1 d 1 h"), (math.inf, "no limit")],
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float | None, expected: str) -> None:
    """The larger unit comes first, and a rest of nothing is left out."""
    assert duration(seconds) == expected
    assert milliseconds(None if seconds is None else seconds * 1000) == expected


@pytest.mark.parametrize(
    ("at_ms", "expected"),
    [
        (1_700_000_000_123, "2023-11-14 22:13:20.123 UTC"),
        (None, "-"),
        (-1, "-"),
        (10**18, f"{10**18} ms"),
    ],
)
def test_a_moment_that_no_calendar_has_is_a_number(at_ms: int | None, expected: str) -> None:
    """A stranger's timestamp breaks no page."""
    assert moment(at_ms) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        *[(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB")],
        *[(20 * 1024**2, "20 MiB"), (1024**4, "1024 GiB")],
    ],
)
def test_a_size_has_a_unit_that_fits(count: int | None, expected: str) -> None:
    """Bytes are counted in 1,024s."""
    assert size(count) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0, "0"), (0.25, "0.2"), (3.0, "3"), (1_234_567.8, "1,234,568")],
)
def test_a_number_has_its_thousands_apart(value: float | None, expected: str) -> None:
    """Small ones have a decimal, if it is not 0."""
    assert number(value) == expected


def test_a_sparkline_needs_two_values() -> None:
    """One reading is no line; equal values are a flat one."""
    assert sparkline((1.0,)) == ""
    assert sparkline((0.0, 0.0)).count(",26.0") == 2
    assert "120.0,2.0" in sparkline((0.0, 5.0))


def test_words_of_a_command_are_whole_and_escaped() -> None:
    """What is copied from the page is the command."""
    shown = command("kafka --topic <x>")
    spans = '<span class="word">kafka</span> <span class="word">--topic</span>'
    assert shown == f'{spans} <span class="word">&lt;x&gt;</span>'


def test_a_name_may_be_broken_behind_its_parts() -> None:
    """Not in the middle of a word; what strangers wrote is text, in one line."""
    assert name("a_b.c-d") == "a_<wbr>b.<wbr>c-d"
    assert name("<b>\n") == "&lt;b&gt;\\n"


def test_cells_name_their_columns() -> None:
    """In each row by their order; not a cell over several columns."""
    head = '<thead><tr><th scope="col">Id</th><th scope="col" class="n">Age</th></tr></thead>'
    cells = '<td><a>1</a></td>\n<td class="n">2</td>'
    shown = labelled(f'{head}<tr>{cells}</tr><tr>{cells}</tr><tr><td colspan="2">none</td></tr>')
    row = '<tr><td data-label="Id"><a>1</a></td>\n<td data-label="Age" class="n">2</td></tr>'
    assert shown == f'{head}{row}{row}<tr><td colspan="2">none</td></tr>'
