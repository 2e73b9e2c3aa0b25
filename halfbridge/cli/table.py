"""Tables for people: columns as wide as their contents, each cell in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Width of one cell: ids of 32 characters and most names are shown whole.
CELL_CHARS_MAX = 60
_GAP = "  "


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; the last column is as long as it is."""
    shown = [[*map(_cell, row[:-1]), one_line(str(row[-1]))] for row in rows]
    widths = [
        max(len(heading), max((len(row[number]) for row in shown), default=0))
        for number, heading in enumerate(headings[:-1])
    ]
    widths.append(0)
    for row in (list(headings), *shown):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield _GAP.join(cells).rstrip()


def _cell(cell: object) -> str:
    text = one_line(str(cell))
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 3]}..."
