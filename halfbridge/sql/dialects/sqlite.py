"""SQLite, by Python's sqlite3, or by aiosqlite around it.

Sources: SQLite documentation (lang_transaction, lang_savepoint, pragma), Python's sqlite3
(transaction control).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import sqlite

from halfbridge.sql.dialects.base import (
    CHECK_WAIT_MS,
    Database,
    driver_of,
)
from halfbridge.sql.errors import NotDurableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Table
    from sqlalchemy.exc import DBAPIError


class SQLite(Database):
    """SQLite 3.25 or newer in a file, by Python's sqlite3."""

    name = "sqlite"
    locks_rows = False
    _insert = staticmethod(sqlite.insert)
    _OFF, _NORMAL = 0, 1
    _BUSY = "SQLITE_BUSY"

    def check_commit(self, connection: Connection) -> None:
        """Refuse AUTOCOMMIT, and PRAGMA synchronous = OFF.

        Raises as `Database.check_commit`; for NotDurableError the user changes the PRAGMA.
        """
        super().check_commit(connection)
        if connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == self._OFF:
            raise NotDurableError(
                "PRAGMA synchronous is OFF on this connection: a crash may lose commits or the"
                " whole file; leave it at FULL",
                setting="synchronous",
            )

    def is_autocommit(self, driver: Any) -> bool:
        """Return whether each statement commits by itself, according to the driver.

        With isolation_level None the driver never sends BEGIN. Then a listener of the engine sends
        it, as SQLAlchemy's documentation says, and a transaction is open by now.
        """
        return driver.isolation_level is None and not _is_in_transaction(driver)

    def begin(self, connection: Connection) -> None:
        """Begin a write transaction now; the driver would wait for the first INSERT or UPDATE."""
        if not _is_in_transaction(driver_of(connection)):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _is_untagged(self, error: Any) -> bool:
        return "no such savepoint" in str(error)

    @contextmanager
    def short_waits(self, connection: Connection) -> Iterator[None]:
        """Wait at most CHECK_WAIT_MS for the lock on the file."""
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {CHECK_WAIT_MS}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def _is_rollback(self, error: Any) -> bool:
        # Busy: nothing was written, and the rollback that follows ends the transaction.
        # Constraint failed: a deferred foreign key.
        return self._is_busy(error) or "constraint failed" in str(error)

    def _is_busy(self, error: Any) -> bool:
        name = getattr(error, "sqlite_errorname", None) or ""  # Python 3.11
        return name.startswith(self._BUSY) or "database is locked" in str(error)

    def is_held_up(self, error: DBAPIError) -> bool:
        """Return whether another connection writes to the file."""
        return self._is_busy(error.orig)

    def others(self, connection: Connection, table: Table) -> str:
        """Return the name of the file: SQLite does not know which connection holds the lock."""
        del table
        return f"another connection writes to {connection.engine.url.database}"

    def lossy_settings(self, connection: Connection) -> str:
        """Return the pragma with which a crash of the machine may lose commits."""
        level = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
        mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()).lower()
        if level == self._OFF:
            return "PRAGMA synchronous is OFF"
        return "PRAGMA synchronous is NORMAL with WAL" if (level, mode) == (1, "wal") else ""


def _is_in_transaction(driver: Any) -> bool:
    # SQLAlchemy wraps aiosqlite's connection, and not all of its attributes.
    return bool(getattr(driver, "driver_connection", driver).in_transaction)
