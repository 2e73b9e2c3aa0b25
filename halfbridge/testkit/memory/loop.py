"""An asyncio event loop in virtual time, for asynchronous clients of the stack.

Where a loop waits for its selector, this one runs the machine's tasks and advances virtual time
until the loop has work. Tasks call `call_soon_threadsafe`, as threads do, so the selector sees
their calls.

aiosqlite uses threads. While one of its calls is pending, virtual time passes no faster than real
time: otherwise a COMMIT of 20 ms would take virtual minutes, and every time-out would expire.
"""

from __future__ import annotations

import asyncio
import inspect
from selectors import DefaultSelector
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit

from halfbridge.serde.units import NS_PER_S
from halfbridge.testkit.memory.machine import Passing
from halfbridge.testkit.memory.process import ProcessDeadError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from selectors import SelectorKey

    from halfbridge.testkit.memory.machine import Machine

T = TypeVar("T")
# The library that runs calls in threads of its own and awaits futures that these threads set.
_THREADED = "aiosqlite"
_PACE_S = 0.002  # of real time, then as much of virtual time


class _Selector(DefaultSelector):
    """Advances virtual time while it waits.

    Attributes:
        outside: Pending futures that threads of other libraries will set.
    """

    def __init__(self, machine: Machine, wait_s_max: float) -> None:
        super().__init__()
        self.outside: set[asyncio.Future[Any]] = set()
        self._passing = Passing(machine.broker)
        self._wait_s_max = wait_s_max

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        wait_s = self._wait_s_max if timeout is None else timeout
        left_s = wait_s
        while self.outside and left_s > 0:
            if super().select(_PACE_S) or self._pass(_PACE_S):
                return super().select(0)
            left_s -= _PACE_S
        if not self._pass(max(left_s, 0)) and timeout is None:
            raise TimeoutError(f"no task of the loop could go on for {wait_s:g} s")
        return super().select(0)

    def _pass(self, seconds: float) -> bool:
        """Advance virtual time until the loop has work; return whether it has."""
        return self._passing.until(lambda: bool(super(_Selector, self).select(0)), seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in the machine's virtual time, whose executors' calls are tasks of the machine."""

    def __init__(self, machine: Machine, wait_s_max: float) -> None:
        self._machine = machine
        self._process = machine.process("loop")
        selector = _Selector(machine, wait_s_max)
        self._outside = selector.outside
        super().__init__(selector)
        self.set_exception_handler(_ignore_process_death)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._machine.scheduler.now_ns / NS_PER_S

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future; while one of aiosqlite's is pending, virtual time keeps to real time."""
        future = super().create_future()
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        if caller and caller.f_globals.get("__name__", "").partition(".")[0] == _THREADED:
            self._outside.add(future)
            future.add_done_callback(self._outside.discard)
        return future

    def run_in_executor(  # type: ignore[override]  # of any executor
        self, executor: object, func: Callable[..., object], *args: object
    ) -> asyncio.Future[object]:
        """Run a call as a task of the machine, whatever the executor."""
        del executor
        future: asyncio.Future[object] = self.create_future()

        def settle(result: object, error: BaseException | None) -> None:
            if future.done():  # cancelled
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except GreenletExit:  # the machine ends
                raise
            except BaseException as caught:  # noqa: BLE001  (raised again in the caller's task)
                error = caught
            if not self.is_closed():
                self.call_soon_threadsafe(settle, result, error)

        self._machine.scheduler.start(self._process, work, "executor")
        return future


def run_on(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, cancel the loop's remaining tasks, close the loop."""
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _ignore_process_death(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle errors of callbacks as usual; ignore those of a client that has died."""
    if not isinstance(context.get("exception"), ProcessDeadError):
        loop.default_exception_handler(context)
