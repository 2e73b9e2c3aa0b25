"""An event loop of asyncio that lives in virtual time, for asynchronous clients of the stack.

Where a loop waits for its selector, this one lets the brokers and the tasks below go on, and time
pass, until the loop has something to do. They call `call_soon_threadsafe`, as threads
do, so the selector sees their calls.
"""

from __future__ import annotations

import asyncio
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


class _Selector(DefaultSelector):
    """Lets virtual time pass while it waits."""

    def __init__(self, machine: Machine, wait_s_max: float) -> None:
        super().__init__()
        self._passing = Passing(machine.broker)
        self._wait_s_max = wait_s_max

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        wait_s = self._wait_s_max if timeout is None else timeout
        has_events = self._passing.until(lambda: bool(super(_Selector, self).select(0)), wait_s)
        if timeout is None and not has_events:
            raise TimeoutError(f"no task of the loop could go on for {wait_s:g} s")
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time is that of the machine, and whose executors are tasks of it."""

    def __init__(self, machine: Machine, wait_s_max: float) -> None:
        self._machine = machine
        self._process = machine.process("loop")
        super().__init__(_Selector(machine, wait_s_max))
        self.set_exception_handler(_ignore_process_death)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._machine.scheduler.now_ns / NS_PER_S

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
    """Run a coroutine to its end, cancel what is left of the loop's tasks, close the loop."""
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
    """Handle errors of callbacks as ever, but for those of a client that has died."""
    if not isinstance(context.get("exception"), ProcessDeadError):
        loop.default_exception_handler(context)
