"""Tables for people."""

from __future__ import annotations

from halfbridge.cli.table import CELL_CHARS_MAX, table


def test_columns_are_as_wide_as_their_contents() -> None:
    """The last column is not padded."""
    assert list(table(("A", "LONG", "C"), [(1, "x", "end"), ("three", "", "")])) == [
        "A      LONG  C",
        "1      x     end",
        "three",
    ]


def test_a_cell_stays_in_its_line_and_is_cut() -> None:
    """A stranger's text makes no line and no column of its own; the last column is shown whole."""
    long = "x" * 100
    _, line = table(("A", "B"), [("\x1b[31m\n" + long, long)])
    first, _, last = line.partition("  ")
    assert first.startswith("\\x1b[31m\\nx")
    assert len(first) == CELL_CHARS_MAX
    assert last == long


def test_without_rows_there_are_headings() -> None:
    """One line."""
    assert list(table(("A", "B"), [])) == ["A  B"]
