"""Looks at COMMIT whether the marks of a database transaction are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import event, select

from halfbridge.sql.dialects import roll_back_below
from halfbridge.sql.errors import InboxUsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    Mark = tuple[str, str, int]

# Marks that one statement asks for, three parameters each: old versions of SQLite take 999.
_ASKED_MAX = 100


class MarkGuard:
    """Stands between a connection and its COMMIT. One for each connection, as its listeners stay.

    A database rolls all of a transaction back for some errors: a deadlock, on MariaDB; any error,
    on PostgreSQL. Where the caller swallows the error and commits, Kafka would be told that a
    message is done whose work and mark are gone.
    """

    def __init__(self, connection: Connection) -> None:
        self._marks: list[tuple[Table, Mark]] = []
        self._marks_at: dict[str, int] = {}  # a savepoint's name: how many marks came before it
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "begin", self._on_begin)
        event.listen(connection, "savepoint", self._on_savepoint)
        event.listen(connection, "rollback_savepoint", self._on_rollback_savepoint)

    def add(self, table: Table, mark: Mark) -> None:
        """Take note of a mark that the open transaction has inserted."""
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
                " transaction, for an error that was swallowed (a deadlock, say): let the error end"
                " the transaction, and take the messages again"
            )

    def _on_begin(self, connection: Connection) -> None:
        # Not at the end: SQLAlchemy tells of none where a listener has refused the commit.
        del connection
        self._marks, self._marks_at = [], {}

    def _on_savepoint(self, connection: Connection, name: str) -> None:
        del connection
        self._marks_at[name] = len(self._marks)

    def _on_rollback_savepoint(self, connection: Connection, name: str, context: None) -> None:
        del connection, context
        # One from before this guard was there came before all marks.
        del self._marks[self._marks_at.get(name, 0) :]


_GUARDS: WeakKeyDictionary[Connection, MarkGuard] = WeakKeyDictionary()


def mark_guard_of(connection: Connection) -> MarkGuard:
    """Return the connection's guard."""
    guard = _GUARDS.get(connection)
    if guard is None:
        guard = _GUARDS[connection] = MarkGuard(connection)
    return guard


def _count(connection: Connection, table: Table, marks: list[Mark]) -> int:
    """Return how many of the marks are there."""
    row = table.c
    columns = (row.group_id, row.transaction_id, row.message_index)
    found: set[Mark] = set()
    for at in range(0, len(marks), _ASKED_MAX):
        # Each column by itself: not all databases take their index for a list of whole keys.
        asked = zip(columns, zip(*marks[at : at + _ASKED_MAX], strict=True), strict=True)
        query = select(*columns).where(*(column.in_(set(values)) for column, values in asked))
        found.update((group, name, index) for group, name, index in connection.execute(query))
    return len(found.intersection(marks))
