"""Columns of MySQL and MariaDB whose values Debezium cannot read, or reads wrong from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import column as column_named
from sqlalchemy import exists, select, text
from sqlalchemy import table as table_named

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Each character of these is the same from the log as from the table. Debezium reads the log by
# Java's character sets, which differ from the server's, and takes some for latin1.
CHARSETS = frozenset(
    {
        *("ascii", "cp850", "cp852", "cp1250", "cp1251", "cp1256", "cp1257", "gb2312", "koi8r"),
        *("latin1", "latin2", "latin5", "latin7", "macce", "macroman", "tis620"),
        *("ucs2", "utf8", "utf8mb3", "utf8mb4", "utf16", "utf16le", "utf32"),
    }
)
# Servers describe a table in utf8mb3, where a character beyond U+FFFF of a member becomes '?'.
_BEYOND_U_FFFF = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_YEARS = ("year", "year(4)")
_YEAR_0 = (
    "has rows of the year 0, which stop MariaDB's snapshot and come as 2000 in MySQL's: UPDATE them"
    " to NULL, or to another year"
)
_COLUMNS = text("""
SELECT column_name, column_type, character_set_name, column_default, is_nullable
FROM information_schema.columns WHERE table_schema = :schema AND table_name = :name
ORDER BY ordinal_position
""")


def refusal(connection: Connection, schema: str, table: str) -> str:
    """Return which column's values would be falsified, and what to do; empty: none."""
    for column, *about in connection.execute(_COLUMNS, {"schema": schema, "name": table}):
        flaw = _flaw(*(str(each or "") for each in about))
        if not flaw and about[0] in _YEARS and _has_year_0(connection, schema, table, column):
            flaw = _YEAR_0
        if flaw:
            return f"{schema}.{table}: column {column} {flaw}"
    return ""


def _has_year_0(connection: Connection, schema: str, table: str, name: str) -> bool:
    rows = exists().select_from(table_named(table, schema=schema)).where(column_named(name) == 0)
    return bool(connection.scalar(select(rows)))


def _flaw(kind: str, charset: str, default: str, nullable: str) -> str:
    if kind.endswith(" COMPRESSED*/"):
        return "is COMPRESSED, which stops Debezium at its first row: MODIFY it without COMPRESSED"
    if charset and charset not in CHARSETS:
        return (
            f"has the character set {charset}, of which Debezium reads some characters as others:"
            " MODIFY it with CHARACTER SET utf8mb4"
        )
    if kind.startswith(("enum(", "set(")) and "?" in kind and charset in _BEYOND_U_FFFF:
        return (
            "has a member with '?', as which Debezium reads characters beyond U+FFFF: MODIFY it to"
            " VARCHAR, or rename the member"
        )
    if nullable == "NO" and default.strip("'").startswith("0000-00-00"):
        return (
            "has a zero date as its default, which Debezium reads as the first day of 1970:"
            " MODIFY it to NULL without this default, so that zero dates come as null"
        )
    return ""
