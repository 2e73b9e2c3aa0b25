"""Guards a connection from the fence row to the end of its database transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import TwoPhaseTransaction, event

from halfbridge.sql.commit_checks import before_commit
from halfbridge.sql.dialects.base import roll_back_below
from halfbridge.sql.errors import FenceUsageError, TransactionEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from halfbridge.bridge import Transaction
    from halfbridge.sql.dialects import Database


class Guard:
    """Is called before each statement and before COMMIT of one connection, and may refuse them.

    Each connection has one guard, because its listeners live as long as the connection.

    Attributes:
        is_commit_sent: Whether COMMIT was handed to the driver. From then on the outcome of the
            commit may be unknown.
        is_over: Whether the guarded transaction has ended.
        transaction: SQLAlchemy's object of the guarded transaction.
        commits_row: Whether the COMMIT that goes out commits a fence row.
        refused: The error with which a commit was refused; None: no commit was refused.
    """

    def __init__(self, connection: Connection, database: Database) -> None:
        self._database = database
        self._transaction_id = ""
        self._mark: str | None = None
        self._refusal: Exception | None = None
        self._before: Callable[[Connection], None] | None = None
        self._is_busy = False
        self._then: list[Callable[[], None]] = []
        self.is_commit_sent = False
        self.is_over = True
        self.transaction: object = None
        self.commits_row = False
        self.refused: Exception | None = None
        before_commit(connection, self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "before_cursor_execute", self.before_statement)

    def arm(self, transaction_id: str, transaction: object = None) -> None:
        """Begin to guard the open transaction. It cannot commit until `pass_with` is called.

        Args:
            transaction_id: The message transaction; empty: none.
            transaction: SQLAlchemy's object of the open transaction.

        Raises:
            SqlError: The open transaction was refused before.
        """
        if self._refusal is not None and not self.is_over:
            raise self._refusal
        self._transaction_id = transaction_id
        self.transaction = transaction
        self.is_commit_sent = self.is_over = False
        self.refuse(FenceUsageError("the fence row was not written; nothing was committed"))

    def refuse(self, error: Exception) -> None:
        """Refuse the commit of the open transaction with `error`."""
        self._refusal = error

    def pass_with(self, mark: str | None, then: Callable[[], None] | None = None) -> None:
        """Allow the open transaction to commit if it is still the marked transaction.

        Args:
            mark: The mark of the transaction; None: any transaction may commit.
            then: Called when COMMIT is sent; not called if the transaction is rolled back.
        """
        if then is not None:
            self._then.append(then)
        self._mark = mark
        self._refusal = None

    def watch(self, before: Callable[[Connection], None] | None) -> None:
        """Call `before` before each statement from now on; None: call nothing."""
        self._before = before

    def before_statement(self, connection: Connection, *_: object) -> None:
        """Call the function given to `watch`.

        Not called for statements of that function itself, nor for statements with which an event
        listener of the engine begins the transaction.
        """
        if self._before is None or self._is_busy or not connection.in_transaction():
            return
        self._is_busy = True  # statements of `_before` itself are not watched
        try:
            self._before(connection)
        finally:
            self._is_busy = False

    def _on_commit(self, connection: Connection) -> None:
        self.commits_row = False
        if self.is_over:
            return
        if self._refusal is not None:
            refusal = self._refusal
            self._end(connection)
            self.refused = refusal
            raise refusal
        mark, self._mark = self._mark, None
        if mark is not None and not self._database.is_marked(connection, mark):
            self._end(connection)
            raise TransactionEndedError(transaction_id=self._transaction_id)
        self.is_commit_sent = self.is_over = True
        self.commits_row = mark is not None
        then, self._then = self._then, []
        for each in then:
            each()

    def _end(self, connection: Connection) -> None:
        self._on_rollback(connection)
        roll_back_below(connection)

    def _on_rollback(self, connection: Connection) -> None:
        del connection
        self.is_over = True
        self._then = []
        self._refusal = self.refused = None  # an error's traceback refers to the connection


# A guard must not keep its connection alive: the block removes the function of `watch`, and the
# rollback removes the error of `refuse`.
_GUARDS: WeakKeyDictionary[Connection, Guard] = WeakKeyDictionary()


def guard_of(connection: Connection, database: Database) -> Guard:
    """Return the guard of the connection; make it if necessary."""
    guard = _GUARDS.get(connection)
    if guard is None:
        guard = _GUARDS[connection] = Guard(connection, database)
    return guard


def commits_fence_row(connection: Connection) -> bool:
    """Tell, to a listener of the engine's "commit", whether COMMIT commits a fence row.

    For tests that stop the code there: the guard, a listener of the connection, is called first.
    """
    guard = _GUARDS.get(connection)
    return guard is not None and guard.commits_row


def refuse_lost_sends(tx: Transaction) -> None:
    """Refuse a transaction that lacks a message, because a send was refused.

    Raises:
        FenceUsageError: The calling code caught the error of the send; it must let the error end
            the block.
    """
    if tx.refused is not None:
        raise FenceUsageError(
            "a send was refused, so the transaction lacks its message: let the error end the block,"
            f" and begin another one ({tx.refused})"
        ) from tx.refused


def check_outermost(connection: Connection, database: Database) -> None:
    """Check that the connection's transaction is the outermost one; begin it if necessary.

    Raises:
        FenceUsageError: A savepoint, a two-phase transaction or AUTOCOMMIT; the caller's mistake.
        NotDurableError: An operator must change the database's settings.
    """
    if connection.in_nested_transaction():
        raise FenceUsageError(
            "a savepoint alone can be rolled back without its transaction: enter the fence before"
            " begin_nested()"
        )
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        raise FenceUsageError("a two-phase transaction is not supported: use a plain transaction")
    if not connection.in_transaction():
        connection.begin()
    database.check_commit(connection)
    database.begin(connection)


def release(tx: Transaction) -> None:
    """Let the transaction's COMMIT be sent: its database transaction has committed."""
    tx.commit_held = ""
