"""Reads the database's log to learn of new rows in the local message table, instead of polling.

The log only says when to look at the table. Rows are claimed in the table, so an insert that the
log reports twice, or not at all, does no harm. So the server keeps no log for a relay that does not
run. After every interruption the relay looks at the whole table.
"""

from __future__ import annotations

import logging
import re
from hashlib import sha256
from threading import Event, Thread
from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.errors import (
    LogSubscriptionError,
    LogUnavailableError,
    PositionLostError,
    ReadingStoppedError,
)
from halfbridge.sql.log_subscription.sources import log_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from halfbridge.sql.log_subscription.changes import LogSource

_LOG = logging.getLogger("halfbridge.sql")
_READ_MAX = 1_000  # changes; they only wake, so nothing is kept of them
_READ_SLICE_S = 0.5  # how soon a stop is noticed
# The log reports a commit shortly before the rows become visible to other transactions.
_LOOK_AGAIN_S = 0.02
_RECONNECT_S = 1.0
_READABLE_CHARS_MAX = 20  # PostgreSQL allows 63 for the slot's whole name


class LogListener:
    """Calls `wake` in a separate thread when rows were inserted into a table.

    Args:
        engine: SQLAlchemy engine for the table's database, PostgreSQL or MariaDB.
        table: Name of the table.
        schema: Schema of the table; None: the engine's default schema.
        wake: Called in the thread when the caller should look at the table.

    Raises:
        LogSettingsError: halfbridge cannot read the log of this kind of database.
    """

    def __init__(
        self, engine: Engine, *, table: str, wake: Callable[[], object], schema: str | None = None
    ) -> None:
        self._source = log_source(engine, name=_name(schema, table), table=table, schema=schema)
        self._table = table
        self._wake = wake
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="halfbridge-log-wakeups", daemon=True)
        self.is_listening = False

    def start(self) -> None:
        """Begin to read the log."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; returns when the thread has ended."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._source.open_now(lambda: not self._stopping.is_set())
                self.is_listening = True
                self._wake()  # for what was committed before
                self._follow(self._source)
            except ReadingStoppedError:
                return
            except LogSubscriptionError as error:
                _LOG.log(_level(error), "%s is looked at by the clock: %s", self._table, error)
            finally:
                self.is_listening = False
                self._source.close()
            self._wake()
            self._stopping.wait(_RECONNECT_S)

    def _follow(self, source: LogSource) -> None:
        is_fresh = False  # the rows of the last wake may not have been visible yet
        while not self._stopping.is_set():
            found = source.read(_READ_MAX, _LOOK_AGAIN_S if is_fresh else _READ_SLICE_S)
            # The server may remove the log at once: after a restart the whole table is looked at.
            source.advance(source.read_to)
            if found or is_fresh:
                self._wake()
            is_fresh = bool(found)


def _name(schema: str | None, table: str) -> str:
    """Return a name for the table's publication; short, because a slot's name adds a suffix."""
    readable = re.sub(r"[^a-z0-9_]", "_", table.lower())[:_READABLE_CHARS_MAX]
    return f"wakeups_{readable}_{sha256(repr((schema, table)).encode()).hexdigest()[:8]}"


def _level(error: LogSubscriptionError) -> int:
    lasting = isinstance(error, PositionLostError) or not isinstance(error, LogUnavailableError)
    return logging.WARNING if lasting else logging.INFO
