"""What halfbridge.sql needs of a database."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from halfbridge.sql.errors import FenceUsageError, TableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import ColumnElement, Engine, Table

    from halfbridge.sql.errors import SqlError

_LOG = logging.getLogger("halfbridge.sql")

# How long a check waits for a lock, milliseconds; whole seconds, because MariaDB counts seconds. A
# check waits for a local transaction in flight. The daemon asks again, so a short wait is enough.
CHECK_WAIT_MS = 2_000
# Name of a transaction's tag, such as a savepoint. SQLAlchemy and users do not use this name.
TAG = "halfbridge_fence"
# Makes SQLAlchemy keep the number of rows that an INSERT has written; psycopg's would be -1.
COUNTED = {"preserve_rowcount": True}


@contextmanager
def connected(engine: Engine, isolation: str | None) -> Iterator[Connection]:
    """Yield a connection with an isolation level (None: the engine's); the pool restores the level.

    Losing the connection after the block does not fail it: it has committed, or is rolled back.
    """
    connection = engine.connect()
    try:
        if isolation is not None:
            _set_isolation(connection, isolation)
        yield connection
    finally:
        is_lost = connection.closed or connection.invalidated
        raw = None if is_lost else connection.connection.dbapi_connection
        try:
            connection.close()
        except connection.dialect.loaded_dbapi.Error as error:
            _LOG.info("a connection was lost at its return to the pool: %s", error)
            replace_pool(engine)
        except asyncio.CancelledError:
            # In the statement that restores the isolation level: the pool would keep its place.
            if raw is not None:
                connection.dialect.do_terminate(raw)
            replace_pool(engine)
            raise


def _set_isolation(connection: Connection, level: str) -> None:
    """Set the level, and wrap the driver's errors, which SQLAlchemy does not wrap here."""
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


def replace_pool(engine: Engine) -> None:
    """Replace an engine's pool after an error that SQLAlchemy has not wrapped.

    SQLAlchemy frees no place in the pool after such an error, so 15 errors use up a pool of 15
    places; so do cancellations of an asyncio task there. Connections in use are closed when they
    return.
    """
    engine.dispose()


class Database(ABC):
    """One kind of database. Each method runs in the transaction of the given connection."""

    name: str
    # Isolation level of halfbridge's own transactions; None: the engine's. At this level each
    # statement must see all transactions that were committed before the statement began.
    own_isolation: str | None = None
    # For local messages: LISTEN and NOTIFY; arrays as parameters; whether a NULL in a UNION needs
    # the type of its column; whether single rows can be locked, and not only the whole database.
    notifies: bool = False
    has_arrays: bool = False
    casts_nulls: bool = False
    locks_rows: bool = True
    # What RETURNING of the fence row's INSERT has, if it tags the transaction as `tag` does, which
    # spares each block a statement.
    returns_tag: tuple[ColumnElement[Any], ...] = ()
    _insert: Any  # the dialect's INSERT that has ON CONFLICT, for `insert_if_absent`

    def check_commit(self, connection: Connection) -> None:
        """Refuse AUTOCOMMIT, and a database that may lose commits in a crash.

        FenceUsageError: the caller gives another engine or option. NotDurableError: an operator
        acts.
        """
        if self.is_autocommit(driver_of(connection)):
            raise autocommit_error()

    @abstractmethod
    def is_autocommit(self, driver: Any) -> bool:
        """Return whether each statement commits by itself, according to the driver."""

    def begin(self, connection: Connection) -> None:  # noqa: B027  (most need nothing)
        """Begin the transaction in the database, for drivers that delay BEGIN."""

    def make_durable(self, connection: Connection) -> None:  # noqa: B027  (most need nothing)
        """Make the commit of the open transaction durable, if that is a transaction's setting."""

    def tag(self, connection: Connection) -> str:
        """Tag the open database transaction, make its commit durable, and return the tag.

        The tag is a savepoint, which each commit ends, also an implicit one (of DDL, say).
        """
        connection.exec_driver_sql(f"SAVEPOINT {TAG}")
        return TAG

    def is_tagged(self, connection: Connection, tag: str) -> bool:
        """Return, once, whether the open transaction is the tagged one.

        Raises DBAPIError: it has failed; the caller rolls back.
        """
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {tag}")
        except DBAPIError as error:
            if self._is_untagged(error.orig):
                return False
            raise
        return True

    def _is_untagged(self, error: Any) -> bool:
        """Return whether an error says that the savepoint is gone; for `is_tagged` above."""
        raise NotImplementedError

    @abstractmethod
    @contextmanager
    def short_waits(self, connection: Connection) -> Iterator[None]:
        """Wait at most CHECK_WAIT_MS for a lock within the block; restore the setting after it."""

    def is_rollback(self, error: BaseException) -> bool:
        """Return whether an error of COMMIT proves that nothing was committed."""
        if not isinstance(error, DBAPIError) or error.connection_invalidated:
            return False
        return self._is_rollback(error.orig)

    @abstractmethod
    def _is_rollback(self, error: Any) -> bool: ...

    @abstractmethod
    def is_held_up(self, error: DBAPIError) -> bool:
        """Return whether the error is a lock time-out, a deadlock or a serialization failure."""

    @abstractmethod
    def others(self, connection: Connection, table: Table) -> str:
        """Return which transaction may hold locks on a table, as far as this user may see it."""

    def insert_if_absent(
        self, connection: Connection, table: Table, values: Mapping[str, object]
    ) -> bool:
        """Insert a row unless its key exists; return whether the row was inserted.

        Waits for an open transaction that has inserted the key. Above READ COMMITTED a
        serialization failure is possible instead of False.
        """
        statement = self._insert(table).values(**values).on_conflict_do_nothing()
        return connection.execute(statement, execution_options=COUNTED).rowcount == 1

    def check_table(self, connection: Connection, table: Table) -> None:
        """Refuse a table whose storage engine has no transactions.

        Raises:
            TableError: the operator converts the table, by the statement in the error.
        """
        engine = self.engine_of(connection, table)
        if engine:
            raise TableError(
                f"{table.fullname} is a table of {engine}, which has no transactions:"
                f" ALTER TABLE {table.fullname} ENGINE=InnoDB"
            )

    def engine_of(self, connection: Connection, table: Table) -> str:
        """Return the table's storage engine if that has no transactions; else an empty string."""
        del connection, table
        return ""

    def lossy_settings(self, connection: Connection) -> str:
        """Return settings with which a crash of the machine may lose commits; empty without."""
        del connection
        return ""


@contextmanager
def own_transaction(
    engine: Engine, database: Database, *, writes: bool = True
) -> Iterator[Connection]:
    """Yield a connection for one short transaction, which is rolled back unless committed.

    It has the isolation level `own_isolation`, whatever the engine's, waits at most CHECK_WAIT_MS
    for a lock, and its commit is durable. Raises the errors of `check_commit`.
    """
    with (
        connected(engine, database.own_isolation) as connection,
        database.short_waits(connection),
    ):
        try:
            if writes:
                database.begin(connection)
                database.check_commit(connection)
                database.make_durable(connection)
            yield connection
        finally:
            connection.rollback()  # has no effect after a commit


def autocommit_error() -> FenceUsageError:
    """Return the error for a connection in AUTOCOMMIT."""
    return FenceUsageError(
        "the connection is in AUTOCOMMIT: work and fence row would not commit together; use an"
        " engine, or execution_options(isolation_level=...), with transactions"
    )


def required_connection(given: Any, usage_error: type[SqlError]) -> Connection:
    """Return `given` if it is a Connection; else raise a usage error: the caller gives one."""
    if not isinstance(given, Connection):
        raise usage_error(
            f"{type(given).__name__}: give a SQLAlchemy Connection or Session; an asyncio one goes"
            " to AsyncFence or AsyncInbox, or has them inside of run_sync()"
        )
    return given


def roll_back_below(connection: Connection) -> None:
    """Roll back through the driver's own connection, after an error in COMMIT.

    SQLAlchemy regards the transaction as ended then. Neither `rollback()` nor the pool would end
    it, and the next user of the driver's connection would commit it.
    """
    try:
        driver_of(connection).rollback()
    except Exception:  # noqa: BLE001  (the connection is lost, and its transaction with it)
        connection.invalidate()


def driver_of(connection: Connection) -> Any:
    """Return the driver's own connection."""
    return connection.connection.dbapi_connection
