"""The result of a produced record, as a future."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from threading import Lock

    from halfbridge.kafka.ports import Waker


class Server(Protocol):
    """The part of `DeliveryServer` that its deliveries use."""

    guard: Lock
    woken: deque[Delivery]
    ready: deque[Delivery]
    new_waker: Callable[[], Waker]

    def await_release(self, delivery: Delivery, waker: Waker, timeout_s: float) -> None:
        """Wait for `waker`, which `delivery` releases."""

    def run_guarded(self, callback: Callable[[Any], object], delivery: Delivery) -> None:
        """Run a user's callback; an exception is logged."""


class Delivery:
    """A future of one record: thread-safe, and cheap, because it has no lock or condition.

    Callbacks run in the thread that serves acknowledgements. Callbacks must not block; they may
    send and decide in the pipelined form. An exception of a callback is logged (Ctrl-C is raised).
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_server", "_wakers", "offset", "timestamp")

    # Subclasses do not extend this method: a call through super() costs as much as the method.
    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_done = False
        self._error: Any = None
        self._wakers: list[Waker] | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None
        self.offset = self.timestamp = -1

    def done(self) -> bool:
        """Tell whether the record was acknowledged or has failed."""
        return self._is_done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(self)` once this is done; if this is done already, at once."""
        with self._server.guard:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self._is_done:
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Run the callbacks that have not run yet (for the server)."""
        while self._callbacks:
            with suppress(IndexError):  # popping is atomic: each runs in one thread only
                self._server.run_guarded(self._callbacks.pop(0), self)

    def fail(self, error: BaseException) -> None:
        """Note why the record failed, before `settle` (for subclasses)."""
        self._error = error

    def settle(self) -> None:
        """Mark as done, and have the server wake waiting threads (for subclasses, in `poll`)."""
        self._is_done = True
        if self._wakers is not None:
            self._server.woken.append(self)
        if self._callbacks:
            self._server.ready.append(self)

    def wake(self) -> None:
        """Wake the waiting threads (for the server)."""
        wakers = self._wakers
        while wakers:
            with suppress(IndexError):  # another thread was quicker
                wakers.pop().release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until done, at most `timeout_s`; tell whether it is."""
        if self._is_done:
            return True
        waker = self._server.new_waker()
        waker.acquire()
        with self._server.guard:
            if self._wakers is None:
                self._wakers = []
            self._wakers.append(waker)
        if not self._is_done:  # else `settle` may have run before the waker was added
            self._server.await_release(self, waker, timeout_s)
        return self._is_done
