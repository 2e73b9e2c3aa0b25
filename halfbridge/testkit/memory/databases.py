"""Database connections of code that is to die: closed uncommitted, and nothing is written after.

Only SQLAlchemy's are known; code that never imported SQLAlchemy has none. What is watched begins
with `Crashes.arm` and ends with the block.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from halfbridge.testkit.memory.step import Step

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect

    from halfbridge.testkit.memory.crash import Crashes


class Databases(Protocol):
    """The database connections that the watched code uses."""

    def watch(self) -> None:
        """Begin to watch."""

    def unwatch(self) -> None:
        """Watch no more."""

    def close(self) -> None:
        """Close what is open, uncommitted."""


def watched_databases(crashes: Crashes) -> Databases:
    """Return the databases of code that may die."""
    return _SqlDatabases(crashes)


class _SqlDatabases:
    """Listens to all engines of this process, while it watches."""

    def __init__(self, crashes: Crashes) -> None:
        self._crashes = crashes
        self._open: set[Connection] = set()
        self._handlers = {
            "begin": self._on_begin,
            "before_cursor_execute": self._on_statement,
            "commit": self._on_commit,
            "rollback": self._on_rollback,
        }
        self._is_watching = False

    def watch(self) -> None:
        """Begin to watch."""
        if "sqlalchemy" not in sys.modules or self._is_watching:
            return
        from sqlalchemy import Engine, event  # noqa: PLC0415  # an extra

        for name, handler in self._handlers.items():
            event.listen(Engine, name, handler)
        self._is_watching = True

    def unwatch(self) -> None:
        """Watch no more."""
        if not self._is_watching:
            return
        from sqlalchemy import Engine, event  # noqa: PLC0415  (SQLAlchemy is optional)

        for name, handler in self._handlers.items():
            event.remove(Engine, name, handler)
        self._is_watching = False
        self._open.clear()

    def close(self) -> None:
        """Close what is open, uncommitted."""
        connections, self._open = self._open, set()
        for connection in connections:
            if connection.closed or connection.invalidated:
                continue
            if _is_in_memory(connection):  # closed, the database itself would be gone
                connection.connection.rollback()
            else:
                connection.invalidate()

    def _on_begin(self, connection: Connection) -> None:
        self._open.add(connection)

    def _on_statement(self, *_: Any) -> None:
        self._crashes.check_alive()

    def _on_commit(self, connection: Connection) -> None:
        from halfbridge.sql.guards import commits_fence_row  # noqa: PLC0415  (SQLAlchemy is optional)

        self._crashes.check_alive()
        if commits_fence_row(connection):
            self._crashes.reach(Step.BEFORE_LOCAL_COMMIT)
            self._follow(connection.dialect)
        self._open.discard(connection)

    def _on_rollback(self, connection: Connection) -> None:
        self._open.discard(connection)

    def _follow(self, dialect: Dialect) -> None:
        """Die right behind the next COMMIT; SQLAlchemy has no event there."""
        commit = dialect.do_commit

        def do_commit(raw: Any) -> None:
            del dialect.do_commit  # the method of the class is there again
            commit(raw)
            self._crashes.reach(Step.AFTER_LOCAL_COMMIT)

        dialect.do_commit = do_commit  # type: ignore[assignment]  # a method, put in place


def _is_in_memory(connection: Connection) -> bool:
    url = connection.engine.url
    return url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}
