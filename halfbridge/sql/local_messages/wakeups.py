"""Wakes an idle relay: by PostgreSQL's notifications, else by the clock."""

from __future__ import annotations

import logging
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
_LISTEN_SLICE_S = 0.5  # how soon a listener notices that it must stop
_RECONNECT_S = 1.0  # meanwhile the clock wakes the relay
# After this time without a notification the connection is tested: through a dead connection no
# notification would ever come.
_PROBE_S = 10.0


class Wakeups:
    """Waits that grow while there is nothing to do. Only `wake` is thread-safe.

    Args:
        wait_ms_min: First wait.
        wait_ms_max: Longest wait.
        is_told: Tells whether notifications come, so that short waits are not needed.
    """

    def __init__(
        self, wait_ms_min: int, wait_ms_max: int, is_told: Callable[[], bool] = lambda: False
    ) -> None:
        self._event = Event()
        self._wait_ms_min, self._wait_ms_max = wait_ms_min, wait_ms_max
        self._wait_ms = wait_ms_min
        self._is_told = is_told

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._event.set()

    def begin(self) -> None:
        """Note that a look begins: only later calls of `wake` count."""
        self._event.clear()

    def worked(self) -> None:
        """Note that the look has found work."""
        self._wait_ms = self._wait_ms_min

    def wait(self) -> None:
        """Wait until `wake` is called, or up to a time that grows with each call."""
        wait_ms = self._wait_ms_max if self._is_told() else self._wait_ms
        self._wait_ms = min(self._wait_ms_max, 2 * self._wait_ms)
        if self._event.wait(wait_ms / 1_000):
            self._wait_ms = self._wait_ms_min


class Listener:
    """Listens to the notifications of the table's writers, on its own connection (PostgreSQL).

    A driver without notifications, or a server that is down, is no failure: meanwhile the clock
    wakes the relay.
    """

    def __init__(self, messages: LocalMessages, wake: Callable[[], object]) -> None:
        self._messages = messages
        self._wake = wake
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="halfbridge-listen", daemon=True)
        self.is_listening = False

    def start(self) -> None:
        """Begin to listen, if the database has notifications."""
        if self._messages.engine.dialect.name == "postgresql":
            self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        level = logging.WARNING  # the first time only
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001  (drivers raise their own)
                _LOG.log(level, "no notifications of local messages, polling: %s", error)
                level = logging.DEBUG
            self.is_listening = False
            self._stopping.wait(_RECONNECT_S)

    def _listen(self) -> None:
        with self._messages.engine.connect() as connection:
            connection.detach()  # closed at the end, and replaced in the pool
            driver: Any = connection.connection.dbapi_connection
            driver.autocommit = True
            name = self._messages.channel.replace('"', '""')
            driver.execute(f'LISTEN "{name}"')
            self.is_listening = True
            self._wake()  # for rows that were inserted before
            probe_at = monotonic() + _PROBE_S
            while not self._stopping.is_set():
                for _ in driver.notifies(timeout=_LISTEN_SLICE_S):
                    self._wake()
                    probe_at = monotonic() + _PROBE_S
                if monotonic() >= probe_at:
                    self._probe(driver)
                    probe_at = monotonic() + _PROBE_S
                if driver.closed:
                    raise SQLAlchemyError("the connection that listens is closed")

    def _probe(self, driver: Any) -> None:
        """Test whether the connection is alive; meanwhile the clock wakes the relay."""
        self.is_listening = False
        driver.execute("")
        self.is_listening = True
