"""Runs the user's `async def` checker as tasks of an event loop, a limited number at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic

from halfbridge.bridge.check_pool import Outcome, PoolState, Task, all_batches, next_batch

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Iterator
    from contextvars import Context

    from halfbridge.kafka.ports import CallQueue, Ports


@dataclass(slots=True)
class _Begun(Generic[Task]):
    task: Task
    since: float  # monotonic seconds, when it was handed to the loop
    running: asyncio.Task[None] | None = None
    is_cancelled: bool = False
    is_overdue: bool = False


class LoopChecks(Generic[Task]):
    """As `CheckPool`, with tasks in place of threads. Thread-safe.

    A check that takes longer than `timeout_s` is cancelled. One that does not end then is overdue
    and hangs, and so is one that a blocked loop does not run. A loop that is closed runs no check.

    Args:
        loop: The event loop.
        context: Each check has a copy of it.
        work: The user's coroutine function.
        ports: The clock and the concurrency are used.
        threads: How many checks run at a time.
        queue_max: How many tasks may wait, and at how many outcomes that nobody has taken new ones
            are refused.
        timeout_s: How long a check may run.
        hung_max: How many checks that hang leave their place to others.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        context: Context,
        work: Callable[[Task], Awaitable[object]],
        ports: Ports,
        *,
        threads: int,
        queue_max: int,
        timeout_s: float,
        hung_max: int = 0,
    ) -> None:
        self._loop = loop
        self._work = work
        self._context = context
        self._now = ports.clock.monotonic
        self._limit, self._hung_max = threads, hung_max
        self._queue_max = queue_max
        self._timeout_s = timeout_s
        self._outcomes: CallQueue = ports.run.queue()  # `submit` limits their number
        self._has_ended = ports.run.event()  # set once no check runs any more, after `stop`
        self._numbers = count()
        self._lock = Lock()  # guards what follows; nothing waits while it is held
        self._waiting: deque[Task] = deque()
        self._running: dict[int, _Begun[Task]] = {}
        self._is_stopping = False
        self._hung = self._timed_out = self._untaken = 0

    def start(self) -> None:
        """Begin to run tasks: nothing is to be prepared."""

    def submit(self, task: Task) -> bool:
        """Queue a task; False if there is no room, or too many outcomes were not taken."""
        with self._lock:
            if max(len(self._waiting), self._untaken) >= self._queue_max:
                return False
            self._waiting.append(task)
        self._begin_all()
        return True

    def drop_waiting(self) -> list[Task]:
        """Remove the tasks that have not begun, and return them."""
        with self._lock:
            dropped = list(self._waiting)
            self._waiting.clear()
        return dropped

    def state(self) -> PoolState:
        """Return how many can run, and how many hang."""
        now = self._now()
        with self._lock:
            since = min((one.since for one in self._running.values() if one.is_overdue), default=0)
            return PoolState(
                able=0 if self._loop.is_closed() else self._places(),
                hung=self._hung,
                hung_s=now - since if self._hung else 0.0,
                timed_out=self._timed_out,
            )

    def outcomes(self, *, pause_s: float) -> Iterator[list[Outcome[Task]]]:
        """Yield accumulated outcomes until `stop`; finds overdue tasks every `pause_s`."""
        return all_batches(partial(next_batch, self._outcomes, pause_s), self._overdue)

    def stop(self, timeout_s: float) -> None:
        """Let running checks finish, up to `timeout_s`, then cancel them; queued ones are dropped.

        Not for the thread of the loop.
        """
        with self._lock:
            self._is_stopping = True
            self._waiting.clear()
            is_idle = not self._running
        if not is_idle and not self._loop.is_closed():
            self._has_ended.wait(timeout_s)
        with self._lock:
            left = list(self._running.values())
        for begun in left:
            self._on_loop(_cancel, begun)
        self._outcomes.put_nowait(None)

    def _places(self) -> int:
        return min(self._limit, self._limit + self._hung_max - self._hung)

    def _begin_all(self) -> None:
        now = self._now()
        while True:
            with self._lock:
                busy = len(self._running) - self._hung
                if self._is_stopping or not self._waiting or busy >= self._places():
                    return
                number = next(self._numbers)
                begun = self._running[number] = _Begun(self._waiting.popleft(), now)
            if not self._on_loop(self._begin, number, begun):
                error = RuntimeError("the event loop of this producer is closed")
                self._finish(number, Outcome(begun.task, error=error))

    def _on_loop(self, call: Callable[..., object], *arguments: Any) -> bool:
        """Have the loop call, in a context of its own; return False if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments, context=self._context.copy())
            return True
        return False

    def _begin(self, number: int, begun: _Begun[Task]) -> None:
        begun.running = self._loop.create_task(self._run(number, begun))

    async def _run(self, number: int, begun: _Begun[Task]) -> None:
        try:
            outcome = Outcome(begun.task, await self._work(begun.task))
        except asyncio.CancelledError as cancelled:
            error: BaseException = cancelled
            if begun.is_cancelled:
                error = TimeoutError(f"cancelled after {self._timeout_s:g} s (check_timeout_ms)")
            outcome = Outcome(begun.task, error=error)
        except KeyboardInterrupt as interrupt:  # meant for the program
            self._finish(number, Outcome(begun.task, error=interrupt))
            raise
        except BaseException as error:  # noqa: BLE001  (the user's code; its outcome tells)
            outcome = Outcome(begun.task, error=error)
        self._finish(number, outcome)
        self._begin_all()

    def _finish(self, number: int, outcome: Outcome[Task]) -> None:
        with self._lock:
            self._untaken += 1
            if self._running.pop(number).is_overdue:
                self._hung -= 1
            if self._is_stopping and not self._running:
                self._has_ended.set()
        self._outcomes.put_nowait(outcome)

    def _overdue(self, *, taken: int) -> list[Outcome[Task]]:
        """Cancel the checks that are out of time; return those that did not end by that."""
        late, overdue = [], []
        due = self._now() - self._timeout_s
        with self._lock:
            self._untaken -= taken
            for begun in self._running.values():
                if begun.since >= due or begun.is_overdue:
                    continue
                if begun.is_cancelled:
                    begun.is_overdue = True
                    overdue.append(Outcome(begun.task, is_overdue=True))
                else:
                    begun.is_cancelled = True
                    late.append(begun)
            self._hung += len(overdue)
            self._timed_out += len(late)
        for begun in late:
            self._on_loop(_cancel, begun)
        if overdue:
            self._begin_all()
        return overdue


def _cancel(begun: _Begun[Any]) -> None:
    if begun.running is not None:
        begun.running.cancel()
