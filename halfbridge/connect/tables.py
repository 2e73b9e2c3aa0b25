"""What a Debezium connector needs to know of tables, asked of the database itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import column as column_named
from sqlalchemy import exists, select, text
from sqlalchemy import table as table_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection

_NAMES_MAX = 5  # in an error, which stays a line
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


class DatabaseTableError(ValueError):
    """A table, or the server, cannot be read by Debezium; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the database writes its name; a database of MySQL or MariaDB is a `schema`."""

    schema: str
    name: str
    has_children: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class _Found:
    table: Table
    kind: str
    parent: str = ""
    children: tuple[str, ...] = ()


# relkind: r table, p partitioned, v view, m materialised view, f foreign; relpersistence: p, u, t.
_POSTGRESQL = text("""
SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relispartition,
  (SELECT min(i.inhparent::regclass::text) FROM pg_inherits i WHERE i.inhrelid = c.oid),
  ARRAY(SELECT i.inhrelid::regclass::text FROM pg_inherits i WHERE i.inhparent = c.oid ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE lower(c.relname) = lower(:name) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid)
      ELSE lower(n.nspname) = lower(:schema) END
""")
_INFORMATION_SCHEMA = text("""
SELECT table_schema, table_name, table_type FROM information_schema.tables
WHERE lower(table_name) = lower(:name)
  AND lower(table_schema) = lower(COALESCE(:schema, DATABASE()))
""")


def find_tables(connection: Connection, names: Iterable[str]) -> tuple[Table, ...]:
    """Return the tables that `names` mean, having checked that Debezium reads all their rows.

    Names are `TABLE` or `SCHEMA.TABLE`. Upper and lower case count only where the database has
    several tables whose names differ in nothing else.

    Raises:
        DatabaseTableError: no such table, a kind of table whose rows would be lost or come twice, a
            column whose values would be falsified, or a server whose log does not have the rows;
            the user must act.
    """
    if connection.dialect.name == "postgresql":
        _require(connection, "SHOW wal_level", {"logical"}, "ALTER SYSTEM SET wal_level = logical")
        find: Callable[[Connection, str], _Found] = _postgresql
    elif connection.dialect.name in {"mysql", "mariadb"}:
        for variable, value in (
            ("log_bin", "1"),
            ("binlog_format", "ROW"),
            ("binlog_row_image", "FULL"),
        ):
            remedy = f"set {variable.replace('_', '-')}={'ON' if value == '1' else value}"
            _require(connection, f"SELECT @@GLOBAL.{variable}", {value}, remedy)
        find = _mysql
    else:
        raise DatabaseTableError(
            f"{connection.dialect.name} has no log that Debezium reads here: give the URL of"
            " PostgreSQL, MySQL or MariaDB"
        )
    found = [find(connection, name) for name in dict.fromkeys(names)]
    named = {str(each.table) for each in found} | {each.table.name for each in found}
    for each in found:
        missing = [child for child in each.children if child not in named]
        if missing:
            raise DatabaseTableError(
                f"{each.table} has tables that inherit from it, and Debezium writes their rows"
                f" under their own names: give --table for each of them too ({_some(missing)}),"
                " and again for each one that is made later"
            )
    return tuple(dict.fromkeys(each.table for each in found))


def _require(connection: Connection, query: str, allowed: set[str], remedy: str) -> None:
    value = str(connection.execute(text(query)).scalar())
    if value not in allowed:
        raise DatabaseTableError(
            f"{query} says {value}, so the log does not have what Debezium reads: {remedy}, and"
            " restart the database server"
        )


def _only(rows: Iterable[_Found], asked: str) -> _Found:
    """Return the one that is meant: the same letters, else the only one of other case."""
    found = list(rows)
    exact = [each for each in found if asked in {each.table.name, str(each.table)}]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise DatabaseTableError(
            f"there is no table {asked} in this database (or this user may not see it): correct"
            " --table; SCHEMA.TABLE names one of another schema"
        )
    raise DatabaseTableError(
        f"{asked} means several tables: give one of {_some(map(str, _tables(found)))}"
    )


def _tables(found: Iterable[_Found]) -> Iterator[Table]:
    return (each.table for each in found)


def _some(names: Iterable[str]) -> str:
    all_names = list(names)
    more = len(all_names) - _NAMES_MAX
    return ", ".join(all_names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _asked(name: str) -> dict[str, str | None]:
    schema, _, table = name.rpartition(".")
    if not table or "," in name:
        raise DatabaseTableError(f"--table {name!r} is no TABLE or SCHEMA.TABLE")
    return {"schema": schema or None, "name": table}


def _postgresql(connection: Connection, name: str) -> _Found:
    rows = []
    persistence = {}
    partitions = set()
    for schema, table, kind, kept, partition, parent, children in connection.execute(
        _POSTGRESQL, _asked(name)
    ):
        inherited = tuple(children) if kind == "r" else ()
        each = Table(schema, table, has_children=bool(inherited))
        persistence[each] = kept
        if partition:
            partitions.add(each)
        rows.append(_Found(each, kind, parent or "", inherited))
    found = _only(rows, name)
    if found.kind not in {"r", "p"}:
        raise DatabaseTableError(
            f"{found.table} is a view or a foreign table: give the tables behind it"
        )
    if persistence[found.table] != "p":
        raise DatabaseTableError(
            f"{found.table} is unlogged or temporary, so its rows are not in the log: ALTER TABLE"
            f" {found.table} SET LOGGED, or give another table"
        )
    if found.table in partitions:
        raise DatabaseTableError(
            f"{found.table} is a partition, whose rows are written under the name of the"
            f" partitioned table: give --table {found.parent}"
        )
    return found


def _mysql(connection: Connection, name: str) -> _Found:
    rows = connection.execute(_INFORMATION_SCHEMA, _asked(name))
    found = _only((_Found(Table(row[0], row[1]), row[2]) for row in rows), name)
    if found.kind == "SYSTEM VERSIONED":
        raise DatabaseTableError(
            f"{found.table} is system-versioned: its log has an insert for each update, which"
            " cannot be distinguished from a new row. Give a table WITHOUT SYSTEM VERSIONING"
        )
    if found.kind != "BASE TABLE":
        raise DatabaseTableError(
            f"{found.table} is a {found.kind.lower()}, which is not in the log: give the tables"
            " behind it"
        )
    flaw = _refused_column(connection, found.table.schema, found.table.name)
    if flaw:
        raise DatabaseTableError(flaw)
    return found


def _refused_column(connection: Connection, schema: str, table: str) -> str:
    """Return which column Debezium would not read, or read wrong, and what to do; empty: none."""
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
