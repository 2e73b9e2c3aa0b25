"""What the fence and the tables need of a database, as one kind of object each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from halfbridge.sql.errors import FenceUsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection, Table

# How long a check waits for a lock, milliseconds; whole seconds, for MariaDB counts those. A local
# transaction in flight keeps the check waiting; the daemon asks again, so short waits do no harm.
CHECK_WAIT_MS = 2_000
# What marks a transaction, such as a savepoint of that name: none of SQLAlchemy's or of a user's.
MARK = "halfbridge_fence"
# Has SQLAlchemy keep how many rows an INSERT has written; else psycopg's is gone (-1).
COUNTED = {"preserve_rowcount": True}


def set_isolation(connection: Connection, level: str) -> None:
    """Set the isolation level of a connection that has begun nothing.

    SQLAlchemy lets the driver's own errors through here: of a connection that was lost while it
    was in the pool, for one.

    Raises:
        DBAPIError: the connection is lost.
    """
    errors = connection.dialect.loaded_dbapi.Error
    try:
        connection.execution_options(isolation_level=level)
    except errors as error:
        connection.invalidate(error)
        raise DBAPIError.instance(
            f"SET TRANSACTION ISOLATION LEVEL {level}",
            None,
            error,
            errors,
            connection_invalidated=True,
            dialect=connection.dialect,
        ) from error


class Database(ABC):
    """One kind of database. Methods take a connection of it, and run in its transaction."""

    name: str
    # What a transaction of our own is run at, or None: as the engine has it. It must let a
    # statement see what was committed before the statement began.
    own_isolation: str | None = None

    @abstractmethod
    def check_commit(self, connection: Connection) -> None:
        """Refuse a connection whose commit is not what ends its work, or may be forgotten.

        Raises:
            FenceUsageError: each statement commits by itself; give another engine or option.
            NotDurableError: a crash forgets commits; an operator changes the setting.
        """

    def begin(self, connection: Connection) -> None:  # noqa: B027  (most need nothing)
        """Begin what SQLAlchemy has begun in name only, where the driver needs telling."""

    def make_durable(self, connection: Connection) -> None:  # noqa: B027
        """Make the commit of the open transaction durable, where that is set by transaction."""

    @abstractmethod
    def mark(self, connection: Connection) -> str:
        """Mark the database transaction that is open now, and make its commit durable."""

    @abstractmethod
    def is_marked(self, connection: Connection, mark: str) -> bool:
        """Tell, once, whether the transaction open now is the one that was marked.

        Raises:
            DBAPIError: the transaction cannot commit any more.
        """

    @abstractmethod
    @contextmanager
    def short_waits(self, connection: Connection) -> Iterator[None]:
        """Wait for locks at most CHECK_WAIT_MS inside; the connection is as before afterwards."""

    def is_rollback(self, error: BaseException) -> bool:
        """Tell whether an error of COMMIT says for certain that nothing was committed."""
        if not isinstance(error, DBAPIError) or error.connection_invalidated:
            return False
        return self._is_rollback(error.orig)

    @abstractmethod
    def _is_rollback(self, error: Any) -> bool: ...

    @abstractmethod
    def is_held_up(self, error: DBAPIError) -> bool:
        """Tell whether others were in the way: a lock, a deadlock, a serialization failure."""

    @abstractmethod
    def others(self, connection: Connection, table: Table) -> str:
        """Return who may have locks on a table for long, as far as this user may see that."""

    @abstractmethod
    def insert_if_absent(
        self, connection: Connection, table: Table, values: Mapping[str, Any]
    ) -> bool:
        """Insert a row unless its key is there; tell whether it was inserted.

        Waits for a transaction in flight that inserted the key. At an isolation level above READ
        COMMITTED it may raise a serialization failure in place of False.
        """

    def engine_of(self, connection: Connection, table: Table) -> str:
        """Return the storage engine of a table that has no transactions; empty: it has them."""
        del connection, table
        return ""

    def forgets(self, connection: Connection) -> str:
        """Return how the server may forget commits in a crash of the machine; empty: it cannot."""
        del connection
        return ""


def autocommit_error() -> FenceUsageError:
    """Return what a connection in AUTOCOMMIT is refused with."""
    return FenceUsageError(
        "the connection is in AUTOCOMMIT: work and fence row would not commit together; use an"
        " engine, or execution_options(isolation_level=...), with transactions"
    )


def roll_back_below(connection: Connection) -> None:
    """Roll back below SQLAlchemy.

    SQLAlchemy takes a transaction whose COMMIT raised for ended: neither `rollback()` nor the
    pool would end it, and the next user of the driver's connection would commit it.
    """
    try:
        driver_of(connection).rollback()
    except Exception:  # noqa: BLE001  (the connection is lost, and its transaction with it)
        connection.invalidate()


def driver_of(connection: Connection) -> Any:
    """Return the driver's own connection."""
    return connection.connection.dbapi_connection
