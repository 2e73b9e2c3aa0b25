"""PostgreSQL.

Sources: PostgreSQL 15 documentation (runtime-config-client, functions-info, errcodes).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import literal_column, text
from sqlalchemy.dialects import postgresql

from halfbridge.sql.dialects.base import (
    CHECK_WAIT_MS,
    TAG,
    Database,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Table
    from sqlalchemy.exc import DBAPIError


_SETTING = "halfbridge.mark"


class PostgreSQL(Database):
    """PostgreSQL 13 or newer."""

    name = "postgresql"
    _insert = staticmethod(postgresql.insert)
    own_isolation = "READ COMMITTED"
    notifies = has_arrays = casts_nulls = True
    # With 'off', a server that is killed loses its last commits, but their messages are delivered.
    _DURABLE = (
        "CASE WHEN current_setting('synchronous_commit') = 'off'"
        " THEN set_config('synchronous_commit', 'on', true) END"
    )
    _MAKE_DURABLE = text(f"SELECT {_DURABLE}")
    # A transaction-local setting ends with its transaction; a rollback to an earlier savepoint
    # removes it, too. A savepoint as the tag would cost another transaction id.
    returns_tag = (
        literal_column(f"set_config('{_SETTING}', '{TAG}', true)"),
        literal_column(_DURABLE),
    )
    _READ_TAG = text(f"SELECT current_setting('{_SETTING}', true), {_DURABLE}")

    _OLDEST = text(
        "SELECT pid, xact_start FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE relation = CAST(:name AS regclass) AND granted AND pid <> pg_backend_pid()"
        " ORDER BY xact_start LIMIT 1"
    )

    def is_autocommit(self, driver: Any) -> bool:
        """Return whether each statement commits by itself, according to the driver."""
        return bool(driver.autocommit)

    def make_durable(self, connection: Connection) -> None:
        """Turn synchronous_commit on for the open transaction."""
        connection.execute(self._MAKE_DURABLE)

    def is_tagged(self, connection: Connection, tag: str) -> bool:
        """Return whether the setting exists; raises as `Database.is_tagged`."""
        return bool(connection.execute(self._READ_TAG).one()[0] == tag)

    @contextmanager
    def short_waits(self, connection: Connection) -> Iterator[None]:
        """Wait at most CHECK_WAIT_MS for a lock. The setting ends with the transaction."""
        connection.execute(text(f"SET LOCAL lock_timeout = {CHECK_WAIT_MS}"))
        yield

    def _is_rollback(self, error: Any) -> bool:
        state = str(getattr(error, "sqlstate", None) or "")
        # 23: a deferred constraint failed. 40: rolled back, except 40003, "completion unknown".
        return state[:2] in ("23", "40") and state != "40003"

    def is_held_up(self, error: DBAPIError) -> bool:
        """Return whether the error is a lock time-out, a deadlock or a serialization failure."""
        state = str(getattr(error.orig, "sqlstate", None) or "")
        return state in ("55P03", "40P01", "40001")  # lock_timeout, deadlock, serialization

    def others(self, connection: Connection, table: Table) -> str:
        """Return the oldest open transaction that has used the table."""
        name = connection.dialect.identifier_preparer.format_table(table)
        found = connection.execute(self._OLDEST, {"name": name}).one_or_none()
        if found is None:
            return "no other open transaction has used the table"
        return (
            f"the oldest open transaction that has used the table is of process {found[0]}, since"
            f" {found[1]}"
        )
