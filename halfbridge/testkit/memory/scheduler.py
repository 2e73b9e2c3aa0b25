"""A deterministic scheduler: greenlets of one system thread, under virtual time.

Every concurrent call is a task. A task runs until it waits; then control switches back to the
caller that stepped it. So at most one task runs at any moment, and a run that makes the same
choices is the same run.

Two kinds of callers step tasks. A driver (the simulator) calls `runnable`, chooses a task, calls
`step`, and moves time by `advance`. All other code waits: a wait outside any task steps all
runnable tasks in turn, and moves time to the next deadline whenever no task is runnable.
"""

from __future__ import annotations

import logging
from _thread import get_ident
from contextlib import suppress
from itertools import count
from math import ceil
from typing import TYPE_CHECKING

from greenlet import GreenletExit, getcurrent, greenlet

from halfbridge.serde.units import NS_PER_MS, NS_PER_S
from halfbridge.testkit.memory.process import ProcessDeadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.testkit.memory.process import Process

# The virtual time at the beginning, ms since 1970: 2033-05-18, so that no test takes it for today.
BEGAN_MS = 2_000_000_000_000
# In reality a loop that polls without ever waiting takes time. Here time stands still while a task
# is runnable; after this many rounds it moves, so that the deadline of such a loop is reached.
ROUNDS_MAX = 1_000
_SPUN_NS = NS_PER_MS
# How often a task may catch the error that ends it when the scheduler closes, before it is
# abandoned: more often than code has handlers around one call.
_THROWS_MAX = 100
# Keeps unclosed schedulers alive: a suspended greenlet without references is ended by an exception,
# which runs its `finally` blocks, so a killed process would clean up after itself.
_open: set[Scheduler] = set()


class EndlessWaitError(RuntimeError):
    """A wait without a time limit that nothing can end any more."""


class Scheduler:
    """Steps tasks and keeps virtual time.

    Attributes:
        now_ns: Virtual time since the start.
        current: The task that runs; None outside all tasks.
        on_time: Called whenever time has moved.
        timers: Each returns the next moment (ns) at which something happens by itself, or None.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.current: Task | None = None
        self.on_time: list[Callable[[], None]] = []
        self.timers: list[Callable[[], int | None]] = []
        self._tasks: list[Task] = []
        self._dead: list[Task] = []
        self._idents = count(2)
        self._thread = get_ident()
        self._is_closed = False
        self._spun = 0

    # --- for tasks, and for code that waits outside any task ----------------------------------

    def start(self, process: Process, call: Callable[[], object], name: str) -> Task:
        """Start `call` as a task; the caller of `step` gets the exceptions that it raises."""
        self.check(process)
        _open.add(self)
        task = Task(self, process, name, next(self._idents))

        def run() -> None:
            try:
                call()
            except (GreenletExit, SystemExit):
                pass
            finally:
                task.is_ended = True

        task.greenlet = greenlet(run)
        self._tasks.append(task)
        return task

    def wait(
        self, process: Process, ready: Callable[[], bool] | None, timeout_s: float | None = None
    ) -> bool:
        """Wait, on behalf of a process, until `ready()`; return whether it is.

        `ready` is called often, and outside this task too; without it, only the time-out ends the
        wait. A time-out of 0 lets other tasks run.

        Raises:
            ProcessDeadError: the process was killed; nobody acts, and the task ends.
            EndlessWaitError: nothing can ever end the wait; the test's author corrects what waits.
        """
        self.check(process)
        if ready is not None and ready():
            return True
        deadline_ns = None if timeout_s is None else self.now_ns + ns_of(timeout_s)
        if self.current is None:
            return self._drive(process, ready, deadline_ns)
        while True:
            self._park(self.current, ready, deadline_ns)
            self.check(process)
            if ready is not None and ready():
                return True
            if deadline_ns is not None and self.now_ns >= deadline_ns:
                return False

    def yield_to_driver(self, process: Process) -> None:
        """In a task, switch to its driver, which may step other tasks first."""
        self.check(process)
        if self.current is not None:
            self._park(self.current, None, self.now_ns)
            self.check(process)

    def check(self, process: Process) -> None:
        """Check that a process may act.

        Raises:
            ProcessDeadError: it was killed; its own tasks never run again instead. Nobody acts.
            RuntimeError: called in another thread; the test's author corrects it.
        """
        if self._is_closed:
            self._end_quietly()
        if process.is_dead:
            current = self.current
            if current is not None and current.process is process:
                current.hub.switch()  # and is never switched back
            raise ProcessDeadError(f"{process.name} was killed")
        if get_ident() != self._thread:
            raise RuntimeError(
                "the broker in memory belongs to one thread: use it in the thread that made it"
            )

    # --- for drivers --------------------------------------------------------------------------

    def runnable(self) -> list[Task]:
        """Return the runnable tasks, in the order in which they were started."""
        now_ns = self.now_ns
        return [
            task
            for task in self._tasks
            if not task.process.is_frozen
            and (
                (task.deadline_ns is not None and task.deadline_ns <= now_ns)
                or (task.ready is not None and task.ready())
            )
        ]

    def step(self, task: Task) -> None:
        """Switch to a task until it waits or ends; raises what the task raises."""
        if task.is_ended or task.process.is_dead:
            return
        task.hub = task.greenlet.parent = getcurrent()
        self.current = task
        try:
            task.greenlet.switch()
        finally:
            self.current = None
            if task.is_ended and not task.process.is_dead:
                self._tasks.remove(task)

    def advance(self, seconds: float) -> None:
        """Move virtual time forward; no task runs."""
        self._move_to(self.now_ns + ns_of(seconds))

    def next_moment(self) -> int | None:
        """Return the next deadline (ns) of a task or a timer; None: there is none."""
        moments = [
            task.deadline_ns
            for task in self._tasks
            if task.deadline_ns is not None and not task.process.is_frozen
        ]
        moments += [moment for timer in self.timers if (moment := timer()) is not None]
        return min(moments, default=None)

    def kill(self, process: Process) -> None:
        """Kill a process at once: its tasks never run again, and its clients die without closing.

        Does not return to a task of the process itself.
        """
        if process.is_dead:
            return
        process.is_dead = True
        self._dead += [task for task in self._tasks if task.process is process]
        self._tasks = [task for task in self._tasks if task.process is not process]
        for client in process.clients:
            client.die()
        current = self.current
        if current is not None and current.process is process:
            current.hub.switch()

    def close(self) -> None:
        """End all tasks; the calls to the brokers that they make while they unwind raise."""
        self._is_closed = True
        disabled = logging.root.manager.disable
        logging.disable()  # the tasks' log lines about their end are of no use
        try:
            for task in (*self._tasks, *self._dead):
                if task.greenlet:  # it was started, and has not ended
                    with suppress(Exception, ProcessDeadError):
                        task.greenlet.parent = getcurrent()
                        task.hub, self.current = getcurrent(), task
                        task.greenlet.throw(GreenletExit)
        finally:
            self.current = None
            logging.disable(disabled)
        # Tasks that cannot be ended stay in `_open` with this scheduler.
        self._tasks = [task for task in (*self._tasks, *self._dead) if task.greenlet]
        self._dead.clear()
        if not self._tasks:
            _open.discard(self)

    # --- parts --------------------------------------------------------------------------------

    def _park(self, task: Task, ready: Callable[[], bool] | None, deadline_ns: int | None) -> None:
        task.ready, task.deadline_ns = ready, deadline_ns
        task.hub.switch()

    def _drive(
        self, process: Process, ready: Callable[[], bool] | None, deadline_ns: int | None
    ) -> bool:
        """Step all tasks in turn until `ready()`, or until the deadline has passed."""
        while True:
            ran = self.runnable()
            for task in ran:
                self.step(task)
            self.check(process)
            if ready is not None and ready():
                return True
            if deadline_ns is not None and self.now_ns >= deadline_ns:
                self._note_round()
                return False
            if ran:
                self._note_round()
                continue
            moments = [each for each in (self.next_moment(), deadline_ns) if each is not None]
            if not moments:
                raise EndlessWaitError(f"nothing can end this wait; tasks: {self._names()}")
            self._move_to(min(moments))

    def _note_round(self) -> None:
        self._spun += 1
        if self._spun > ROUNDS_MAX:
            self._move_to(self.now_ns + _SPUN_NS)

    def _move_to(self, moment_ns: int) -> None:
        if moment_ns > self.now_ns:
            self.now_ns = moment_ns
            self._spun = 0
        for call in self.on_time:
            call()

    def _end_quietly(self) -> None:
        task = self.current
        if task is not None:
            task.throws += 1
            if task.throws > _THROWS_MAX:
                task.hub.switch()
        raise ProcessDeadError("the broker in memory is closed")

    def _names(self) -> str:
        return ", ".join(f"{task.process.name}/{task.name}" for task in self._tasks) or "none"


def ns_of(seconds: float) -> int:
    """Return nanoseconds, rounded up, so that a wait for a fraction of one moves time."""
    return max(0, ceil(seconds * NS_PER_S))


class Task:
    """A concurrent call, as `ports.Running`; no other task has its `ident`."""

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
        return not self.is_ended

    def join(self, timeout: float | None = None) -> None:
        scheduler = self._scheduler
        current = scheduler.current
        process = self.process if current is None else current.process
        scheduler.wait(process, lambda: self.is_ended or self.process.is_dead, timeout)
