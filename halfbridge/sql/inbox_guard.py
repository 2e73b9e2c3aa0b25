"""Checks before COMMIT that the marks of a database transaction still exist."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import event, select

from halfbridge.sql.commit_checks import check_before_commit
from halfbridge.sql.dialects import roll_back_below
from halfbridge.sql.errors import InboxUsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    Mark = tuple[str, str, int]

# Marks that one query selects, with three parameters each: old versions of SQLite accept 999.
_ASKED_MAX = 100


class MarkGuard:
    """Refuses COMMIT if the database has rolled marks back by itself. One for each connection.

    Some errors roll a whole transaction back: a deadlock on MariaDB, any error on PostgreSQL. If
    the caller then ignores the error and commits, work and mark are lost. Without this guard the
    caller would go on to commit the message's offset to Kafka.
    """

    def __init__(self, connection: Connection) -> None:
        self._marks: list[tuple[Table, Mark]] = []
        self._marks_at: dict[str, int] = {}  # a savepoint's name: how many marks came before it
        check_before_commit(connection, self._on_commit)
        event.listen(connection, "begin", self._on_begin)
        event.listen(connection, "savepoint", self._on_savepoint)
        event.listen(connection, "rollback_savepoint", self._on_rollback_savepoint)

    def add(self, table: Table, mark: Mark) -> None:
        """Record a mark that the open transaction has inserted."""
        self._marks.append((table, mark))

    def _on_commit(self, connection: Connection) -> None:
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


_GUARDS: WeakKeyDictionary[Connection, MarkGuard] = WeakKeyDictionary()


def mark_guard_of(connection: Connection) -> MarkGuard:
    """Return the guard of the connection; make it if necessary."""
    guard = _GUARDS.get(connection)
    if guard is None:
        guard = _GUARDS[connection] = MarkGuard(connection)
    return guard


def _count(connection: Connection, table: Table, marks: list[Mark]) -> int:
    """Return how many of the marks exist."""
    row = table.c
    columns = (row.group_id, row.transaction_id, row.message_index)
    found: set[Mark] = set()
    for at in range(0, len(marks), _ASKED_MAX):
        # One IN for each column: not all databases use their index for a list of whole keys.
        asked = zip(columns, zip(*marks[at : at + _ASKED_MAX], strict=True), strict=True)
        query = select(*columns).where(*(column.in_(set(values)) for column, values in asked))
        found.update((group, name, index) for group, name, index in connection.execute(query))
    return len(found.intersection(marks))
