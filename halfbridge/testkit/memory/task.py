"""A call that runs beside others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from greenlet import greenlet

    from halfbridge.testkit.memory.process import Process
    from halfbridge.testkit.memory.scheduler import Scheduler


class Task:
    """A call that runs beside others; as `ports.Running`.

    Attributes:
        process: Whose it is.
        name: For people.
        ident: No two tasks of a scheduler have the same; 1 is the code outside all tasks.
        is_ended: It has returned or raised.
    """

    __slots__ = ("_scheduler", "deadline_ns", "greenlet", "hub", "ident", "is_ended", "name",
                 "process", "ready", "throws")  # fmt: skip

    def __init__(self, scheduler: Scheduler, process: Process, name: str, ident: int) -> None:
        self._scheduler = scheduler
        self.process = process
        self.name = name
        self.ident = ident
        self.is_ended = False
        self.ready: Callable[[], bool] | None = None
        self.deadline_ns: int | None = 0
        self.greenlet: greenlet
        self.hub: greenlet
        self.throws = 0

    def is_alive(self) -> bool:
        """Tell whether it has not ended."""
        return not self.is_ended

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        scheduler = self._scheduler
        current = scheduler.current
        process = self.process if current is None else current.process
        scheduler.wait(process, lambda: self.is_ended or self.process.is_dead, timeout)
