"""Log lines that hold text from records: whoever writes a record writes no lines of the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

# Of one argument, in characters: what clients and brokers say of an error is shorter, and ids,
# groups and topics of 250 characters are shown whole.
SHOWN_CHARS_MAX = 1_000


def one_line(text: str) -> str:
    r"""Return `text` as it can stand in a line of a log.

    What cannot be printed is escaped (a newline is \n, a byte that was no UTF-8 \udcff), and what
    is longer than SHOWN_CHARS_MAX is cut and says so.
    """
    cut = text[:SHOWN_CHARS_MAX]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)
    return cut if len(text) <= SHOWN_CHARS_MAX else f"{cut}... ({len(text)} characters)"


class _Shown:
    """An argument of a log line, formatted when the line is, in one line."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return one_line(str(self._value))

    def __repr__(self) -> str:
        return one_line(repr(self._value))


class _OneLine(logging.Filter):
    """Has all arguments of a record formatted in one line; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments: Any = record.args  # a mapping, where the line names what it shows
        if isinstance(arguments, Mapping):
            record.args = {name: _shown(value) for name, value in arguments.items()}
        elif arguments:
            record.args = tuple(map(_shown, arguments))
        return True


_ONE_LINE = _OneLine()


def keep_to_one_line(*loggers: str) -> None:
    """Have the lines of these loggers hold their arguments in one line each, whoever logs them.

    Tracebacks stay as they are.
    """
    for name in loggers:
        logging.getLogger(name).addFilter(_ONE_LINE)


def _shown(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return value if value is None or isinstance(value, (int, float)) else _Shown(value)
