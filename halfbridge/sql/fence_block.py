"""The block of Fence.transaction: sends, then the database transaction, then message commit."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from halfbridge.bridge.transaction import IllegalTransitionError, State
from halfbridge.kafka.errors import BridgeError, NoAnswerError, OutcomeUnknownError
from halfbridge.sql.commit_checks import reached_driver
from halfbridge.sql.errors import (
    CommitUnknownError,
    FenceUsageError,
    Outcome,
    SqlError,
    TransactionEndedError,
)
from halfbridge.sql.fence_guard import guard_of, refuse_lost_sends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.bridge import Transaction, TransactionProducer
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.fence_guard import Guard

_LOG = logging.getLogger("halfbridge.sql")
_ROLLED_BACK = frozenset((State.ROLLBACK_SENT, State.ROLLBACK_IN_DOUBT, State.ROLLED_BACK))
_COMMIT_INSIDE = (
    "only the block commits: remove commit() and `with connection.begin()` from it; nothing of"
    " the block was committed"
)
_COMMIT_OF_MESSAGES = "only the block commits, after the database: remove tx.commit() from it"
_SENDS_FIRST = (
    "a message was sent after the first statement of the block: send all messages first. If a"
    " message needs an id that the database makes: make the id in Python (a UUIDv7, say), or begin"
    " with producer.begin(context=fence.context()) and call fence.enter() as the last statement, or"
    " use LocalMessages.add (docs/local-transactions.md, Ids that the database makes)"
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
_SECOND_TRANSACTION = (
    "a second database transaction begins inside of the block: it holds one, in one database, and"
    " ends it itself"
)

Handle = TypeVar("Handle", Connection, Session)


@contextmanager
def fenced_connection(
    fence: Fence, producer: TransactionProducer, *, immunity_ms: int | None, allow_empty: bool
) -> Iterator[tuple[Transaction, Connection]]:
    """Yield a message transaction and a connection; see Fence.transaction."""
    tx = _begin_held(fence, producer, immunity_ms)
    connection = fence.engine.connect()
    block = _Block(fence, tx, connection, allows_empty=allow_empty)
    block.watch(connection)
    with block.leaving():
        yield tx, connection


@contextmanager
def fenced_session(
    fence: Fence,
    producer: TransactionProducer,
    session_factory: Callable[[], Session],
    *,
    immunity_ms: int | None,
    allow_empty: bool,
) -> Iterator[tuple[Transaction, Session]]:
    """Yield a message transaction and a session; see Fence.transaction."""
    session = session_factory()
    fence.check_session(session)
    if session.in_transaction():
        raise FenceUsageError("the session's transaction has begun already: give a new session")
    tx = _begin_held(fence, producer, immunity_ms)
    block = _Block(fence, tx, session, allows_empty=allow_empty)

    def watch(_session: object, _begun: object, connection: Connection) -> None:
        block.watch(connection)

    event.listen(session, "after_begin", watch)
    try:
        with block.leaving():
            yield tx, session
    finally:
        event.remove(session, "after_begin", watch)  # the session may be used again


def _begin_held(
    fence: Fence, producer: TransactionProducer, immunity_ms: int | None
) -> Transaction:
    """Begin a message transaction that only the block can commit."""
    tx = producer.begin(immunity_ms=immunity_ms, context=fence.context())
    tx.commit_held = _COMMIT_OF_MESSAGES
    return tx


class _Block(Generic[Handle]):
    """The state of one block."""

    def __init__(
        self, fence: Fence, tx: Transaction, handle: Handle, *, allows_empty: bool
    ) -> None:
        self._allows_empty = allows_empty
        self._fence = fence
        self._tx = tx
        self._handle: Handle = handle
        self._connection: Connection | None = None
        self._guard: Guard | None = None
        self._has_begun = False  # a statement was about to run
        self._mark: str | None = None  # set once the fence row was written
        self._failure: Exception | None = None

    def watch(self, connection: Connection) -> None:
        """Record the connection of the block, and watch its statements."""
        if self._connection is None:
            self._connection = connection
            self._guard = guard_of(connection, self._fence.database)
            self._guard.watch(self._before_statement)
        elif self._connection is not connection:
            raise FenceUsageError(_SECOND_TRANSACTION)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Run the block's body, then commit both transactions, or neither after an exception."""
        try:
            yield
            if self._is_begun():
                self._commit()
        except BaseException as error:
            self._abandon(error)
            raise
        self._close()
        if self._tx.message_count:
            self._commit_messages()

    def _commit_messages(self) -> None:
        """Commit the message transaction after the database's commit.

        Raises:
            OutcomeUnknownError: The commit failed, for whatever reason; a check commits. Any other
                error would suggest that the database has not committed.
        """
        self._tx.commit_held = ""
        try:
            self._tx.commit()
        except OutcomeUnknownError:
            raise
        except (BridgeError, IllegalTransitionError) as error:
            raise OutcomeUnknownError(
                f"the database has committed; a check commits {self._tx.id}: do not repeat the work"
                f" ({error})",
                transaction_id=self._tx.id,
            ) from error

    def _before_statement(self, connection: Connection) -> None:
        """Write the fence row before the first statement."""
        if self._failure is not None:
            raise self._failure
        guard = self._armed()
        if self._has_begun:
            # A listener of "commit" may run statements after the guard: in the same transaction.
            if guard.is_over and connection.get_transaction() is not guard.transaction:
                raise FenceUsageError(_SECOND_TRANSACTION)
            return
        self._has_begun = True
        try:
            if self._tx.message_count:
                self._mark = self._fence.write(connection, self._tx)
            else:
                refuse_lost_sends(self._tx)
                guard.arm(self._tx.id, connection.get_transaction())
        except Exception as error:
            self._failure = error
            raise
        guard.refuse(FenceUsageError(_COMMIT_INSIDE))

    def _is_begun(self) -> bool:
        """Begin the database transaction if only messages were sent; tell whether to commit it.

        Raises:
            SqlError, SQLAlchemyError: Neither transaction may commit.
        """
        failure = self._failure or (self._guard.refused if self._guard is not None else None)
        if failure is not None:
            raise failure
        if self._tx.state in _ROLLED_BACK:
            raise FenceUsageError(_ROLLED_BACK_INSIDE)
        if isinstance(self._handle, Session):
            self._handle.flush()
        refuse_lost_sends(self._tx)
        if not self._tx.message_count:
            return self._has_begun
        if not self._has_begun:
            if not self._allows_empty:
                raise FenceUsageError(_UNUSED)
            self._begin()
        if self._mark is None:
            raise FenceUsageError(_SENDS_FIRST)
        return True

    def _begin(self) -> None:
        """Begin the database transaction of a block that ran no statement."""
        if isinstance(self._handle, Session):
            connection = self._fence.connection_of(self._handle)
        else:
            connection = self._handle
            if not connection.in_transaction():
                connection.begin()
        if not self._has_begun:
            self._armed().before_statement(connection)

    def _commit(self) -> None:
        """Commit the database transaction.

        Raises:
            CommitUnknownError: The outcome of COMMIT is not known.
            TransactionEndedError: The transaction with the fence row has already ended.
        """
        guard = self._armed()
        if guard.is_over:
            raise TransactionEndedError(transaction_id=self._tx.id)
        guard.pass_with(self._mark)
        try:
            self._handle.commit()
        except BaseException as error:
            is_sent = guard.is_commit_sent and reached_driver(error)
            if is_sent and not self._fence.database.is_rollback(error):
                raise CommitUnknownError(transaction_id=self._tx.id) from error
            raise
        if not guard.is_commit_sent:  # a session that takes part in another transaction
            raise CommitUnknownError(transaction_id=self._tx.id)

    def _abandon(self, error: BaseException) -> None:
        """Roll both transactions back; set `error.outcome` where the outcome was not known."""
        try:
            self._handle.rollback()
        except Exception as trouble:  # noqa: BLE001  (a lost connection; a listener of the user's)
            _LOG.info("rolling back %s: %s", self._tx.id, trouble)
        self._close()
        if isinstance(error, CommitUnknownError) or not self._tx.message_count:
            return
        outcome = self._outcome()
        if isinstance(error, TransactionEndedError):
            error.outcome = outcome
        if outcome is None:
            return
        if outcome is Outcome.ROLLED_BACK and self._tx.is_unanswered():
            _LOG.info("no broker answered for %s; if it is stored, a check settles it", self._tx.id)
            return
        self._tx.commit_held = ""
        decide = self._tx.commit if outcome is Outcome.COMMITTED else self._tx.rollback
        try:
            decide()
        except (BridgeError, IllegalTransitionError) as trouble:
            _LOG.warning("deciding %s failed, a check settles it: %s", self._tx.id, trouble)

    def _outcome(self) -> Outcome | None:
        """Return the final outcome of the local transaction; None where it is not known now."""
        if not self._has_begun and self._tx.state is not State.SEALED:
            return Outcome.ROLLED_BACK  # the block has ended before it wrote the row
        try:
            is_rolled_back = self._fence.roll_back(self._tx.id)
        except (SQLAlchemyError, SqlError, NoAnswerError) as trouble:
            text = "how %s ended is not known, a check settles it: %s"
            _LOG.warning(text, self._tx.id, trouble)
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
