"""Escapes text from records for the log, so that the writer of a record cannot forge log lines."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

# Of one argument, in characters. Error texts of clients and brokers are shorter. Ids, groups and
# topics (250 characters) are shown whole.
SHOWN_CHARS_MAX = 1_000


def one_line(text: str) -> str:
    r"""Return `text` as it can stand in a line of a log.

    Characters that cannot be printed are escaped (a newline as \n, a byte that is no UTF-8 as
    \udcff). A text longer than SHOWN_CHARS_MAX is cut, with a note.
    """
    cut = text[:SHOWN_CHARS_MAX]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)
    return cut if len(text) <= SHOWN_CHARS_MAX else f"{cut}... ({len(text)} characters)"


def bytes_text(data: bytes | None) -> str:
    """Return bytes as UTF-8, escaped where they are none; `null` where there are none."""
    return "null" if data is None else one_line(data.decode("utf-8", "backslashreplace"))


class _Shown:
    """An argument of a log line; it is formatted in one line when the log line is formatted."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return one_line(str(self._value))

    def __repr__(self) -> str:
        return one_line(repr(self._value))


class _OneLine(logging.Filter):
    """Makes all arguments of a log record be formatted in one line; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments: Any = record.args  # a mapping, where the line names what it shows
        if isinstance(arguments, Mapping):
            record.args = {name: _shown(value) for name, value in arguments.items()}
        elif arguments:
            record.args = tuple(map(_shown, arguments))
        return True


_ONE_LINE = _OneLine()


def keep_to_one_line(*loggers: str) -> None:
    """Make the lines of these loggers hold their arguments in one line each.

    Tracebacks are not changed.
    """
    for name in loggers:
        logging.getLogger(name).addFilter(_ONE_LINE)


def _shown(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return value if value is None or isinstance(value, (int, float)) else _Shown(value)
