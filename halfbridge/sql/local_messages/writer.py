"""LocalMessages: the local message table as a service writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from halfbridge.sql.dialects import database_of
from halfbridge.sql.errors import FenceUsageError, TableError
from halfbridge.sql.fence_guard import guard_of
from halfbridge.sql.local_messages.errors import RowNotFoundError, RowStateError
from halfbridge.sql.local_messages.rows import columns_of
from halfbridge.sql.local_messages.states import RowEvent, RowState, state_after, states_before
from halfbridge.sql.local_messages.tables import (
    BUCKETS,
    DEFAULT_NAME,
    DEFAULT_RELAY_NAME,
    make_tables,
)
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine, MetaData

    from halfbridge.bridge.message import Message

_CHANNEL_CHARS_MAX = 63  # PostgreSQL's limit of a name


class LocalMessages:
    """The local message table of one database, as a service writes it. Thread-safe.

    Three ways to write a message, each tied to a local transaction; a relay
    (`halfbridge relay run`) sends what is to be sent, each row exactly once:

    1. `pre_send` before the local transaction, `confirm` in it. What is not confirmed in time is
       withdrawn, and can be confirmed no more.
    2. `add` in the local transaction.
    3. `prepare`, for work in another store: the relay asks a callback of yours later.

    Rows with one key are relayed in the order of insertion, where the transactions that inserted
    them did not overlap. Topics are not looked up here: the relay meets a wrong one, and retries.

    Args:
        engine: SQLAlchemy's, of SQLite (a file), PostgreSQL or MariaDB.
        name: Name of the table.
        relay_name: What the names of the relays' own tables begin with.
        schema: Schema of all of them; None: the connection's own.

    Raises:
        ConfigError: the engine is of another kind of database; give another one.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str = DEFAULT_NAME,
        relay_name: str = DEFAULT_RELAY_NAME,
        schema: str | None = None,
    ) -> None:
        self.engine = engine
        self.database = database_of(engine.dialect.name)
        self.tables = make_tables(name=name, relay_name=relay_name, schema=schema)
        self._notifies = self.database.name == "postgresql"
        full_name = self.tables.messages.fullname
        # Relays listen here, on PostgreSQL.
        self.channel = full_name[-_CHANNEL_CHARS_MAX:]

    @property
    def metadata(self) -> MetaData:
        """The tables as Alembic wants them, for `target_metadata`; call `create` afterwards."""
        return self.tables.metadata

    def create(self) -> None:
        """Make the tables where they are missing, and the buckets' rows. Idempotent.

        Raises:
            TableError: a table is there without InnoDB; an operator converts it.
            SQLAlchemyError: the database refuses; an operator looks at rights and settings.
        """
        try:
            self.metadata.create_all(self.engine)
        except DBAPIError:
            for table in self.metadata.tables.values():
                if not inspect(self.engine).has_table(table.name, schema=table.schema):
                    raise  # else another process was faster
        buckets = self.tables.buckets
        with self.engine.begin() as connection:
            for table in self.metadata.tables.values():
                engine = self.database.engine_of(connection, table)
                if engine:
                    raise TableError(
                        f"{table.fullname} is a table of {engine}, which has no transactions:"
                        f" ALTER TABLE {table.fullname} ENGINE=InnoDB"
                    )
            there = set(connection.execute(select(buckets.c.bucket)).scalars())
            for bucket in range(BUCKETS):
                if bucket not in there:
                    row = {"bucket": bucket, "owner": "", "epoch": 0, "expires_at": 0}
                    self.database.insert_if_absent(connection, buckets, row)

    def add(self, connection: Connection | Session, message: Message) -> int:
        """Write a message in the open local transaction, to be relayed once that has committed.

        Returns:
            The row's id.

        Raises:
            FenceUsageError: the connection is in AUTOCOMMIT; the caller gives another one.
            SQLAlchemyError: the database refuses; roll back.
        """
        return self.add_all(connection, [message])[0]

    def add_all(self, connection: Connection | Session, messages: Sequence[Message]) -> list[int]:
        """Write several messages, as `add`; they are relayed in this order where keys are equal.

        Returns:
            The rows' ids, in the order of `messages`.
        """
        return self._insert(self._connection(connection), messages, RowState.LOCAL_COMMIT)

    def pre_send(self, message: Message) -> int:
        """Write a message ahead of its local transaction, in a database transaction of its own.

        Later rows with its key wait for it. Nothing is relayed before `confirm`; what is not
        confirmed within the relay's unknown_ms_max is withdrawn.

        Returns:
            The row's id, for `confirm`.

        Raises:
            SQLAlchemyError: the database refuses; do not begin the local transaction.
        """
        with self.engine.begin() as connection:
            return self._insert(connection, [message], RowState.UNKNOWN)[0]

    def confirm(self, connection: Connection | Session, row_id: int) -> None:
        """Confirm a `pre_send` in the open local transaction; relayed once that has committed.

        Raises:
            RowStateError: it was withdrawn, or confirmed before. The local transaction cannot
                commit any more (COMMIT is refused); begin anew.
            RowNotFoundError: no such row; COMMIT is refused too.
            FenceUsageError: the connection is in AUTOCOMMIT; the caller gives another one.
        """
        connection = self._connection(connection)
        try:
            self._move(connection, row_id, RowEvent.CONFIRM)
        except (RowStateError, RowNotFoundError) as error:
            guard = guard_of(connection, self.database)
            guard.arm("")
            guard.refuse(error)
            raise

    def withdraw(self, row_id: int) -> None:
        """Withdraw a `pre_send` whose local transaction will not commit, without waiting.

        Raises:
            RowStateError: it was confirmed; nothing changed.
            RowNotFoundError: no such row.
        """
        with self.engine.begin() as connection:
            self._move(connection, row_id, RowEvent.WITHDRAW)

    def prepare(self, message: Message) -> int:
        """Write a message whose fate a callback of the relay's settles later.

        In a database transaction of its own, before the work begins. Later rows with its key
        wait for it. The callback is asked once the row is older than the relay's
        prepared_ms_min; `settle` is quicker.

        Returns:
            The row's id.

        Raises:
            SQLAlchemyError: the database refuses; do not begin the work.
        """
        with self.engine.begin() as connection:
            return self._insert(connection, [message], RowState.PREPARED)[0]

    def settle(self, row_id: int, *, success: bool) -> None:
        """Settle a `prepare`: relay it, or never.

        Raises:
            RowStateError: it was settled before; nothing changed.
            RowNotFoundError: no such row.
        """
        event = RowEvent.SETTLE_SUCCESS if success else RowEvent.SETTLE_ROLLBACK
        with self.engine.begin() as connection:
            self._move(connection, row_id, event)

    def _insert(
        self, connection: Connection, messages: Sequence[Message], state: RowState
    ) -> list[int]:
        if not messages:
            return []
        table = self.tables.messages
        statement = insert(table).values(state=state.value, created_at=NowMs(), updated_at=NowMs())
        if self._notifies:
            # Sent when the local transaction commits, with no round trip of its own.
            told = func.pg_notify(self.channel, "")
            statement = statement.returning(table.c.id, told, sort_by_parameter_order=True)
        else:
            statement = statement.returning(table.c.id, sort_by_parameter_order=True)
        rows = [columns_of(each) for each in messages]
        return [int(row[0]) for row in connection.execute(statement, rows)]

    def _move(self, connection: Connection, row_id: int, event: RowEvent) -> None:
        """Take one row through `event`, in the open transaction.

        Raises:
            RowStateError, RowNotFoundError: it is not where it must be.
        """
        table = self.tables.messages
        before = [state.value for state in states_before(event)]
        statement: Any = (
            update(table)
            .where(table.c.id == row_id, table.c.state.in_(before))
            .values(
                state=state_after(event).value,
                updated_at=NowMs(),
                next_attempt_at=None,
                retries=0,
                cause=None,
            )
        )
        if self._notifies:
            statement = statement.returning(func.pg_notify(self.channel, ""))
            moved = len(connection.execute(statement).all())
        else:
            moved = connection.execute(statement).rowcount
        if moved == 1:
            return
        found = connection.execute(select(table.c.state).where(table.c.id == row_id)).scalar()
        if found is None:
            raise RowNotFoundError(row_id, table.fullname)
        raise RowStateError(row_id, RowState(found), event)

    def _connection(self, connection: Connection | Session) -> Connection:
        if isinstance(connection, Session):
            clause = {"clause": self.tables.messages}
            connection = connection.connection(bind_arguments=clause)
        driver: Any = connection.connection.dbapi_connection
        if _is_autocommit(self.database.name, driver):
            raise FenceUsageError(
                "the connection is in AUTOCOMMIT: work and message would not commit together"
            )
        return connection


def _is_autocommit(database: str, driver: Any) -> bool:
    """Tell whether each statement commits by itself, without asking the server."""
    if database == "postgresql":
        return bool(driver.autocommit)
    if database == "sqlite":
        return driver.isolation_level is None and not driver.in_transaction
    autocommit = getattr(driver, "get_autocommit", None)
    return bool(autocommit()) if autocommit is not None else False
