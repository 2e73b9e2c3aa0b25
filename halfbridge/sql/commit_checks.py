"""What this package does when a connection commits: all checks first, then what counts as sent.

SQLAlchemy calls the listeners of "commit" in the order in which they were added. The inbox and the
fence may be used in either order in one database transaction. The checks run statements, and a
check may refuse the commit; so whoever records that COMMIT goes out must come last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    Listener = Callable[[Connection], None]


class _OnCommit:
    """The one listener of a connection's "commit"."""

    def __init__(self, connection: Connection) -> None:
        self.checks: list[Listener] = []
        self.last: list[Listener] = []
        event.listen(connection, "commit", self._on_commit)

    def _on_commit(self, connection: Connection) -> None:
        for each in (*self.checks, *self.last):
            each(connection)


_LISTENERS: WeakKeyDictionary[Connection, _OnCommit] = WeakKeyDictionary()


def check_before_commit(connection: Connection, check: Listener) -> None:
    """Call `check` before each COMMIT of the connection; it may run statements, and refuse."""
    _of(connection).checks.append(check)


def before_commit(connection: Connection, last: Listener) -> None:
    """Call `last` before each COMMIT of the connection, once no check has refused it."""
    _of(connection).last.append(last)


def reached_driver(error: BaseException) -> bool:
    """Tell whether the commit that failed with `error` was handed to the driver.

    Another listener, of the application's, may have refused it after this package had let it pass.
    """
    trace = error.__traceback__
    while trace is not None:
        # Each dialect of SQLAlchemy commits in its method of this name.
        if trace.tb_frame.f_code.co_name == "do_commit":
            return True
        trace = trace.tb_next
    return False


def _of(connection: Connection) -> _OnCommit:
    found = _LISTENERS.get(connection)
    if found is None:
        found = _LISTENERS[connection] = _OnCommit(connection)
    return found
