"""Watches one connection from the fence row to the end of its database transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import TwoPhaseTransaction, event

from halfbridge.sql.dialects.base import roll_back_below
from halfbridge.sql.errors import FenceUsageError, TransactionEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from halfbridge.bridge import Transaction
    from halfbridge.sql.dialects import Database


class Guard:
    """Stands between a connection and its COMMIT, and in front of its statements.

    One for each connection, for its listeners stay as long as the connection does.

    Attributes:
        is_commit_sent: Whether COMMIT has been handed to the driver: from then on its outcome
            may be unknown.
        is_over: Whether the guarded transaction has ended.
        refused: What a commit was refused with; None: none was, yet.
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
        self.refused: Exception | None = None
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "before_cursor_execute", self.before_statement)

    def arm(self, transaction_id: str) -> None:
        """Begin to guard the open transaction: it cannot commit until `pass_with`.

        Raises:
            SqlError: it was refused before, and still is.
        """
        if self._refusal is not None and not self.is_over:
            raise self._refusal
        self._transaction_id = transaction_id
        self.is_commit_sent = self.is_over = False
        self.refuse(FenceUsageError("the fence row was not written; nothing was committed"))

    def refuse(self, error: Exception) -> None:
        """Let the open transaction not commit, for this reason."""
        self._refusal = error

    def pass_with(self, mark: str | None, then: Callable[[], None] | None = None) -> None:
        """Let the open transaction commit, if it still is the one that was marked.

        Args:
            mark: What the database marked it with; None: any.
            then: Called once COMMIT goes out; never where the transaction is rolled back.
        """
        if then is not None:
            self._then.append(then)
        self._mark = mark
        self._refusal = None

    def watch(self, before: Callable[[Connection], None] | None) -> None:
        """Have `before` called in front of each statement; None: nothing more."""
        self._before = before

    def before_statement(self, connection: Connection, *_: object) -> None:
        """Call what watches; the statements of its own are not watched.

        Nor is what an event of the engine's runs to begin the transaction.
        """
        if self._before is None or self._is_busy or not connection.in_transaction():
            return
        self._is_busy = True  # its own statements pass
        try:
            self._before(connection)
        finally:
            self._is_busy = False

    def _on_commit(self, connection: Connection) -> None:
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
        self._refusal = self.refused = None  # its traceback holds the connection


# A guard holds no connection, or none for long: what it calls is taken off it, by the block, and
# what it refuses with, by the rollback.
_GUARDS: WeakKeyDictionary[Connection, Guard] = WeakKeyDictionary()


def guard_of(connection: Connection, database: Database) -> Guard:
    """Return the connection's guard."""
    guard = _GUARDS.get(connection)
    if guard is None:
        guard = _GUARDS[connection] = Guard(connection, database)
    return guard


def refuse_lost_sends(tx: Transaction) -> None:
    """Refuse a transaction that lacks a message: its send was refused, and the block went on.

    Raises:
        FenceUsageError: the caller lets the refusal end the block.
    """
    if tx.refused is not None:
        raise FenceUsageError(
            "a send was refused, so the transaction lacks its message: let the error end the block,"
            f" and begin another one ({tx.refused})"
        ) from tx.refused


def check_outermost(connection: Connection, database: Database) -> None:
    """Refuse what is no real, outermost transaction of one database; begin it where need be.

    Raises:
        FenceUsageError: the caller gives another connection, or enters elsewhere.
        NotDurableError: an operator changes the database's settings.
    """
    if connection.in_nested_transaction():
        raise FenceUsageError(
            "a savepoint alone can be rolled back without its transaction: enter the fence before"
            " begin_nested()"
        )
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        raise FenceUsageError("a two-phase commit is not the block's to end: use a plain one")
    if not connection.in_transaction():
        connection.begin()
    database.check_commit(connection)
    database.begin(connection)
