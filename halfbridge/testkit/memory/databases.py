"""Database connections of code that is to die: closed uncommitted, and nothing is written after.

Only SQLAlchemy's are known; code that never imported SQLAlchemy has none. What is watched begins
with `Crashes.arm` and ends with the block.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from halfbridge.testkit.memory.crash import Crashes


class Databases(Protocol):
    """The database connections that the watched code uses."""

    def watch(self) -> None:
        """Begin to watch."""

    def unwatch(self) -> None:
        """Watch no more."""

    def look(self) -> None:
        """Die here, where a local transaction has committed and that is the step."""

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
        self._committed: Connection | None = None  # COMMIT of a fence row went out, or was refused
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
        from sqlalchemy import Engine, event  # noqa: PLC0415

        for name, handler in self._handlers.items():
            event.remove(Engine, name, handler)
        self._is_watching = False
        self._open.clear()
        self._committed = None

    def look(self) -> None:
        """Die here, where a local transaction has committed and that is the step."""
        if self._committed is not None:
            from halfbridge.testkit.memory.crash import Step  # noqa: PLC0415

            self._committed = None
            self._crashes.reach(Step.AFTER_LOCAL_COMMIT)

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
        self._crashes.check_alive()
        self.look()
        self._open.add(connection)

    def _on_statement(self, *_: Any) -> None:
        self._crashes.check_alive()
        self.look()

    def _on_commit(self, connection: Connection) -> None:
        from halfbridge.sql.fence_guard import commits_fence_row  # noqa: PLC0415
        from halfbridge.testkit.memory.crash import Step  # noqa: PLC0415

        self._crashes.check_alive()
        if commits_fence_row(connection):
            self._crashes.reach(Step.BEFORE_LOCAL_COMMIT)
            self._committed = connection
        self._open.discard(connection)

    def _on_rollback(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._committed is connection:
            self._committed = None


def _is_in_memory(connection: Connection) -> bool:
    url = connection.engine.url
    return url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}
