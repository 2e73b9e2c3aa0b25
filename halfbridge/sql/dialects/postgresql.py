"""PostgreSQL.

Sources: PostgreSQL 15 documentation (runtime-config-client, functions-info, errcodes).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from halfbridge.sql.dialects.base import (
    CHECK_WAIT_MS,
    COUNTED,
    MARK,
    Database,
    autocommit_error,
    driver_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection, Table
    from sqlalchemy.exc import DBAPIError


_SETTING = "halfbridge.mark"


class PostgreSQL(Database):
    """PostgreSQL 13 or newer."""

    name = "postgresql"
    own_isolation = "READ COMMITTED"
    # off would forget the last commits of a server that is killed, their messages delivered.
    _DURABLE = (
        "CASE WHEN current_setting('synchronous_commit') = 'off'"
        " THEN set_config('synchronous_commit', 'on', true) END"
    )
    _MAKE_DURABLE = text(f"SELECT {_DURABLE}")
    _SET_MARK = text(f"SELECT set_config('{_SETTING}', '{MARK}', true), {_DURABLE}")
    _READ_MARK = text(f"SELECT current_setting('{_SETTING}', true), {_DURABLE}")

    _OLDEST = text(
        "SELECT pid, xact_start FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE relation = CAST(:name AS regclass) AND granted AND pid <> pg_backend_pid()"
        " ORDER BY xact_start LIMIT 1"
    )

    def check_commit(self, connection: Connection) -> None:
        """Refuse AUTOCOMMIT; `mark` sees to durability."""
        if driver_of(connection).autocommit:
            raise autocommit_error()

    def make_durable(self, connection: Connection) -> None:
        """Turn synchronous_commit on for the open transaction."""
        connection.execute(self._MAKE_DURABLE)

    def mark(self, connection: Connection) -> str:
        """Mark the transaction by a setting of its own.

        It ends with the transaction, and with a rollback to a savepoint from before the mark. A
        savepoint as mark would cost a transaction id of its own.
        """
        return str(connection.execute(self._SET_MARK).one()[0])

    def is_marked(self, connection: Connection, mark: str) -> bool:
        """Tell whether the setting is there; raises in a transaction that has failed."""
        return bool(connection.execute(self._READ_MARK).one()[0] == mark)

    @contextmanager
    def short_waits(self, connection: Connection) -> Iterator[None]:
        """Wait for locks at most CHECK_WAIT_MS; ends with the transaction."""
        connection.execute(text(f"SET LOCAL lock_timeout = {CHECK_WAIT_MS}"))
        yield

    def _is_rollback(self, error: Any) -> bool:
        state = str(getattr(error, "sqlstate", None) or "")
        # A constraint that was deferred; a rollback that the server tells, 40003 being "unknown".
        return state[:2] in ("23", "40") and state != "40003"

    def is_held_up(self, error: DBAPIError) -> bool:
        """Tell whether others were in the way."""
        state = str(getattr(error.orig, "sqlstate", None) or "")
        return state in ("55P03", "40P01", "40001")  # lock_timeout, deadlock, serialization

    def others(self, connection: Connection, table: Table) -> str:
        """Return the oldest of the transactions that have used the table and are still open."""
        name = connection.dialect.identifier_preparer.format_table(table)
        found = connection.execute(self._OLDEST, {"name": name}).one_or_none()
        if found is None:
            return "no other transaction has used the table by now"
        return (
            f"the oldest open transaction that has used the table is of process {found[0]}, since"
            f" {found[1]}"
        )

    def insert_if_absent(
        self, connection: Connection, table: Table, values: Mapping[str, Any]
    ) -> bool:
        """Insert a row unless its key is there; tell whether it was inserted."""
        statement = postgresql.insert(table).values(**values).on_conflict_do_nothing()
        return connection.execute(statement, execution_options=COUNTED).rowcount == 1
