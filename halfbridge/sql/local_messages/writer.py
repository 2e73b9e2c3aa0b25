"""LocalMessages: the interface by which a service writes to the local message table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select
from sqlalchemy.orm import Session

from halfbridge.sql.dialects import database_of_engine
from halfbridge.sql.dialects.base import driver_of, required_connection
from halfbridge.sql.errors import FenceUsageError
from halfbridge.sql.guards import guard_of
from halfbridge.sql.local_messages.rows import (
    RowEvent,
    RowNotFoundError,
    RowState,
    RowStateError,
    columns_of,
)
from halfbridge.sql.local_messages.tables import (
    BUCKETS,
    DEFAULT_NAME,
    DEFAULT_RELAY_NAME,
    event_update,
    make_tables,
)
from halfbridge.sql.tables import NowMs, create_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine, MetaData

    from halfbridge.bridge.message import Message

_CHANNEL_CHARS_MAX = 63  # PostgreSQL's limit of a name


class LocalMessages:
    """The local message table of one database, for services that write messages. Thread-safe.

    There are three ways to write a message, each tied to a local transaction. A relay
    (`halfbridge relay run`) sends each message exactly once.

    1. `pre_send` before the local transaction, and `confirm` in it. A row that is not confirmed in
       time is withdrawn, and cannot be confirmed any more.
    2. `add` in the local transaction.
    3. `prepare`, for work in another store. The relay asks your callback later.

    Rows with the same key are relayed in the order of insertion if the transactions that inserted
    them did not overlap. Topics are not checked here: the relay fails at a missing topic, and
    retries.

    Args:
        engine: SQLAlchemy engine for SQLite (a file), PostgreSQL, MariaDB or MySQL.
        name: Name of the table.
        relay_name: Prefix of the names of the relays' own tables.
        schema: Schema of all tables; None: the connection's default schema.

    Raises:
        ConfigError: The engine is for another kind of database; give another engine.
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
        self.database = database_of_engine(engine)
        self.tables = make_tables(name=name, relay_name=relay_name, schema=schema)
        self._notifies = self.database.notifies
        full_name = self.tables.messages.fullname
        # PostgreSQL's notification channel, on which relays listen.
        self.channel = full_name[-_CHANNEL_CHARS_MAX:]

    @property
    def metadata(self) -> MetaData:
        """The tables for Alembic's `target_metadata`; call `create` after the migration."""
        return self.tables.metadata

    def create(self) -> None:
        """Create the tables and the rows of the buckets if they do not exist.

        Raises:
            TableError: A table exists, but is not InnoDB; an operator converts it.
        """
        create_tables(self.engine, self.metadata)
        buckets = self.tables.buckets
        with self.engine.begin() as connection:
            for table in self.metadata.tables.values():
                self.database.check_table(connection, table)
            there = set(connection.execute(select(buckets.c.bucket)).scalars())
            for bucket in range(BUCKETS):
                if bucket not in there:
                    row = {"bucket": bucket, "owner": "", "epoch": 0, "expires_at": 0}
                    self.database.insert_if_absent(connection, buckets, row)

    def add(self, connection: Connection | Session, message: Message) -> int:
        """Write a message in the open local transaction, after whose commit it is relayed.

        Returns:
            The row's id; ids ascend with insertion.

        Raises:
            FenceUsageError: The connection is in AUTOCOMMIT; the caller gives another one.
            SQLAlchemyError: The database refuses the row; the caller rolls back.
        """
        return self.add_all(connection, [message])[0]

    def add_all(self, connection: Connection | Session, messages: Sequence[Message]) -> list[int]:
        """Write messages as `add`, with its errors; return their rows' ids, in the same order.

        Messages with the same key are relayed in the order in which they are given.
        """
        return self._insert(self._connection(connection), messages, RowState.LOCAL_COMMIT)

    def pre_send(self, message: Message) -> int:
        """Write a message before its local transaction; return the row's id, for `confirm`.

        The row is written in a separate database transaction; if that fails, do not begin the local
        one. Later rows with the same key wait for this row. The message is relayed after `confirm`.
        If it is not confirmed within the relay's unknown_ms_max, the row is withdrawn.

        Raises:
            SQLAlchemyError: The row was not written; the caller does not begin the local one.
        """
        with self.engine.begin() as connection:
            return self._insert(connection, [message], RowState.UNKNOWN)[0]

    def confirm(self, connection: Connection | Session, row_id: int) -> None:
        """Confirm a `pre_send` in the open local transaction. It is relayed after the commit.

        Raises:
            RowStateError: The row was withdrawn, or confirmed before. The COMMIT of the local
                transaction is refused; begin again.
            RowNotFoundError: The row does not exist; COMMIT is refused too; begin again.
            FenceUsageError: The connection is in AUTOCOMMIT; the caller gives another connection.
        """
        connection = self._connection(connection)
        try:
            self._move(connection, row_id, RowEvent.CONFIRM)
        except (RowStateError, RowNotFoundError) as error:
            guard_of(connection, self.database).forbid(error)
            raise

    def withdraw(self, row_id: int) -> None:
        """Withdraw a `pre_send` at once, because its local transaction will not commit.

        Raises:
            RowStateError: The row was confirmed, and the message is relayed, or it was withdrawn
                before; the programmer corrects the calling code.
            RowNotFoundError: The row does not exist; nobody acts: there is nothing to withdraw.
        """
        with self.engine.begin() as connection:
            self._move(connection, row_id, RowEvent.WITHDRAW)

    def prepare(self, message: Message) -> int:
        """Write a message that `settle` or the relay's callback settles later; return the row's id.

        The row is written in a separate database transaction, before the work begins. Later rows
        with the same key wait for this row. The relay asks the callback when the row is older than
        its prepared_ms_min; `settle` takes effect at once.

        Raises:
            SQLAlchemyError: The row was not written; the caller does not begin the work.
        """
        with self.engine.begin() as connection:
            return self._insert(connection, [message], RowState.PREPARED)[0]

    def settle(self, row_id: int, *, success: bool) -> None:
        """Settle a `prepare`: the message is relayed if `success`, and never otherwise.

        Raises:
            RowStateError: The row was settled before, by a callback, say; nobody acts: that answer
                remains.
            RowNotFoundError: The row does not exist: it was settled and purged; as above.
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
        returned: list[Any] = [table.c.id]
        if self._notifies:  # PostgreSQL sends the notification when the local transaction commits
            returned.append(func.pg_notify(self.channel, ""))
        rows = [columns_of(each) for each in messages]
        if not connection.dialect.insert_returning:  # MySQL: the driver knows the last id only
            return [connection.execute(statement, row).lastrowid for row in rows]
        statement = statement.returning(*returned, sort_by_parameter_order=True)
        return [int(row[0]) for row in connection.execute(statement, rows)]

    def _move(self, connection: Connection, row_id: int, event: RowEvent) -> None:
        """Apply `event` to one row in the open transaction, or raise an error about the row."""
        table = self.tables.messages
        statement: Any = (
            event_update(table, event)
            .where(table.c.id == row_id)
            .values(next_attempt_at=None, retries=0, cause=None)
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
        connection = required_connection(connection, FenceUsageError)
        if self.database.is_autocommit(driver_of(connection)):
            raise FenceUsageError(
                "the connection is in AUTOCOMMIT: work and message would not commit together"
            )
        return connection
