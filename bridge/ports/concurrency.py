"""The ports for clocks, and for calls that run concurrently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Tells the time."""

    def monotonic(self) -> float:
        """Return seconds since some moment; never goes back."""

    def time_ms(self) -> int:
        """Return milliseconds since 1970, by a clock that can be set."""


class Event(Protocol):
    """A flag that can be waited for; `threading.Event` is one."""

    def set(self) -> None:
        """Set the flag and wake the waiting threads."""

    def clear(self) -> None:
        """Clear the flag."""

    def is_set(self) -> bool:
        """Tell whether the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set; tell whether it is."""


class Waker(Protocol):
    """A lock that one thread acquires twice and another releases; `_thread.lock` is one."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  (as threading and queue have it)
        """Acquire the lock, waiting for it; tell whether it was acquired."""

    def release(self) -> None:
        """Release the lock."""


class Line(Protocol):
    """A queue between concurrent calls; `queue.Queue` is one."""

    def put_nowait(self, item: Any) -> None:
        """Add an item; raises queue.Full."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002  (as threading and queue have it)
        """Take an item, waiting for it; raises queue.Empty."""

    def get_nowait(self) -> Any:
        """Take an item; raises queue.Empty."""


class Running(Protocol):
    """A call that runs concurrently; `threading.Thread` is one."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the call has ended."""

    def is_alive(self) -> bool:
        """Tell whether the call has begun and not ended."""

    @property
    def ident(self) -> int | None:
        """What `Concurrency.current` returns inside the call; None before it has begun."""


class Call(Protocol):
    """A call in a side thread; `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Tell whether the call has returned or raised."""

    def result(self, timeout: float | None = None) -> None:
        """Wait for the call's end; raises its exception, or TimeoutError."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end and return its exception; raises TimeoutError."""


class SideThread(Protocol):
    """Runs calls one after the other, concurrently to the caller; can be left behind."""

    def submit(self, call: Callable[..., None], *arguments: Any) -> Call:
        """Run `call(*arguments)`."""

    def leave(self) -> None:
        """End the thread once the running call returns, if it ever does."""


class Concurrency(Protocol):
    """Runs calls concurrently, and makes the objects by which they wait for each other."""

    def start(self, call: Callable[[], None], name: str) -> Running:
        """Run `call` concurrently; the call never delays the end of the process.

        Raises:
            RuntimeError: the system gives this process no more threads.
        """

    def current(self) -> int:
        """Return the identity of the calling thread, unique among those that run."""

    def is_main(self) -> bool:
        """Tell whether the caller is the main thread, in which Python raises KeyboardInterrupt."""

    def event(self) -> Event:
        """Return a flag that is not set."""

    def waker(self) -> Waker:
        """Return a lock that nobody holds."""

    def line(self, items_max: int = 0) -> Line:
        """Return an empty queue; 0: without a limit."""

    def side_thread(self, name: str) -> SideThread:
        """Return a new side thread; raises RuntimeError as `start`."""

    def let_go(self, *clients: Any) -> None:
        """Close clients; return when each is closed, has failed to close, or is out of time.

        Raises:
            RuntimeError: too many clients did not close; the process must be restarted.
        """

    def pause(self, seconds: float) -> None:
        """Wait."""
