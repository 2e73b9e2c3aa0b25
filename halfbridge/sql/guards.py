"""Guards a connection until its database transaction ends: its fence row, and its inbox marks.

The inbox's check of its marks runs statements, and may refuse the commit. So the fence, which
records that COMMIT goes out, comes after it, whichever of the two was used first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from sqlalchemy import TwoPhaseTransaction, bindparam, event, select

from halfbridge.sql.dialects.base import roll_back_below
from halfbridge.sql.errors import FenceUsageError, InboxUsageError, TransactionEndedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, ExceptionContext, Select, Table

    from halfbridge.bridge import Transaction
    from halfbridge.sql.dialects import Database

    Mark = tuple[str, str, int]


class Guard:
    """Is called before each statement and before COMMIT of one connection, and may refuse them.

    Attributes:
        is_commit_sent: Whether COMMIT was handed to the driver, so that its outcome may be unknown.
        is_over: Whether the guarded transaction has ended.
        commits_row: Whether the COMMIT that goes out commits a fence row.
        refused: The error with which a commit was refused; None: no commit was refused.
    """

    def __init__(self, connection: Connection, database: Database) -> None:
        self._database = database
        self._transaction_id = ""
        self._tag: str | None = None
        self._refusal: Exception | None = None
        self._before: Callable[[Connection], None] | None = None
        self._is_busy = False
        self._then: list[Callable[[bool], None]] = []
        self._sent: list[Callable[[bool], None]] = []  # of the COMMIT that was sent last
        self._is_followed = False
        self.is_commit_sent = False
        self.is_over = True
        self._transaction: ref[object] | None = None
        self.commits_row = False
        self.refused: Exception | None = None
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "before_cursor_execute", self.before_statement)

    def arm(self, connection: Connection, transaction_id: str) -> None:
        """Begin to guard the open transaction. It cannot commit until `pass_with` is called.

        `transaction_id` is that of the message transaction. Raises the error with which the open
        transaction was refused before.
        """
        if self._refusal is not None and not self.is_over:
            raise self._refusal
        was_open, self._transaction_id = not self.is_over, transaction_id
        # Weak: the transaction refers to its connection, whose listeners refer to this guard.
        transaction = connection.get_transaction()
        self._transaction = None if transaction is None else ref(transaction)
        self.is_commit_sent = self.is_over = False
        self.refuse(FenceUsageError("the fence row was not written; nothing was committed"))
        tag, self._tag = self._tag, None
        if was_open and tag is not None and not self._database.is_tagged(connection, tag):
            self._then = []  # the database has rolled back, by itself, an earlier row of this one

    @property
    def is_watched(self) -> bool:
        """Whether a block of a fence runs on the connection."""
        return self._before is not None

    def is_of(self, transaction: object) -> bool:
        """Return whether the guarded transaction is this one, SQLAlchemy's object."""
        return self._transaction is not None and self._transaction() is transaction

    def refuse(self, error: Exception) -> None:
        """Refuse the commit of the open transaction with `error`."""
        self._refusal = error

    def forbid(self, error: Exception) -> None:
        """Refuse the commit of the open transaction with `error`, a fence's block around it too."""
        self.is_commit_sent = self.is_over = False
        self._refusal = self.refused = error

    def pass_with(self, tag: str | None) -> None:
        """Allow the open transaction to commit if it is still the tagged one (None: any)."""
        self._tag = tag
        self._refusal = None

    def follow(self, connection: Connection, then: Callable[[bool], None]) -> None:
        """Call `then(True)` when COMMIT is sent, and `then(False)` if it fails.

        Neither is called if the transaction is rolled back.
        """
        self._then.append(then)
        if not self._is_followed:  # listeners take 30 us, and a block has its own way to know
            self._is_followed = True
            event.listen(connection, "begin", self._on_begin)
            # SQLAlchemy calls no listener of a connection's when a COMMIT fails.
            event.listen(connection.dialect, "handle_error", _on_error)

    def watch(self, before: Callable[[Connection], None] | None) -> None:
        """Call `before` before each statement from now on; None: call nothing.

        Raises FenceUsageError: a block inside of another one; the programmer corrects it.
        """
        if before is not None and self._before is not None:
            raise FenceUsageError(
                "a fence's block inside of another one, on the same session: take one block for all"
                " work, or give the inner one a session of its own"
            )
        self._before = before

    def before_statement(self, connection: Connection, *_: object) -> None:
        """Call the function given to `watch`, except for statements of that function itself.

        A listener of the engine may run statements that begin the transaction; they do not count.
        """
        if self._before is None or self._is_busy or not connection.in_transaction():
            return
        self._is_busy = True  # statements of `_before` itself are not watched
        try:
            self._before(connection)
        finally:
            self._is_busy = False

    def before_commit(self, connection: Connection) -> None:
        """Refuse COMMIT, or record that it goes out.

        Raises TransactionEndedError: the database transaction has ended before; the caller corrects
        the block. Raises the error given to `refuse`, whose class says who acts.
        """
        self.commits_row = False
        if self.is_over:
            return
        if self._refusal is not None:
            refusal = self._refusal
            self._end(connection)
            self.refused = refusal
            raise refusal
        tag, self._tag = self._tag, None
        if tag is not None and not self._database.is_tagged(connection, tag):
            self._end(connection)
            raise TransactionEndedError(transaction_id=self._transaction_id)
        self.is_commit_sent = self.is_over = True
        self.commits_row = tag is not None
        self._sent, self._then = self._then, []
        for each in self._sent:
            each(True)  # noqa: FBT003  (see follow)

    def commit_failed(self) -> None:
        """Take back what was called when COMMIT was sent: it has failed, or is in doubt."""
        sent, self._sent = self._sent, []
        for each in sent:
            each(False)  # noqa: FBT003  (see follow)

    def _on_begin(self, connection: Connection) -> None:
        del connection
        self._sent = []

    def _end(self, connection: Connection) -> None:
        self._on_rollback(connection)
        roll_back_below(connection)

    def _on_rollback(self, connection: Connection) -> None:
        del connection
        self.is_over = True
        self._then = []
        self._refusal = self.refused = None  # an error's traceback refers to the connection


def refuse_lost_sends(tx: Transaction) -> None:
    """Refuse a transaction that lacks a message, because the code ignored a refused send.

    Raises FenceUsageError: it does; the caller lets the error end the block, and begins another.
    """
    if tx.refused is not None:
        raise FenceUsageError(
            "a send was refused, so the transaction lacks its message: let the error end the block,"
            f" and begin another one ({tx.refused})"
        ) from tx.refused


def check_outermost(connection: Connection, database: Database) -> None:
    """Check that the connection's transaction is the outermost one; begin it if necessary.

    A FenceUsageError says what the caller must change; after NotDurableError an operator acts.
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


# Marks that one query selects, with three parameters each: old versions of SQLite accept 999.
_ASKED_MAX = 100
_TABLES_MAX = 64  # whose statements are kept: one for each inbox of a process, which has a few


class MarkGuard:
    """Refuses COMMIT if the database has rolled marks back by itself. One for each connection.

    Some errors roll a whole transaction back: a deadlock on MariaDB, any error on PostgreSQL. If
    the caller ignores the error and commits, it would then commit the message's offset to Kafka.
    """

    def __init__(self, connection: Connection) -> None:
        self._marks: list[tuple[Table, Mark]] = []
        self._marks_at: dict[str, int] = {}  # a savepoint's name: how many marks came before it
        event.listen(connection, "begin", self._on_begin)
        event.listen(connection, "savepoint", self._on_savepoint)
        event.listen(connection, "rollback_savepoint", self._on_rollback_savepoint)

    def add(self, table: Table, mark: Mark) -> None:
        """Record a mark that the open transaction has inserted."""
        self._marks.append((table, mark))

    def before_commit(self, connection: Connection) -> None:
        """Refuse COMMIT if marks are missing.

        Raises InboxUsageError: they are; the caller takes the messages again.
        """
        marks, self._marks, self._marks_at = self._marks, [], {}
        try:
            left = sum(
                _count(connection, table, [mark for each, mark in marks if each is table])
                for table in {each: None for each, _ in marks}
            )
        except BaseException:
            roll_back_below(connection)
            raise
        if left < len(marks):
            roll_back_below(connection)
            raise InboxUsageError(
                f"the database has rolled back {len(marks) - left} of {len(marks)} marks of this"
                " transaction, after an error that the code ignored (a deadlock, say): let the"
                " error end the transaction, and take the messages again"
            )

    def _on_begin(self, connection: Connection) -> None:
        # Not at the end: SQLAlchemy has no event after a listener has refused the commit.
        del connection
        self._marks, self._marks_at = [], {}

    def _on_savepoint(self, connection: Connection, name: str) -> None:
        del connection
        self._marks_at[name] = len(self._marks)

    def _on_rollback_savepoint(self, connection: Connection, name: str, context: None) -> None:
        del connection, context
        # A savepoint that is older than this guard precedes all marks.
        del self._marks[self._marks_at.get(name, 0) :]


def _count(connection: Connection, table: Table, marks: list[Mark]) -> int:
    found: set[Mark] = set()
    for at in range(0, len(marks), _ASKED_MAX):
        values = (set(each) for each in zip(*marks[at : at + _ASKED_MAX], strict=True))
        asked = dict(zip(("groups", "names", "indexes"), values, strict=True))
        rows = connection.execute(_named_marks(table), asked)
        found.update((group, name, index) for group, name, index in rows)
    return len(found.intersection(marks))


@lru_cache(_TABLES_MAX)  # SQLAlchemy makes reference cycles as it builds an IN
def _named_marks(table: Table) -> Select[str, str, int]:
    row = table.c
    # One IN for each column: not all databases use their index for a list of whole keys.
    return select(row.group_id, row.transaction_id, row.message_index).where(
        row.group_id.in_(bindparam("groups", expanding=True)),
        row.transaction_id.in_(bindparam("names", expanding=True)),
        row.message_index.in_(bindparam("indexes", expanding=True)),
    )


class _Guards:
    """The guards of one connection, and its one listener of "commit"."""

    def __init__(self, connection: Connection) -> None:
        self.fence: Guard | None = None
        self.marks: MarkGuard | None = None
        event.listen(connection, "commit", self._on_commit)

    def _on_commit(self, connection: Connection) -> None:
        if self.marks is not None:
            self.marks.before_commit(connection)
        if self.fence is not None:
            self.fence.before_commit(connection)


# The connection owns its guards, by its listeners. A reference from here would keep them for ever:
# they refer to the connection, by its transaction, a block's function or an error's traceback.
_GUARDS: WeakKeyDictionary[Connection, ref[_Guards]] = WeakKeyDictionary()


def _guards_of(connection: Connection) -> _Guards:
    found = _found(connection)
    if found is None:
        found = _Guards(connection)
        _GUARDS[connection] = ref(found)
    return found


def _found(connection: Connection) -> _Guards | None:
    guards = _GUARDS.get(connection)
    return None if guards is None else guards()


def _on_error(context: ExceptionContext) -> None:
    """Let the fence's guard know that a COMMIT has failed."""
    if context.statement is None and context.connection is not None:
        guards = _found(context.connection)
        if guards is not None and guards.fence is not None:
            guards.fence.commit_failed()


def guard_of(connection: Connection, database: Database) -> Guard:
    """Return the guard of the connection; make it if necessary."""
    guards = _guards_of(connection)
    if guards.fence is None:
        guards.fence = Guard(connection, database)
    return guards.fence


def mark_guard_of(connection: Connection) -> MarkGuard:
    """Return the guard of the connection's marks; make it if necessary."""
    guards = _guards_of(connection)
    if guards.marks is None:
        guards.marks = MarkGuard(connection)
    return guards.marks


def commits_fence_row(connection: Connection) -> bool:
    """Return whether COMMIT commits a fence row, for a test's listener of the engine's "commit"."""
    guards = _found(connection)
    return guards is not None and guards.fence is not None and guards.fence.commits_row


def reached_driver(error: BaseException) -> bool:
    """Return whether the commit that failed with `error` was handed to the driver.

    Another listener, of the application's, may have refused it after this package had let it pass.
    """
    trace = error.__traceback__
    while trace is not None:
        # Each dialect of SQLAlchemy commits in its method of this name.
        if trace.tb_frame.f_code.co_name == "do_commit":
            return True
        trace = trace.tb_next
    return False
