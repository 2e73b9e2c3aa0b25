"""The client library's AdminClient, closed where that does no harm."""

from __future__ import annotations

import atexit
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from confluent_kafka import admin

# Clients without a reference, which are to be closed. A finalizer may call `put`, in any thread.
# Without a limit, since a finalizer cannot wait. A process makes one client for each cluster, and a
# new client only in place of the one before.
_unused: SimpleQueue[Any] = SimpleQueue()
_start_lock = Lock()
_closer: Thread | None = None
# Once the interpreter ends, no other thread runs Python: the main thread destroys what is left.
_is_ending = False


class AdminClient(admin.AdminClient):  # type: ignore[misc]  # it has no types
    """The client library's AdminClient; may be dropped at any moment, in any thread.

    librdkafka hands over answers in a thread of its own, and this thread makes Python objects of
    them. That may start a garbage collection. If the client itself is garbage, librdkafka is then
    destroyed by its own thread, and aborts the process (SIGABRT; confluent-kafka-python #2131). To
    prevent this, the finalizer keeps the client alive, and another thread closes the client.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        _start()
        super().__init__(*arguments, **keywords)

    def __del__(self) -> None:
        """Keep this client alive until the closing thread has closed it."""
        if not _is_ending:
            _unused.put(self)


def _start() -> None:
    global _closer  # noqa: PLW0603  (one thread a process; a child process starts its own)
    with _start_lock:
        if _closer is None or not _closer.is_alive():
            _closer = Thread(target=_close_unused, name="halfbridge-admin-close", daemon=True)
            _closer.start()


@atexit.register
def _end() -> None:
    global _is_ending  # noqa: PLW0603  (the interpreter ends once)
    _is_ending = True


def _close_unused() -> None:
    while True:
        client = _unused.get()
        with suppress(Exception):  # nobody is left to whom it could be reported
            client.__exit__(None, None, None)
        del client  # the client is closed, and its finalizer does not run again
