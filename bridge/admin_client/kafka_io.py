"""AdminClient, destroyed in a thread of this module's own and in no other."""

from __future__ import annotations

import atexit
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from confluent_kafka import admin

# Clients that nothing refers to any more. `put` may be called by a finalizer, in any thread.
_unused: SimpleQueue[Any] = SimpleQueue()
_start_lock = Lock()
_closer: Thread | None = None
# Once the interpreter ends no other thread runs Python: the main thread destroys what is left.
_is_ending = False


class AdminClient(admin.AdminClient):  # type: ignore[misc]
    """The client library's AdminClient; may be dropped at any moment, in any thread.

    librdkafka hands answers over in a thread of the client's own, which makes Python objects of
    them. Where that starts a garbage collection, and the client is part of the garbage, librdkafka
    is destroyed by its own thread, and ends the process for that (SIGABRT; confluent-kafka-python
    #2131). Here the finalizer keeps the client alive, and another thread closes it.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        _start()
        super().__init__(*arguments, **keywords)

    def __del__(self) -> None:
        """Live on until the closing thread has closed this."""
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
        with suppress(Exception):  # nobody is left who could be told
            client.__exit__(None, None, None)
        del client  # now its finalizer does not run again, and there is nothing to destroy
