"""Decides whether a statement in MariaDB's log may have inserted into a table.

A session with binlog_format STATEMENT or MIXED logs the text of its statements instead of rows.
Only an administrator can choose these formats while the server uses ROW. The text does not show
what triggers, views and functions did. A statement is accepted only if it cannot have reached the
table through the triggers, views and functions that exist when the log is read.

One case is not detected: a trigger, a view or a function led to the table when the statement ran,
and was dropped or changed before a lagging reader came to the statement.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from halfbridge.sql.log_subscription.mariadb_server import query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymysqlreplication.event import ExecuteLoadQueryEvent

# Queries for names and their definitions; no definition: this user may not see it. Objects in the
# schema sys do not write to users' tables.
_BODIES = (
    (
        "SELECT event_object_table, action_statement FROM information_schema.triggers "
        "WHERE event_object_schema <> 'sys'"
    ),
    "SELECT table_name, view_definition FROM information_schema.views WHERE table_schema <> 'sys'",
    (
        "SELECT routine_name, routine_definition FROM information_schema.routines "
        "WHERE routine_schema <> 'sys'"
    ),
)
# Without both rights the server hides the triggers and functions of a schema. Rights through a role
# do not count, because a session may not have enabled the role.
_NEEDED = ("TRIGGER", "EXECUTE")
# The schema of a grant is a pattern.
_GRANTED = (
    "SELECT COUNT(*) FROM (SELECT grantee, '%%' AS pattern, privilege_type "
    "FROM information_schema.user_privileges UNION SELECT grantee, table_schema, privilege_type "
    "FROM information_schema.schema_privileges) AS held WHERE privilege_type = %s "
    "AND REPLACE(grantee, '\\'', '') = CURRENT_USER() AND %s LIKE pattern"
)
# Statements that insert nothing, whatever triggers and functions exist.
_HARMLESS = re.compile(
    r"\s*((DROP|TRUNCATE|ALTER)\s|CREATE\s(?!.*(?<![\w$])SELECT(?![\w$])))",
    re.IGNORECASE | re.DOTALL,
)
# Statements that may fill a new table. They fire no trigger and only read other tables, but they
# may call functions.
MAKES_TABLE = re.compile(r"\s*CREATE\s+(OR\s+REPLACE\s+)?(TEMPORARY\s+)?TABLE\s", re.IGNORECASE)
# Bytes before the text in an event of LOAD DATA (EXECUTE_LOAD_QUERY_EVENT): two headers.
_LOAD_HEADERS_BYTES = 26
_QUALIFIER = re.compile(r"(?<![\w$])(?:([^\W\d][\w$]*)|[`\"]([^`\"]+)[`\"])\s*\.")
_LITERAL = re.compile("'[^']*'")


class Statements:
    """Judges statements for one table. Not thread-safe.

    Args:
        connection: PyMySQL's, for questions to the server.
        table: The table.
    """

    def __init__(self, connection: Any, table: str) -> None:
        self._connection = connection
        self._table = table
        # Names that lead to the table, and the routines among them.
        self._leading: tuple[re.Pattern[str], re.Pattern[str]] | None = None

    def forget(self) -> None:
        """Query the server again for the next statement, because a definition may have changed."""
        self._leading = None

    def suspicion(self, schema: str, text: str) -> str:
        """Return why a statement may have inserted into the table; empty: it cannot have.

        Args:
            schema: The session's default schema, or empty.
            text: Text of the statement.
        """
        if _HARMLESS.match(text):
            return ""
        is_read = MAKES_TABLE.match(text) is not None
        if not is_read and _named(self._table).search(text):
            return "it names the table"
        if self._leading is None:
            names, routines = self._names()
            self._leading = _named(*names), _named(*routines)
        found = self._leading[is_read].search(text)
        if found is not None:
            return f"{found[0]} leads to the table, or this user may not see whether"
        hidden = [each for each in _schemas(schema, text) if not self._is_shown(each)]
        if hidden:
            return (
                f"this user may not see triggers and functions of {', '.join(hidden)}: grant "
                f"{' and '.join(_NEEDED)} to the user itself, not by a role"
            )
        return ""

    def _names(self) -> tuple[set[str], set[str]]:
        """Return the names through which a statement may reach the table, in any number of steps.

        The second set contains the names of routines in the first set.
        """
        found_in = [query(self._connection, each) for each in _BODIES]
        bodies = [row for each in found_in for row in each]
        names = {self._table}
        while True:
            pattern = _named(*names)
            found = {name for name, body in bodies if not body or pattern.search(body)}
            if found <= names:
                return names, names & {name for name, _ in found_in[-1]}
            names |= found

    def _is_shown(self, schema: str) -> bool:
        return all(query(self._connection, _GRANTED, (right, schema))[0][0] for right in _NEEDED)


def fills(schema: str, table: str) -> re.Pattern[str]:
    """Return a pattern for a CREATE TABLE ... SELECT that creates and fills the table."""
    schema, table = re.escape(schema), re.escape(table)
    return re.compile(
        r"\s*CREATE\s+(OR\s+REPLACE\s+)?TABLE\s+(IF\s+NOT\s+EXISTS\s+)?"
        rf"(`?{schema}`?\s*\.\s*)?`?{table}(?![\w$]).*(?<![\w$])SELECT(?![\w$])",
        re.IGNORECASE | re.DOTALL,
    )


def load_text(event: ExecuteLoadQueryEvent) -> tuple[str, str]:
    """Return the session's schema and the text of a LOAD DATA, which the reader does not decode."""
    left = event.packet.read(event.event_size - _LOAD_HEADERS_BYTES)[event.status_vars_length :]
    schema, text = left[: event.schema_length], left[event.schema_length + 1 :]
    return schema.decode("utf-8", "replace"), text.decode("utf-8", "replace")


def _schemas(schema: str, text: str) -> list[str]:
    """Return the schemas that a statement may use.

    A name before a dot may be the alias of a table. It counts as a schema anyway, because the
    server hides the names of schemas in which the user has no rights. Literals are ignored, unless
    the text has a backslash: then the end of a literal is uncertain.
    """
    bare = text if "\\" in text else _LITERAL.sub("''", text)
    named = {plain or quoted for plain, quoted in _QUALIFIER.findall(bare)}
    return sorted((named | {schema}) - {""})


def _named(*names: str) -> re.Pattern[str]:
    """Return a pattern for whole names: `orders` does not match in `orders_before`."""
    if not names:
        return re.compile(r"(?!)")  # finds nothing
    return re.compile(rf"(?<![\w$])({_either(names)})(?![\w$])", re.IGNORECASE)


def _either(names: Iterable[str]) -> str:
    return "|".join(re.escape(each) for each in sorted(names))
