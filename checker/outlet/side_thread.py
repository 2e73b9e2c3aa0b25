"""A thread for calls that may never return, and that can be left behind when they do not."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError  # its own on 3.10
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("halfbridge.checker")

# A client that is well closes within a second or two; a group is left, requests are answered.
CLOSE_S_MAX = 15.0

_Work = tuple["Future[None]", "Callable[..., None]", tuple[Any, ...]]


class SideThread:
    """Runs calls one after the other, in order.

    Unlike an executor's, its thread never holds up the end of the process.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        Thread(target=_serve, args=(self._work,), name=name, daemon=True).start()

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        """Have `call(*arguments)` run; the future has its end or what it raised."""
        future: Future[None] = Future()
        self._work.put((future, call, arguments))
        return future

    def leave(self) -> None:
        """End the thread once the call at hand returns, if it ever does."""
        self._work.put(None)


def let_go(client: Any) -> None:
    """Close a client; return when it is closed, has failed at it, or did not end in time.

    Of a client that is not well, closing may wait for ever for a thread that never comes
    (librdkafka #4674). Such a one is left behind, alive: whatever it calls back must not mind.
    """
    thread = SideThread("halfbridge-close")
    closing = thread.submit(client.close)
    thread.leave()
    try:
        error = closing.exception(CLOSE_S_MAX)
    except LateError:
        _log.warning("a Kafka client does not close within %g s: left behind", CLOSE_S_MAX)
    else:
        if error is not None:
            _log.debug("a Kafka client did not close well: %s", error)


def _serve(work: SimpleQueue[_Work | None]) -> None:
    while (item := work.get()) is not None:
        future, call, arguments = item
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            future.set_exception(error)
        else:
            future.set_result(None)
        del item, future, call, arguments  # an idle thread keeps no producer alive
