"""Fence: a row in the database that makes the answer to a check final."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from halfbridge.bridge import Answer, NoAnswerError, Resolution
from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.records import FenceContext
from halfbridge.sql.dialects import CHECK_WAIT_MS
from halfbridge.sql.errors import FencedError, FenceUsageError, Outcome, SqlError
from halfbridge.sql.fence_block import fenced_connection, fenced_session
from halfbridge.sql.fence_context import check_context
from halfbridge.sql.fence_guard import check_outermost, guard_of, refuse_lost_sends, release
from halfbridge.sql.fence_purge import (
    DEAD_LETTER_RETENTION_MS,
    TRANSACTION_AGE_MS_MAX,
    PurgeResult,
    purge,
)
from halfbridge.sql.fence_rows import settle, write_committed
from halfbridge.sql.fence_table import DEFAULT_NAME, FenceTable, birth_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

    from halfbridge.bridge import MessageView, Transaction, TransactionProducer

_DATABASE_FIRST = "the database has not committed the fence row: commit the database first"
# The wait for a lock, and as much again for the connection and the statements.
_CHECK_TIMEOUT_MS_MIN = 2 * CHECK_WAIT_MS


class Fence:
    """Ties message transactions to local transactions by a row in the same database. Thread-safe.

    Args:
        engine: SQLAlchemy engine for the database of the local transactions: SQLite (a file),
            PostgreSQL or MariaDB. Its time-outs should be shorter than check_timeout_ms.
        producer_group: The producer's group.
        name: Name of the table.
        schema: Schema of the table; None: the connection's default schema.

    Raises:
        ConfigError: The engine is for another kind of database; give another engine.

    Source: dtm's barrier table (two-phase messages), on a log.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        producer_group: str,
        name: str = DEFAULT_NAME,
        schema: str | None = None,
    ) -> None:
        self.producer_group = producer_group
        self._table = FenceTable(engine, name=name, schema=schema)
        self.database = self._table.database

    @property
    def engine(self) -> Engine:
        """The engine for checks and for blocks without a session."""
        return self._table.engine

    @property
    def metadata(self) -> MetaData:
        """The table for Alembic's `target_metadata`; call `create` after the migration."""
        return self._table.metadata

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that the fence needs."""
        return (self._table.table,)

    def create(self) -> None:
        """Create the table and its own rows if they do not exist; see FenceTable.create."""
        self._table.create()

    def table_id(self, *, anew: bool = False) -> str:
        """Return the table's UUID; see FenceTable.table_id."""
        return self._table.table_id(anew=anew)

    def context(self) -> bytes:
        """Return the value for `producer.begin(context=...)` that marks a transaction as fenced.

        Raises:
            TableError: The table does not exist; call `create`.
            SQLAlchemyError: The database does not answer.
        """
        return FENCE_CONTEXT.encode(FenceContext(self.table_id()))

    @overload
    def transaction(
        self,
        producer: TransactionProducer,
        *,
        immunity_ms: int | None = None,
        allow_empty: bool = False,
    ) -> AbstractContextManager[tuple[Transaction, Connection]]: ...

    @overload
    def transaction(
        self,
        producer: TransactionProducer,
        *,
        session_factory: Callable[[], Session],
        immunity_ms: int | None = None,
        allow_empty: bool = False,
    ) -> AbstractContextManager[tuple[Transaction, Session]]: ...

    def transaction(
        self,
        producer: TransactionProducer,
        *,
        session_factory: Callable[[], Session] | None = None,
        immunity_ms: int | None = None,
        allow_empty: bool = False,
    ) -> AbstractContextManager[tuple[Transaction, Connection | Session]]:
        """Return a block that commits work in the database, and then its messages.

        The block sends all messages first. Its first SQL statement begins the database transaction,
        and the fence row is written before that statement. At the normal end of the block the
        database commits, then the message transaction. After an exception neither commits.
        docs/local-transactions.md describes each case.

        Args:
            producer: A started producer with the fence's `producer_group`, and with `check` as its
                checker.
            session_factory: Returns the Session, on the fence's database, that the block yields
                instead of a Connection; for example a sessionmaker.
            allow_empty: Whether the block may send messages without running a statement. Otherwise
                that is an error, because the work was probably done on another connection.
            immunity_ms: Least age of the transaction before its first check. The check rolls the
                transaction back if its database transaction has not begun by then. None: the
                daemon's transaction_timeout_ms.

        Raises:
            ConfigError: The producer's group or check_timeout_ms does not fit the fence.
            TableError: The table does not exist; call `create`.
            FencedError: A check came first; nothing was committed. Begin another block.
            FenceUsageError: The calling code is wrong, as the text says; nothing was committed.
            TransactionEndedError: The database transaction ended inside the block. The error says
                what was committed.
            CommitUnknownError: The database's commit is in doubt; the check decides. Do not
                repeat the work.
            OutcomeUnknownError: The database has committed, but the message transaction's commit is
                in doubt; the check commits it. Do not repeat the work.
            BridgeError, IllegalTransitionError: As `Transaction.send` and `seal`.
            SQLAlchemyError: A statement failed; nothing was committed.
        """
        self._check_producer(producer)
        if session_factory is None:
            return fenced_connection(
                self, producer, immunity_ms=immunity_ms, allow_empty=allow_empty
            )
        return fenced_session(
            self, producer, session_factory, immunity_ms=immunity_ms, allow_empty=allow_empty
        )

    def enter(self, connection: Connection | Session, tx: Transaction) -> None:
        """Write the fence row into the open database transaction, for code without `transaction`.

        Call this method after all sends have returned: as the first statement, so that a check
        which comes first stops the work early, or as the last one, if a message carries an id that
        the database has made. `tx` must come from `producer.begin(context=fence.context())`. Then
        commit the database, and then `tx`: `tx.commit()` is refused until a database transaction
        with the fence row has committed. The database's COMMIT is refused if the transaction with
        the fence row has already ended.

        Raises:
            FencedError: A check came first, and neither transaction may commit; roll both back.
            FenceUsageError: AUTOCOMMIT, a savepoint or a two-phase commit; the caller's mistake.
            IllegalTransitionError: A send is outstanding or has failed, or nothing was sent.
            NotDurableError, TableError: An operator must act.
            SQLAlchemyError: The database refuses the row; roll both back.
        """
        if isinstance(connection, Session):
            connection = self.connection_of(connection)
        if not isinstance(connection, Connection):
            raise FenceUsageError(
                f"{type(connection).__name__}: give a SQLAlchemy Connection or Session; an asyncio"
                " one has them inside of run_sync()"
            )
        tx.commit_held = _DATABASE_FIRST
        mark = self.write(connection, tx)
        guard_of(connection, self.database).pass_with(mark, lambda: release(tx))

    def write(self, connection: Connection, tx: Transaction) -> str:
        """Seal `tx` and write its fence row; return the mark of the database transaction.

        From here on the connection's guard refuses COMMIT, until `Guard.pass_with` is called with
        the mark. Raises the errors of `enter`.
        """
        check_outermost(connection, self.database)
        guard = guard_of(connection, self.database)
        guard.arm(tx.id, connection.get_transaction())
        try:
            refuse_lost_sends(tx)
            tx.seal()
            self._refuse_old(tx)
            write_committed(
                self._table,
                connection,
                producer_group=self.producer_group,
                transaction_id=tx.id,
                message_count=tx.message_count,
            )
            return self.database.mark(connection)
        except Exception as error:
            guard.refuse(error)
            raise

    def check(self, view: MessageView) -> Answer:
        """Answer a check; to be used as the producer's checker. COMMIT and ROLLBACK are final.

        A local transaction that has not entered before the check can never commit afterwards. A
        resumed dead letter gets the same answer as before, as long as its fence row is kept.

        Raises:
            NoAnswerError: The transaction does not belong to this fence, or the database cannot
                tell now. The answer is not counted; the daemon asks again.
        """
        try:
            check_context(view, producer_group=self.producer_group, table_id=self.table_id)
            ended = settle(
                self._table,
                producer_group=self.producer_group,
                transaction_id=view.transaction_id,
            )
        except (SQLAlchemyError, SqlError) as error:
            text = " ".join(str(error).split())
            raise NoAnswerError(f"the fence of {view.transaction_id}: {text}") from error
        if ended.outcome is Outcome.COMMITTED:
            return Answer(Resolution.COMMIT, ended.message_count)
        return Answer(Resolution.ROLLBACK)

    def roll_back(self, transaction_id: str) -> bool:
        """Prevent a local transaction from committing; return False if it has committed.

        Raises:
            NoAnswerError: Fence rows of that age were purged.
            SQLAlchemyError, SqlError: The database cannot tell now.
        """
        ended = settle(
            self._table, producer_group=self.producer_group, transaction_id=transaction_id
        )
        return ended.outcome is Outcome.ROLLED_BACK

    def purge(
        self,
        *,
        transaction_age_ms_max: int = TRANSACTION_AGE_MS_MAX,
        dead_letter_retention_ms: int = DEAD_LETTER_RETENTION_MS,
        older_than_ms: int | None = None,
    ) -> PurgeResult:
        """Delete the rows of all groups that no check needs any more; see fence_purge."""
        return purge(
            self._table,
            transaction_age_ms_max=transaction_age_ms_max,
            dead_letter_retention_ms=dead_letter_retention_ms,
            older_than_ms=older_than_ms,
        )

    def _check_producer(self, producer: TransactionProducer) -> None:
        config = producer.config
        if config.producer_group != self.producer_group:
            raise ConfigError(
                field="producer_group",
                value=repr(config.producer_group),
                origin="the producer",
                allowed=f"the fence's, {self.producer_group!r}: checks look for rows of that group",
            )
        if config.check_timeout_ms < _CHECK_TIMEOUT_MS_MIN:
            raise ConfigError(
                field="check_timeout_ms",
                value=str(config.check_timeout_ms),
                origin="the producer",
                allowed=f"at least {_CHECK_TIMEOUT_MS_MIN}: fence.check waits {CHECK_WAIT_MS} ms"
                " for a local transaction in flight",
            )

    def connection_of(self, session: Session) -> Connection:
        """Return the connection of a session's transaction; begin the transaction if necessary."""
        self.check_session(session)
        return session.connection(bind_arguments={"clause": self._table.table})

    def check_session(self, session: Session) -> None:
        """Refuse a session whose commit() does not commit the database transaction.

        Raises:
            FenceUsageError: The caller must give another session.
        """
        if isinstance(session.get_bind(clause=self._table.table), Connection):
            raise FenceUsageError(
                "a session that is bound to a connection may be part of somebody else's"
                " transaction: bind it to the engine"
            )
        if session.twophase:
            raise FenceUsageError("a two-phase session is not supported: use a plain session")

    def _refuse_old(self, tx: Transaction) -> None:
        """Refuse a transaction that the daemon has discarded by now: its row may be purged soon."""
        age_ms = tx.shared.time_ms() - birth_ms(tx.id)
        if age_ms >= tx.shared.config.transaction_age_ms_max:
            raise FencedError(
                f"{tx.id} was begun {age_ms} ms ago, longer than transaction_age_ms_max",
                transaction_id=tx.id,
            )
