"""Ports for unit tests: time that stands still, and side threads whose calls are over at once."""

from _thread import allocate_lock
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import Any, cast

from halfbridge.kafka.ports import Ports, Waker


class Clock:
    """A clock that a test sets.

    Attributes:
        now: Monotonic seconds.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        """Return `now` in milliseconds."""
        return int(self.now * 1000)


class _AtOnce:
    """A side thread whose calls have ended when `submit` returns."""

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 (raised again by the future)
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def leave(self) -> None:
        """There is nothing to leave."""


class _Run:
    """Concurrency in which a call is over before the next one begins."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def pause(self, seconds: float) -> None:
        """Have time pass."""
        self._clock.now += seconds

    def side_thread(self, _name: str) -> _AtOnce:
        return _AtOnce()

    def current(self) -> int:
        return 1

    def waker(self) -> Waker:
        """Return a lock that nobody holds."""
        return allocate_lock()

    def event(self) -> Event:
        return Event()

    def close_clients(self, *clients: Any) -> None:
        for client in clients:
            client.close()


def fake_ports(kafka: Any = None, clock: Clock | None = None) -> Ports:
    """Return ports of which Kafka is the test's own."""
    clock = clock or Clock()
    return Ports(kafka, clock, cast("Any", _Run(clock)), lambda: "id")
