"""Times, sizes and numbers as a page shows them."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone

from markupsafe import Markup, escape

from halfbridge.logs import one_line

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_KIB = 1024
_SMALL = 10  # below it, one digit behind the point is shown
NOTHING = "-"
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 28
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>")
_CELL = re.compile(r"<td(?![^>]*colspan)")


def duration(seconds: float | None) -> str:
    """Return a length of time in two units at most: 0.012 -> 12 ms, 3723 -> 1 h 2 min."""
    if seconds is None:
        return NOTHING
    if math.isinf(seconds):
        return "no limit"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _SMALL:
        return f"{seconds:.1f} s"
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    for unit, name, part, part_name in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), unit)
            return (
                f"{whole} {name} {rest // part} {part_name}" if rest // part else f"{whole} {name}"
            )
    raise AssertionError("a minute is the least unit")


def milliseconds(value: float | None) -> str:
    """Return a length of time that is given in milliseconds."""
    return duration(None if value is None else value / 1000)


def moment(at_ms: int | None) -> str:
    """Return a time in UTC; a time that no calendar has is shown as its number."""
    if at_ms is None or at_ms < 0:
        return NOTHING
    try:
        when = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return f"{when:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} UTC"


def size(count: int | None) -> str:
    """Return bytes in a unit that fits."""
    if count is None:
        return NOTHING
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < _KIB or unit == "GiB":
            return (
                f"{value:.0f} {unit}" if unit == "B" or value >= _SMALL else f"{value:.1f} {unit}"
            )
        value /= _KIB
    raise AssertionError("GiB is the last unit")


def number(value: float | None) -> str:
    """Return a number with thousands apart; small ones with one decimal."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if 0 < abs(value) < _SMALL and value % 1 else f"{value:,.0f}"


def sparkline(values: tuple[float, ...]) -> Markup:
    """Return a small picture of how a number went, the oldest value first."""
    if len(values) < 2:  # noqa: PLR2004 (a line has two ends)
        return Markup("")
    most = max(values) or 1.0
    step = _SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{index * step:.1f},{_SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * value / most:.1f}"
        for index, value in enumerate(values)
    )
    return Markup(  # noqa: S704 (numbers only)
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}"'
        ' preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )


def command(text: str) -> Markup:
    """Return a command whose words are not broken: a browser breaks `--name` behind its hyphens."""
    words = (f'<span class="word">{escape(word)}</span>' for word in text.split(" "))
    return Markup(" ".join(words))  # noqa: S704 (each word is escaped)


def name(text: str) -> Markup:
    """Return a topic's or a group's name that a browser may also break behind `_` and `.`."""
    shown = escape(one_line(text))
    return shown.replace("_", Markup("_<wbr>")).replace(".", Markup(".<wbr>"))


def labelled(rows: str) -> Markup:
    """Return a table's rows with the column's heading as `data-label` of each cell.

    A narrow screen shows each row as a card, where the labels take the place of the headings. A
    cell over several columns has none.

    Args:
        rows: HTML of a template, in which what strangers wrote is escaped.
    """
    rows = str(rows)  # a pattern would escape what it puts into Markup
    headings = _HEADING.findall(rows)

    def with_labels(row: re.Match[str]) -> str:
        rest = iter(headings)
        return _CELL.sub(lambda cell: f'{cell[0]} data-label="{next(rest, "")}"', row[0])

    return Markup(_ROW.sub(with_labels, rows))  # noqa: S704 (it was markup before)


FILTERS = {
    "command": command,
    "duration": duration,
    "labelled": labelled,
    "milliseconds": milliseconds,
    "moment": moment,
    "name": name,
    "size": size,
    "number": number,
    "sparkline": sparkline,
}
