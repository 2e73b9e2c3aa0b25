"""Fence: a row in the database that makes the answer to a check final."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, overload

from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from halfbridge.bridge import Answer, NoAnswerError, Resolution
from halfbridge.bridge.errors import ConfigError
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.records import FenceContext
from halfbridge.sql.dialects import CHECK_WAIT_MS
from halfbridge.sql.errors import FencedError, FenceUsageError, Outcome, SqlError
from halfbridge.sql.fence_block import fenced_connection, fenced_session
from halfbridge.sql.fence_context import check_context
from halfbridge.sql.fence_guard import check_outermost, guard_of, refuse_lost_sends
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

_NS_PER_MS = 1_000_000
_DATABASE_FIRST = "the database has not committed the fence row: commit the database first"
# The wait for a lock, and as much again for connecting and for the statements.
_CHECK_TIMEOUT_MS_MIN = 2 * CHECK_WAIT_MS


class Fence:
    """Ties message transactions to local transactions by a row in the same database. Thread-safe.

    Args:
        engine: SQLAlchemy's, for the database of the local transactions: SQLite (a file),
            PostgreSQL or MariaDB. Its time-outs should be shorter than check_timeout_ms.
        producer_group: The producer's.
        name: Name of the table.
        schema: Its schema; None: the connection's own.

    Raises:
        ConfigError: the engine is of another kind of database; give another one.

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
        """The engine that checks use, and blocks without a session."""
        return self._table.engine

    @property
    def metadata(self) -> MetaData:
        """The table as Alembic wants it, for `target_metadata`; call `create` afterwards."""
        return self._table.metadata

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that the fence needs."""
        return (self._table.table,)

    def create(self) -> None:
        """Make the table where it is missing, and the row about itself; see FenceTable.create."""
        self._table.create()

    def table_id(self, *, anew: bool = False) -> str:
        """Return the table's UUID; see FenceTable.table_id."""
        return self._table.table_id(anew=anew)

    def context(self) -> bytes:
        """Return what `producer.begin(context=...)` marks a transaction as fenced with.

        Raises:
            TableError: there is no such table; call `create`.
            SQLAlchemyError: the database does not answer.
        """
        return FENCE_CONTEXT.encode(FenceContext(self.table_id()))

    @overload
    def transaction(
        self, producer: TransactionProducer, *, immunity_ms: int | None = None
    ) -> AbstractContextManager[tuple[Transaction, Connection]]: ...

    @overload
    def transaction(
        self,
        producer: TransactionProducer,
        *,
        session_factory: Callable[[], Session],
        immunity_ms: int | None = None,
    ) -> AbstractContextManager[tuple[Transaction, Session]]: ...

    def transaction(
        self,
        producer: TransactionProducer,
        *,
        session_factory: Callable[[], Session] | None = None,
        immunity_ms: int | None = None,
    ) -> AbstractContextManager[tuple[Transaction, Connection | Session]]:
        """Return a block that commits work in the database, and then its messages.

        All sends come first. The first statement begins the database transaction; the fence row
        is written before it. Left normally: the database commits, then the message transaction.
        Left by an exception: neither does. docs/local-transactions.md has each path.

        Args:
            producer: Started, with `producer_group` as the fence's and `check` as its checker.
            session_factory: Makes the Session that the block yields in place of a Connection,
                such as a sessionmaker; on the fence's database.
            immunity_ms: Least age before the first check. A check rolls back what has not begun
                its database transaction by then; None: the daemon's transaction_timeout_ms.

        Raises:
            ConfigError: the producer's group or check_timeout_ms does not go with the fence.
            TableError: there is no such table; call `create`.
            FencedError: a check came first; nothing was committed. Begin another block.
            FenceUsageError: see its text; nothing was committed.
            TransactionEndedError: the database transaction ended inside; says what stands.
            CommitUnknownError: the database's commit is in doubt; the check decides. Do not
                repeat the work.
            OutcomeUnknownError: the database has committed, the message transaction's commit is
                in doubt; the check commits it. Do not repeat the work.
            BridgeError, IllegalTransitionError: as `Transaction.send` and `seal`.
            SQLAlchemyError: from the statements; nothing was committed.
        """
        self._check_producer(producer)
        if session_factory is None:
            return fenced_connection(self, producer, immunity_ms=immunity_ms)
        return fenced_session(self, producer, session_factory, immunity_ms=immunity_ms)

    def enter(self, connection: Connection | Session, tx: Transaction) -> None:
        """Write the fence row into the open database transaction: it now commits with `tx`.

        For whoever cannot use `transaction`. To be called first of all statements, once all
        sends have returned; `tx` comes from `producer.begin(context=fence.context())`. Commit the
        database next, and `tx` only after that: `tx.commit()` is refused until then. The
        database's COMMIT is refused where the transaction that holds the row has ended by itself.

        Raises:
            FencedError: a check came first: neither may commit; roll both back.
            FenceUsageError: AUTOCOMMIT, a savepoint, a two-phase commit; the caller's mistake.
            IllegalTransitionError: a send is outstanding or has failed, or nothing was sent.
            NotDurableError, TableError: an operator acts.
            SQLAlchemyError: the database refuses; roll both back.
        """
        if isinstance(connection, Session):
            connection = self.connection_of(connection)
        tx.commit_held = _DATABASE_FIRST
        mark = self.write(connection, tx)
        guard_of(connection, self.database).pass_with(mark, lambda: _release(tx))

    def write(self, connection: Connection, tx: Transaction) -> str:
        """Seal `tx` and write its row; return the mark of the database transaction.

        The connection's guard refuses COMMIT from here on, until it is told the mark. Raises what
        `enter` raises.
        """
        check_outermost(connection, self.database)
        guard = guard_of(connection, self.database)
        guard.arm(tx.id)
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
        """Answer a check: the checker of the producer. COMMIT and ROLLBACK are final.

        A local transaction that has not entered yet never commits afterwards. A resumed dead
        letter has the answer that it had before, as long as its row is kept.

        Raises:
            NoAnswerError: the transaction is not of this fence, or the database cannot tell now.
                Nothing is counted; the daemon asks again.
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
        """Let a local transaction never commit from now on; False where it has committed.

        Raises:
            NoAnswerError: rows as old as its row were purged.
            SQLAlchemyError, SqlError: the database cannot tell now.
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
        """Delete rows, of all groups, that no check needs any more; see fence_purge."""
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
        """Return the connection of a session's transaction, which is begun where it is not."""
        self.check_session(session)
        return session.connection(bind_arguments={"clause": self._table.table})

    def check_session(self, session: Session) -> None:
        """Refuse a session whose commit is not what ends the work.

        Raises:
            FenceUsageError: the caller gives another session.
        """
        if isinstance(session.get_bind(clause=self._table.table), Connection):
            raise FenceUsageError(
                "a session that is bound to a connection may be part of somebody else's"
                " transaction: bind it to the engine"
            )
        if session.twophase:
            raise FenceUsageError("a two-phase session commits otherwise: use a plain one")

    def _refuse_old(self, tx: Transaction) -> None:
        """Refuse a transaction that the daemon has given up by now: its row may be purged soon."""
        age_ms = time_ns() // _NS_PER_MS - birth_ms(tx.id)
        if age_ms >= tx.shared.config.transaction_age_ms_max:
            raise FencedError(
                f"{tx.id} was begun {age_ms} ms ago, longer than transaction_age_ms_max",
                transaction_id=tx.id,
            )


def _release(tx: Transaction) -> None:
    tx.commit_held = ""
