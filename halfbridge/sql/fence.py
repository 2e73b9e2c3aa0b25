"""Fence: a row in the database that makes the answer to a check final.

The block of `Fence.transaction` runs the database transaction, sends before, between and after its
statements, and commits first the database, then the messages. docs/reference/fence-blocks.md argues
why that is safe. `Block` runs it:

    first statement ── _before_statement ── the fence row, with the number of stored messages
    end of the body ── _is_begun ── waits for all messages
                       _commit   ── their number into the row, if it has changed; COMMIT
                       _finish   ── returns the connection; COMMIT of the messages
    an exception    ── _abandon  ── ROLLBACK; the row's outcome decides about the messages
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from contextlib import contextmanager, suppress
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Protocol, overload

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from halfbridge.bridge import Answer, Resolution
from halfbridge.bridge.transaction import IllegalTransitionError, State
from halfbridge.kafka.errors import BridgeError, ConfigError, NoAnswerError, OutcomeUnknownError
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.records import FenceContext
from halfbridge.sql.dialects.base import CHECK_WAIT_MS, required_connection
from halfbridge.sql.errors import (
    CommitUnknownError,
    FencedError,
    FenceUsageError,
    Outcome,
    SqlError,
    TransactionEndedError,
)
from halfbridge.sql.fence_purge import (
    DEAD_LETTER_RETENTION_MS,
    TRANSACTION_AGE_MS_MAX,
    PurgeResult,
    purge,
)
from halfbridge.sql.fence_table import (
    DEFAULT_NAME,
    UNCOUNTED,
    FenceTable,
    birth_ms,
    check_context,
    settle,
    write_committed,
    write_count,
)
from halfbridge.sql.guards import (
    check_outermost,
    guard_of,
    reached_driver,
    refuse_lost_sends,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

    from halfbridge.bridge import BridgeConfig, MessageView, Transaction, TransactionProducer
    from halfbridge.sql.guards import Guard

_DATABASE_FIRST = "the database has not committed the fence row: commit the database first"
_COMMIT_FAILED = "the database's COMMIT has failed, or is in doubt: leave the decision to the check"
# The wait for a lock, and as much again for the connection and the statements.
_CHECK_TIMEOUT_MS_MIN = 2 * CHECK_WAIT_MS


class Fence:
    """Ties message transactions to local transactions by a row in the same database. Thread-safe.

    Args:
        engine: SQLAlchemy engine for the database of the local transactions: SQLite (a file),
            PostgreSQL, MariaDB or MySQL. Its time-outs should be shorter than check_timeout_ms.
        producer_group: The producer's group.
        name: Name of the table.
        schema: Schema of the table; None: the connection's default schema.

    Attributes:
        engine: For checks and for blocks without a session.
        metadata: The table for Alembic's `target_metadata`; call `create` after the migration.
        tables: The tables that the fence needs.

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
        self.engine = self._table.engine
        self.metadata = self._table.metadata
        self.tables = (self._table.table,)

    def create(self) -> None:
        """Create the table and its own rows if they do not exist; see FenceTable.create."""
        self._table.create()

    def table_id(self, *, reread: bool = False) -> str:
        """Return the table's UUID; see FenceTable.table_id."""
        return self._table.table_id(reread=reread)

    def context(self) -> bytes:
        """Return the value for `producer.begin(context=...)` that marks a transaction as fenced.

        Raises:
            TableError: The table does not exist; the caller calls `create`.
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

        The block's first SQL statement begins the database transaction, and the fence row is
        written before that statement. Messages may be sent at any time. At the normal end of the
        block no more messages are accepted, the outstanding ones are awaited for up to
        send_timeout_ms, and their number is written into the row if it differs. Then the database
        commits, then the message transaction. After an exception neither commits.
        docs/reference/fence-blocks.md describes each case.

        A send after the first statement keeps the database transaction, and its locks, open for a
        round trip to Kafka.

        Args:
            producer: A started producer of the fence's group, with `check` as its checker.
            session_factory: Returns the Session, on the fence's database, that the block yields
                instead of a Connection; for example a sessionmaker.
            allow_empty: Whether the block may send messages without running a statement. Otherwise
                that is an error, because the work was probably done on another connection.
            immunity_ms: Least age of the transaction before its first check. The check rolls the
                transaction back if its database transaction has not begun by then. None: the
                daemon's transaction_timeout_ms.

        Raises:
            ConfigError: The producer's group or check_timeout_ms does not fit the fence; correct
                the producer.
            TableError: The table does not exist; call `create`.
            FencedError: A check came first; nothing was committed. Begin another block.
            FenceUsageError: The calling code is wrong, as the text says; nothing was committed.
            TransactionEndedError: The database transaction ended inside the block. Correct the
                block; `outcome` says what is left of its work.
            CommitUnknownError: The database's commit is in doubt; the check decides. Do not repeat
                the work.
            OutcomeUnknownError: The database has committed, but the message transaction's commit is
                in doubt; the check commits it. Do not repeat the work.
            HalfNotStoredError: A half message was not acknowledged; nothing was committed; repeat
                the block later.
            BridgeError, IllegalTransitionError: As `Transaction.send`; nothing was committed.
            SQLAlchemyError: A statement failed; nothing was committed; act as the driver's error
                demands, and begin another block.
        """
        self.check_producer(producer)
        return fenced(
            self,
            producer,
            session_factory,
            self.engine.connect,
            immunity_ms=immunity_ms,
            allow_empty=allow_empty,
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
            IllegalTransitionError: A send is outstanding or has failed, or nothing was sent;
                correct the caller.
            NotDurableError, TableError: An operator must act.
            SQLAlchemyError: The database refuses the row; roll both back.
        """
        if isinstance(connection, Session):
            connection = self.connection_of(connection)
        connection = required_connection(connection, FenceUsageError)
        tx.commit_held = _DATABASE_FIRST
        guard = guard_of(connection, self.database)
        if guard.is_watched:
            raise FenceUsageError(_ENTERED_INSIDE)
        tag = self.write(connection, tx, message_count=None)

        def hold(is_sent: bool) -> None:  # noqa: FBT001  (see Guard.follow)
            tx.commit_held = "" if is_sent else _COMMIT_FAILED

        guard.pass_with(tag)
        guard.follow(connection, hold)

    def write(self, connection: Connection, tx: Transaction, *, message_count: int | None) -> str:
        """Write the fence row of `tx`, and return the tag of the database transaction.

        The row names `message_count` messages (None: seal `tx`, and take its number). The guard
        refuses COMMIT until `Guard.pass_with` is called. Raises the errors of `enter`.
        """
        check_outermost(connection, self.database)
        guard = guard_of(connection, self.database)
        guard.arm(connection, tx.id)
        try:
            refuse_lost_sends(tx)
            if message_count is None:
                tx.seal()
                message_count = tx.message_count
            self._refuse_old(tx)
            return write_committed(
                self._table,
                connection,
                producer_group=self.producer_group,
                transaction_id=tx.id,
                message_count=message_count,
            )
        except Exception as error:
            guard.refuse(error)
            raise

    def write_count(self, connection: Connection, tx: Transaction) -> None:
        """Write the number of messages into the fence row of the open database transaction.

        TransactionEndedError: the database has rolled the row back; the caller corrects the block.
        """
        is_written = write_count(
            self._table,
            connection,
            producer_group=self.producer_group,
            transaction_id=tx.id,
            message_count=tx.message_count,
        )
        if not is_written:
            raise TransactionEndedError(transaction_id=tx.id)

    def check(self, view: MessageView) -> Answer:
        """Answer a check; to be used as the producer's checker. COMMIT and ROLLBACK are final.

        A local transaction that has not entered before the check can never commit afterwards. A
        resumed dead letter gets the same answer as before, as long as its fence row is kept.

        Raises:
            NoAnswerError: The transaction does not belong to this fence, or the database cannot
                tell now. The answer is not counted; the daemon asks again.
        """
        group, transaction_id = view.producer_group, view.transaction_id
        if group != self.producer_group:
            raise NoAnswerError(
                f"{transaction_id} of {group}: the fence is of group {self.producer_group}"
            )
        try:
            check_context(
                self._table, view.context, producer_group=group, transaction_id=transaction_id
            )
            ended = settle(self._table, producer_group=group, transaction_id=transaction_id)
        except (*_UNREACHABLE, SqlError) as error:
            text = " ".join(str(error).split())
            raise NoAnswerError(f"the fence of {transaction_id}: {text}") from error
        if ended.outcome is not Outcome.COMMITTED:
            return Answer(Resolution.ROLLBACK)
        if not ended.message_count:
            raise NoAnswerError(f"{transaction_id}: {UNCOUNTED}")
        return Answer(Resolution.COMMIT, ended.message_count)

    def roll_back(self, transaction_id: str) -> bool:
        """Prevent a local transaction from committing; return False if it has committed.

        Raises:
            NoAnswerError: Rows of that age were purged; an operator looks the work up elsewhere.
            SQLAlchemyError: The database cannot tell now; the caller tries again later.
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
        """Delete the rows of all groups that no check needs any more; see fence_purge.purge.

        Args:
            transaction_age_ms_max: The daemon's setting; by default its default, 3 days.
            dead_letter_retention_ms: Retention of the dead-letter topic; by default 30 days.
            older_than_ms: Least age of the deleted rows; None: the least age that is allowed.

        Raises:
            ValueError: older_than_ms is too small; the caller gives a greater age.
            PurgeError: Locks are held for too long, or a clock is wrong; run the purge again.
        """
        return purge(
            self._table,
            transaction_age_ms_max=transaction_age_ms_max,
            dead_letter_retention_ms=dead_letter_retention_ms,
            older_than_ms=older_than_ms,
        )

    def check_producer(self, producer: TransactionProducer) -> None:
        """Raise ConfigError unless the producer's settings fit the fence; the caller's mistake."""
        if iscoroutinefunction(producer.start):
            raise ConfigError(
                field="producer",
                value=type(producer).__name__,
                origin="argument",
                allowed="a TransactionProducer; an asyncio one goes with AsyncFence",
            )
        self.check_config(producer.config)

    def check_config(self, config: BridgeConfig) -> None:
        """Refuse a producer's settings that do not fit the fence.

        Raises ConfigError: the user corrects them.
        """
        if config.producer_group != self.producer_group:
            raise ConfigError(
                field="producer_group",
                value=repr(config.producer_group),
                origin="the producer",
                allowed=f"the fence's, {self.producer_group!r}: checks read rows of that group",
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

    def check_new(self, session: Session) -> None:
        """Refuse a session that a block cannot begin and end by itself.

        Raises:
            FenceUsageError: the programmer gives a new, synchronous session.
        """
        if iscoroutinefunction(session.commit):
            raise FenceUsageError(
                f"session_factory returns an {type(session).__name__}: it goes with AsyncFence"
            )
        self.check_session(session)
        if session.in_transaction():
            raise FenceUsageError("the session's transaction has begun already: give a new session")

    def check_session(self, session: Session) -> None:
        """Refuse a session whose commit() does not commit the database transaction.

        Raises:
            FenceUsageError: the programmer binds a plain session to the engine.
        """
        if isinstance(session.get_bind(clause=self._table.table), Connection):
            raise FenceUsageError(
                "a session that is bound to a connection may be part of another"
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


_LOG = logging.getLogger("halfbridge.sql")
# asyncpg raises an OSError where it cannot connect, which SQLAlchemy passes on as it is.
_UNREACHABLE = (SQLAlchemyError, OSError)
_ROLLED_BACK = frozenset((State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK))
_COMMIT_INSIDE = (
    "only the block commits: remove commit() and `with connection.begin()` from it; nothing of"
    " the block was committed"
)
_COMMIT_OF_MESSAGES = "only the block commits, after the database: remove tx.commit() from it"
_ENTERED_INSIDE = (
    "a fence's block runs on this connection, and commits one message transaction: give `enter` a"
    " connection of its own; nothing of this call was committed"
)
_UNUSED = (
    "messages were sent, and no statement ran on the block's connection: is the work done on"
    " another connection (of an ORM, say)? Then it commits without the messages. Use the"
    " connection or session that the block yields, or say allow_empty=True; nothing was committed"
)
_ROLLED_BACK_INSIDE = (
    "the message transaction was rolled back inside of the block; raise an exception instead, which"
    " rolls back both"
)
_NO_ROW = (
    "the first statement was cancelled, and the fence row was not written: let the cancellation"
    " end the block; nothing was committed"
)
_SECOND_TRANSACTION = (
    "a second database transaction begins inside of the block: it holds one, in one database, and"
    " ends it itself"
)


@contextmanager
def fenced(
    fence: Fence,
    producer: TransactionProducer,
    session_factory: Callable[[], Session] | None,
    connect: Callable[[], Connection],
    *,
    immunity_ms: int | None,
    allow_empty: bool,
) -> Iterator[tuple[Transaction, Connection | Session]]:
    """Yield a message transaction, and a session or what `connect` returns; see Fence.transaction.

    The block ends the connection's transaction by its commit() or rollback(), and closes it.
    """
    session = None if session_factory is None else session_factory()
    if session is not None:
        fence.check_new(session)
    tx = producer.begin(immunity_ms=immunity_ms, context=fence.context())
    handle = connect() if session is None else session
    with Block(fence, tx, handle, messages=tx, allows_empty=allow_empty).running():
        yield tx, handle


class Messages(Protocol):
    """What a block has of its message transaction that waits for Kafka; see Transaction."""

    def end_sends(self) -> int:
        """Refuse further sends, wait for those outstanding, return their number."""

    def is_unanswered(self) -> bool:
        """Return whether a send has failed, and none was acknowledged."""

    def commit(self) -> object:
        """Decide COMMIT."""

    def rollback(self) -> object:
        """Decide ROLLBACK."""


class Block:
    """Runs one block; see Fence.transaction. Its waits for Kafka are those of `messages`."""

    def __init__(
        self,
        fence: Fence,
        tx: Transaction,
        handle: Connection | Session,
        *,
        messages: Messages,
        allows_empty: bool,
    ) -> None:
        self._allows_empty = allows_empty
        self._fence = fence
        self._tx = tx
        self._messages = messages
        self._handle = handle
        self._connection: Connection | None = None
        self._guard: Guard | None = None
        self._has_begun = False  # a statement was about to run
        self._tag: str | None = None  # set once the fence row was written
        self._row_count = 0  # the number of messages in the fence row
        self._failure: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold back the message transaction until the block has ended; then decide it."""
        self._tx.commit_held = _COMMIT_OF_MESSAGES
        with self._tx.block(), self._watching(), self._leaving():
            yield

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Watch the statements of the block's connection, or of its session's."""
        if isinstance(self._handle, Connection):
            self._watch(self._handle)
            yield
            return

        def watch(_session: object, _begun: object, connection: Connection) -> None:
            self._watch(connection)

        event.listen(self._handle, "after_begin", watch)
        try:
            yield
        finally:
            event.remove(self._handle, "after_begin", watch)  # the session may be used again

    def _watch(self, connection: Connection) -> None:
        if self._connection is None:
            self._connection = connection
            self._guard = guard_of(connection, self._fence.database)
            self._guard.watch(self._before_statement)
        elif self._connection is not connection:
            raise FenceUsageError(_SECOND_TRANSACTION)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """Run the block's body, then commit both transactions, or neither after an exception."""
        try:
            yield
            if self._is_begun():
                self._commit()
        except BaseException as error:
            self._abandon(error)
            raise
        self._finish()

    def _finish(self) -> None:
        """Return the connection, and commit the messages, after the database's commit."""
        self._close()
        if self._tx.message_count:
            self._commit_messages()

    def _commit_messages(self) -> None:
        """Commit the message transaction after the database's commit.

        Any other error than OutcomeUnknownError would suggest that the database has not committed.
        """
        self._tx.commit_held = ""
        try:
            self._messages.commit()
        except OutcomeUnknownError:
            raise
        except (BridgeError, IllegalTransitionError) as error:
            raise OutcomeUnknownError(
                f"the database has committed; a check commits {self._tx.id}: do not repeat the work"
                f" ({error})",
                transaction_id=self._tx.id,
            ) from error

    def _before_statement(self, connection: Connection) -> None:
        if self._failure is not None:
            raise self._failure
        guard = self._armed()
        if self._has_begun:
            # A listener of "commit" may run statements after the guard: in the same transaction.
            if guard.is_over and not guard.is_of(connection.get_transaction()):
                raise FenceUsageError(_SECOND_TRANSACTION)
            return
        self._has_begun = True
        try:
            # A statement that commits by itself would show this number: it covers stored messages.
            self._row_count = self._tx.stored_count
            self._tag = self._fence.write(connection, self._tx, message_count=self._row_count)
        except BaseException as error:
            # Anything else is a cancellation, whose error is not to be raised again.
            self._failure = error if isinstance(error, Exception) else FenceUsageError(_NO_ROW)
            raise
        guard.refuse(FenceUsageError(_COMMIT_INSIDE))

    def _is_begun(self) -> bool:
        """Wait for all messages, and return whether the database transaction is to be committed.

        Begins it if only messages were sent.
        """
        failure = self._failure or (self._guard.refused if self._guard is not None else None)
        if failure is not None:
            raise failure
        if self._tx.state in _ROLLED_BACK:
            raise FenceUsageError(_ROLLED_BACK_INSIDE)
        if isinstance(self._handle, Session):
            self._handle.flush()  # its listeners may send
        message_count = self._messages.end_sends()
        refuse_lost_sends(self._tx)
        if message_count and not self._has_begun:
            if not self._allows_empty:
                raise FenceUsageError(_UNUSED)
            self._begin()
        return self._has_begun

    def _begin(self) -> None:
        if isinstance(self._handle, Session):
            connection = self._fence.connection_of(self._handle)
        else:
            connection = self._handle
            if not connection.in_transaction():
                connection.begin()
        if not self._has_begun:
            self._armed().before_statement(connection)

    def _commit(self) -> None:
        guard = self._armed()
        if guard.is_over:
            raise TransactionEndedError(transaction_id=self._tx.id)
        if self._connection is not None and self._row_count != self._tx.message_count:
            self._fence.write_count(self._connection, self._tx)
        # Without a message it is a plain transaction, which may contain DDL.
        guard.pass_with(self._tag if self._tx.message_count else None)
        try:
            self._handle.commit()
        except BaseException as error:
            # A session returns its connection in commit(), too, where it may be cancelled.
            is_sent = guard.is_commit_sent and (
                isinstance(error, CancelledError) or reached_driver(error)
            )
            if is_sent and not self._fence.database.is_rollback(error):
                raise CommitUnknownError(transaction_id=self._tx.id) from error
            raise
        if not guard.is_commit_sent:  # a session that takes part in another transaction
            raise CommitUnknownError(transaction_id=self._tx.id)

    def _abandon(self, error: BaseException) -> None:
        """Roll both transactions back; set `error.outcome` where the outcome was not known."""
        self._tx.refuse_sends()
        try:
            self._handle.rollback()
        except Exception as cause:  # noqa: BLE001  (a lost connection; a listener of the user's)
            _LOG.info("rolling back %s: %s", self._tx.id, cause)
        self._close()
        if isinstance(error, CommitUnknownError) or not self._tx.message_count:
            return
        outcome = self._outcome()
        if isinstance(error, TransactionEndedError):
            error.outcome = outcome
        if outcome is None:
            return
        if outcome is Outcome.ROLLED_BACK and self._messages.is_unanswered():
            _LOG.info("no broker answered for %s; if it is stored, a check settles it", self._tx.id)
            return
        self._tx.commit_held = ""
        messages = self._messages
        decide = messages.commit if outcome is Outcome.COMMITTED else messages.rollback
        try:
            decide()
        except (BridgeError, IllegalTransitionError) as cause:
            _LOG.warning("deciding %s failed, a check settles it: %s", self._tx.id, cause)

    def _outcome(self) -> Outcome | None:
        if not self._has_begun and self._tx.state is not State.SEALED:
            return Outcome.ROLLED_BACK  # the block has ended before it wrote the row
        try:
            is_rolled_back = self._fence.roll_back(self._tx.id)
        except (*_UNREACHABLE, SqlError, NoAnswerError) as cause:
            text = "how %s ended is not known, a check settles it: %s"
            _LOG.warning(text, self._tx.id, cause)
            return None
        return Outcome.ROLLED_BACK if is_rolled_back else Outcome.COMMITTED

    def _close(self) -> None:
        """Return the connection to the pool, before any wait for Kafka."""
        if self._guard is not None:
            self._guard.watch(None)
        with suppress(Exception):
            self._handle.close()

    def _armed(self) -> Guard:
        if self._guard is None:
            raise FenceUsageError("the session has begun no transaction of the fence's database")
        return self._guard
