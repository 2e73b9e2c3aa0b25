"""Implements the ports of concurrency by the system's threads and clocks."""

from __future__ import annotations

import logging
import sys
import time
from _thread import allocate_lock, get_ident
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import Queue, SimpleQueue
from threading import Event, Lock, Thread, main_thread
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.kafka.ports import CallQueue, Waker

_LOG = logging.getLogger("halfbridge.kafka")
# A healthy client closes within two seconds. Less than the daemon's session time-out, so that the
# successor joins in time.
CLOSE_S_MAX = 8.0
# Clients left behind in one process: each holds a few threads and the records that it fetched.
LEFT_MAX = 16
# Clients that were left behind in this process and have not closed since.
_left: list[Future[None]] = []
_left_lock = Lock()
_Work = tuple["Future[None]", "Callable[..., None]", tuple[Any, ...]]


def check_native_threads() -> None:
    """Raise ConfigError if gevent or eventlet has patched `threading`.

    The Kafka client waits in C code, where no greenlet yields: the first wait would stop all
    greenlets for ever. The user chooses another kind of worker.
    """
    for package, module, function, name in (
        ("gevent", "gevent.monkey", "is_module_patched", "threading"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched", "thread"),
    ):
        patcher = sys.modules.get(module)  # a process that has patched has imported it
        if patcher is not None and getattr(patcher, function)(name):
            raise ConfigError(
                field="threading",
                value="greenlets",
                origin=f"{package}'s monkey patching",
                allowed="native threads, because the Kafka client would block all greenlets: use"
                " gunicorn's worker class gthread, Celery's pool prefork or threads, or do not"
                " patch threads (monkey.patch_all(thread=False), eventlet.monkey_patch(thread="
                "False))",
            )


class SystemClock:
    """The clocks of this machine."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time_ms() -> int:
        return time.time_ns() // 1_000_000


class Threads:
    """Calls that run concurrently in threads of the system."""

    current = staticmethod(get_ident)
    pause = staticmethod(time.sleep)

    @staticmethod
    def start(call: Callable[[], None], name: str) -> Thread:
        thread = Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread

    @staticmethod
    def is_main() -> bool:
        return get_ident() == main_thread().ident

    @staticmethod
    def event() -> Event:
        return Event()

    @staticmethod
    def waker() -> Waker:
        return allocate_lock()

    @staticmethod
    def queue(items_max: int = 0) -> CallQueue:
        return Queue(items_max) if items_max else SimpleQueue()

    @staticmethod
    def side_thread(name: str) -> SideThread:
        return SideThread(name)

    @staticmethod
    def close_clients(*clients: Any) -> None:
        """Close clients; return when each is closed, has failed to close, or is out of time.

        In a broken client, closing may wait for ever for a thread that never ends (librdkafka
        #4674). Such a client is left behind, alive: its callbacks may still be called. Raises
        RuntimeError: too many were left behind; a supervisor restarts the process.
        """
        closings = [closing for client in clients if (closing := _closing(client)) is not None]
        _, late = wait(closings, CLOSE_S_MAX)
        if late:
            _LOG.warning(
                "%d Kafka clients did not close within %g s; continuing without them",
                len(late),
                CLOSE_S_MAX,
            )
        with _left_lock:
            _left[:] = [each for each in (*_left, *late) if not each.done()]
        if late and len(_left) > LEFT_MAX:
            raise RuntimeError(f"{len(_left)} Kafka clients did not close: restart this process")


class SideThread:
    """Runs calls in order in a daemon thread, which never delays the end of the process."""

    # The queue needs no limit: a caller waits for the call before (one close, or one commit):
    # exception E-004 of DESIGN.md.
    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        Thread(target=_serve, args=(self._work,), name=name, daemon=True).start()

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        self._work.put((future, call, arguments))
        return future

    def leave(self) -> None:
        self._work.put(None)


def _closing(client: Any) -> Future[None] | None:
    try:
        thread = SideThread("halfbridge-close")
    except RuntimeError:  # the interpreter ends (3.12), or there are no more threads
        client.close()
        return None
    closing = thread.submit(client.close)
    thread.leave()
    return closing


def _serve(work: SimpleQueue[_Work | None]) -> None:
    while (item := work.get()) is not None:
        future, call, arguments = item
        try:
            call(*arguments)
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            future.set_exception(error)
        else:
            future.set_result(None)
        del item, future, call, arguments  # else an idle thread would keep a producer alive


@contextmanager
def locked(waker: Waker) -> Iterator[None]:
    """Hold `waker` like a lock, in a block that waits or calls a port; waits for other holders.

    A `threading.Lock` must not be used there: in the memory stack one scheduler runs all calls in
    one thread, and the lock would stop the call that would release it.
    """
    waker.acquire()
    try:
        yield
    finally:
        waker.release()
