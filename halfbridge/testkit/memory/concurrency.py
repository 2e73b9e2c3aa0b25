"""Threads, locks, queues and clocks of one process under a scheduler, as the ports define them."""

from __future__ import annotations

import queue
from collections import deque
from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10
from typing import TYPE_CHECKING, Any, TypeAlias

from greenlet import GreenletExit

from halfbridge.kafka.threads import CLOSE_S_MAX, LEFT_MAX
from halfbridge.serde.units import NS_PER_MS, NS_PER_S
from halfbridge.testkit.memory.process import ProcessDeadError
from halfbridge.testkit.memory.scheduler import BEGAN_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.testkit.memory.process import Process
    from halfbridge.testkit.memory.scheduler import Scheduler, Task

    # Waits until the call returns True, for at most the given seconds; returns whether it did.
    _Wait: TypeAlias = Callable[[Callable[[], bool] | None, float | None], bool]

_OUTSIDE = 1  # identity of the code outside all tasks


class ProcessClock:
    """The clocks of a process."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process

    def monotonic(self) -> float:
        return (self._scheduler.now_ns + self._process.skew_ns) / NS_PER_S

    def time_ms(self) -> int:
        return BEGAN_MS + self._scheduler.now_ns // NS_PER_MS + self._process.skew_ms


class ProcessConcurrency:
    """Concurrent calls of a process, as `ports.Concurrency`."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process
        self._left: list[Call] = []

    def start(self, call: Callable[[], None], name: str) -> Task:
        return self._scheduler.start(self._process, call, name)

    def current(self) -> int:
        current = self._scheduler.current
        return _OUTSIDE if current is None else current.ident

    def is_main(self) -> bool:
        return self._scheduler.current is None

    def event(self) -> Event:
        return Event(self._wait)

    def waker(self) -> Waker:
        return Waker(self._wait)

    def queue(self, items_max: int = 0) -> CallQueue:
        return CallQueue(self._wait, items_max)

    def side_thread(self, name: str) -> SideThread:
        return SideThread(self, name)

    def close_clients(self, *clients: object) -> None:
        closings = [self._closing(client) for client in clients]
        self._wait(lambda: all(closing.done() for closing in closings), CLOSE_S_MAX)
        late = [closing for closing in closings if not closing.done()]
        self._left = [each for each in (*self._left, *late) if not each.done()]
        if late and len(self._left) > LEFT_MAX:
            raise RuntimeError(
                f"{len(self._left)} Kafka clients did not close: restart this process"
            )

    def pause(self, seconds: float) -> None:
        self._wait(None, seconds)

    def new_call(self) -> Call:
        return Call(self._wait)

    def _closing(self, client: Any) -> Call:
        thread = SideThread(self, "close")
        closing = thread.submit(client.close)
        thread.leave()
        return closing

    def _wait(self, ready: Callable[[], bool] | None, timeout_s: float | None) -> bool:
        return self._scheduler.wait(self._process, ready, timeout_s)


class Event:
    """A flag that can be waited for, as `threading.Event`."""

    __slots__ = ("_is_set", "_sets", "_wait")

    def __init__(self, wait: _Wait) -> None:
        self._wait = wait
        self._is_set = False
        self._sets = 0

    def set(self) -> None:
        self._is_set = True
        self._sets += 1

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; a flag that was set and cleared meanwhile counts, too."""
        sets = self._sets
        return self._wait(lambda: self._is_set or self._sets != sets, timeout)


class Waker:
    """A lock, as `_thread.lock`."""

    __slots__ = ("_is_taken", "_wait")

    def __init__(self, wait: _Wait) -> None:
        self._wait = wait
        self._is_taken = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  (as threading and queue have it)
        if self._is_taken:
            if not blocking:
                return False
            if not self._wait(lambda: not self._is_taken, None if timeout < 0 else timeout):
                return False
        self._is_taken = True
        return True

    def release(self) -> None:
        if not self._is_taken:
            raise RuntimeError("release unlocked lock")
        self._is_taken = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class CallQueue:
    """A queue, as `queue.Queue`."""

    __slots__ = ("_items", "_items_max", "_wait")

    def __init__(self, wait: _Wait, items_max: int) -> None:
        self._wait = wait
        self._items: deque[Any] = deque()
        self._items_max = items_max

    def put(self, item: Any) -> None:
        if self._items_max:
            self._wait(lambda: len(self._items) < self._items_max, None)
        self._items.append(item)

    def put_nowait(self, item: Any) -> None:
        if self._items_max and len(self._items) >= self._items_max:
            raise queue.Full
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002  (as threading and queue have it)
        if not self._items and (not block or not self._wait(lambda: bool(self._items), timeout)):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class Call:
    """The future of a call to a side thread, as `concurrent.futures.Future`."""

    __slots__ = ("_error", "_is_done", "_wait")

    def __init__(self, wait: _Wait) -> None:
        self._wait = wait
        self._is_done = False
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._is_done

    def ended(self, error: BaseException | None) -> None:
        self._is_done, self._error = True, error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._wait(lambda: self._is_done, timeout):
            raise TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> None:
        error = self.exception(timeout)
        if error is not None:
            raise error


class SideThread:
    """Runs calls one after another in a task, which exists only while there are calls."""

    def __init__(self, run: ProcessConcurrency, name: str) -> None:
        self._run, self._name = run, name
        self._calls: deque[tuple[Call, Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_busy = False

    def submit(self, call: Callable[..., None], *arguments: object) -> Call:
        future = self._run.new_call()
        self._calls.append((future, call, arguments))
        if not self._is_busy:
            self._is_busy = True
            self._run.start(self._serve, self._name)
        return future

    def leave(self) -> None:
        """Do nothing: the task ends by itself once no calls are left."""

    def _serve(self) -> None:
        while self._calls:
            future, call, arguments = self._calls.popleft()
            try:
                call(*arguments)
            except (ProcessDeadError, GreenletExit):
                raise
            except BaseException as error:  # noqa: BLE001  (raised again in the caller's task)
                future.ended(error)
            else:
                future.ended(None)
        self._is_busy = False
