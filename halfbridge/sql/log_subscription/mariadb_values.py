"""Converts values of MariaDB's columns, equally from the binlog and from a SELECT. Pure."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.log_subscription.changes import Value

# Types whose forms in the binlog and in a SELECT differ, and cannot be converted into each other
# with the type information that the binlog has.
UNREADABLE_TYPES = frozenset(
    (
        "geometry", "geometrycollection", "inet4", "inet6", "linestring", "multilinestring",
        "multipoint", "multipolygon", "point", "polygon", "uuid", "vector",
    )
)  # fmt: skip
_DATES = frozenset(("date", "datetime", "timestamp"))
_PLAIN = (bool, int, float, Decimal, str, bytes)
_SECONDS_A_MINUTE = 60
_SECONDS_AN_HOUR = 3_600


def plain_row(row: Mapping[str, object], types: Mapping[str, str]) -> dict[str, Value]:
    """Return a row's readable columns as plain values.

    Args:
        row: Column -> value, as a driver or the binlog's reader returns it.
        types: Column to the type's name in information_schema; other columns are left out.
    """
    return {name: plain(row[name], kind) for name, kind in types.items() if name in row}


def plain(value: object, kind: str) -> Value:
    """Return `value` of a column whose type is called `kind` in information_schema."""
    if value is None:
        return None
    if kind == "bit":
        return _bits(value)
    if kind == "set":
        members = value if isinstance(value, (set, frozenset)) else set(str(value).split(","))
        return ",".join(sorted(members - {""}))
    if kind in _DATES and isinstance(value, str):
        return None  # 0000-00-00 and its like, which the binlog's reader calls null
    return value if isinstance(value, _PLAIN) else _text(value)


def padded(value: Value, length: int) -> Value:
    """Return a BINARY(length) with its trailing zeros, which the binlog leaves out."""
    return value.ljust(length, b"\0") if isinstance(value, bytes) else value


def _bits(value: object) -> int:
    if isinstance(value, bytes):  # of a SELECT
        return int.from_bytes(value, "big")
    return int(str(value), 2)  # of the binlog's reader: "00101"


def _text(value: object) -> str:
    if isinstance(value, timedelta):
        return _time(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)


def _time(value: timedelta) -> str:
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    seconds = value.days * 24 * _SECONDS_AN_HOUR + value.seconds
    hours, rest = divmod(seconds, _SECONDS_AN_HOUR)
    text = f"{sign}{hours:02}:{rest // _SECONDS_A_MINUTE:02}:{rest % _SECONDS_A_MINUTE:02}"
    return f"{text}.{value.microseconds:06}" if value.microseconds else text
