"""Who goes on, and what time it is: greenlets of one system thread, under virtual time.

Every call that runs beside others is a task. A task runs until it waits for something; then
whoever stepped it goes on. So at any moment exactly one task runs, and a run that makes the same
choices is the same run.

Two kinds of callers step tasks. A driver (the simulator) asks for `runnable`, chooses one, calls
`step`, and lets time pass by `advance`. Everybody else simply waits: a wait outside any task steps
all tasks in turn, and moves the time to the next deadline whenever none of them can go on.
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
# A loop that asks without ever waiting takes time in reality. Here the time stands still while
# somebody can go on; after so many rounds it moves, and the deadline of such a loop comes.
ROUNDS_MAX = 1_000
_SPUN_NS = NS_PER_MS
# How often a task that is ended with its scheduler may swallow that, before it is left alone: more
# often than code has handlers around one call.
_THROWS_MAX = 100
# Schedulers that were not closed. A suspended greenlet that nothing refers to is ended by an
# exception, which runs its `finally` blocks: a process that was killed would clean up after itself.
_open: set[Scheduler] = set()


class EndlessWaitError(RuntimeError):
    """A wait without a time limit that nothing can end any more."""


class Scheduler:
    """Steps tasks, and has the time.

    Attributes:
        now_ns: Virtual time since the beginning.
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

    # --- for whoever runs as a task, or waits outside ---------------------------------------

    def start(self, process: Process, call: Callable[[], object], name: str) -> Task:
        """Have `call` run beside the caller; what it raises is raised in whoever steps it."""
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
        """Wait, on behalf of a process, until `ready()`; tell whether it is.

        `ready` is called often, and by anybody; without it, nothing but time ends the wait. A wait
        of no time lets others go on.

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

    def give_way(self, process: Process) -> None:
        """Let others go on, if this is a task and a driver may choose."""
        self.check(process)
        if self.current is not None:
            self._park(self.current, None, self.now_ns)
            self.check(process)

    def check(self, process: Process) -> None:
        """Let nobody act for a process that was killed.

        Raises:
            ProcessDeadError: it was; a task of the process itself does not even learn of it.
            RuntimeError: called in another thread; the test's author corrects it.
        """
        if self._is_closed:
            self._end_quietly()
        if process.is_dead:
            current = self.current
            if current is not None and current.process is process:
                current.hub.switch()  # and nobody ever switches back
            raise ProcessDeadError(f"{process.name} was killed")
        if get_ident() != self._thread:
            raise RuntimeError(
                "the broker in memory belongs to one thread: use it in the thread that made it"
            )

    # --- for drivers --------------------------------------------------------------------------

    def runnable(self) -> list[Task]:
        """Return the tasks that can go on, in the order in which they were started."""
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
        """Let a task go on until it waits or ends; raises what it raises."""
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
        """Let time pass; nobody goes on."""
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
        """End a process at once: its tasks never go on, and its clients die without closing.

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
        """End all tasks; whatever they call on the way out raises."""
        self._is_closed = True
        disabled = logging.root.manager.disable
        logging.disable()  # what tasks say of being ended is no news
        try:
            for task in (*self._tasks, *self._dead):
                if task.greenlet:  # it has begun, and not ended
                    with suppress(Exception, ProcessDeadError):
                        task.greenlet.parent = getcurrent()
                        task.hub, self.current = getcurrent(), task
                        task.greenlet.throw(GreenletExit)
        finally:
            self.current = None
            logging.disable(disabled)
        # Those that cannot be ended stay in `_open` with this.
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
    """Return nanoseconds, rounded up, so that a wait for what is left of one always moves time."""
    return max(0, ceil(seconds * NS_PER_S))


class Task:
    """A call that runs beside others, as `ports.Running`; `ident` is of no other task."""

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
