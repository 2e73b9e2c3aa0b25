"""A bounded pool of threads for the user's checker.

Not concurrent.futures: its threads are joined at exit, and a checker that hangs would keep the
process alive for ever.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue, SimpleQueue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Task = TypeVar("Task")


@dataclass(slots=True)
class _Running(Generic[Task]):
    task: Task
    deadline: float
    is_overdue: bool = False


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Task]):
    """What became of a task: an answer, an error, or neither yet (overdue)."""

    task: Task
    answer: object = None
    error: BaseException | None = None
    is_overdue: bool = False


class CheckPool(Generic[Task]):
    """Runs `work` on tasks in daemon threads, and reports outcomes and overdue ones.

    Args:
        work: The user's function.
        threads: How many run at a time.
        queue_max: How many tasks may wait.
        timeout_s: How long a task may run before it is reported as overdue; it is not stopped
            (Python cannot), and its answer is reported when it comes.
    """

    def __init__(
        self, work: Callable[[Task], object], *, threads: int, queue_max: int, timeout_s: float
    ) -> None:
        self._work = work
        self._timeout_s = timeout_s
        self._tasks: Queue[Task | None] = Queue(queue_max)
        self._outcomes: SimpleQueue[Outcome[Task] | None] = SimpleQueue()
        self._running: dict[int, _Running[Task]] = {}
        self._is_stopping = False
        self._threads = [
            Thread(target=self._run, args=(n,), name=f"halfbridge-checker-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> bool:
        """Queue a task; False if there is no room."""
        try:
            self._tasks.put_nowait(task)
        except Full:
            return False
        return True

    def outcomes(self, *, pause_s: float) -> Iterator[list[Outcome[Task]]]:
        """Yield what has come out, in batches as it piled up, until `stop`; then the rest.

        Args:
            pause_s: How often overdue tasks are looked for.
        """
        while True:
            batch, is_last = self._next_batch(pause_s)
            batch.extend(self._overdue())
            if batch:
                yield batch
            if is_last:
                return

    def stop(self, timeout_s: float) -> None:
        """Let running tasks finish, up to `timeout_s`; queued ones are dropped."""
        self._is_stopping = True
        deadline = monotonic() + timeout_s
        while not self._tasks.empty():  # nobody adds any more
            with suppress(Empty):
                self._tasks.get_nowait()
        for _ in self._threads:
            with suppress(Full):  # a full queue wakes its thread by itself
                self._tasks.put_nowait(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        self._outcomes.put(None)

    def _run(self, number: int) -> None:
        while True:
            task = self._tasks.get()
            if task is None or self._is_stopping:
                return
            self._running[number] = _Running(task, monotonic() + self._timeout_s)
            try:
                outcome = Outcome(task, self._work(task))
            # SystemExit, CancelledError and time-outs of other libraries, too, end no thread.
            except BaseException as error:  # noqa: BLE001  (the user's code; its outcome tells)
                outcome = Outcome(task, error=error)
            finally:
                del self._running[number]
            self._outcomes.put(outcome)

    def _next_batch(self, pause_s: float) -> tuple[list[Outcome[Task]], bool]:
        batch: list[Outcome[Task]] = []
        try:
            outcome = self._outcomes.get(timeout=pause_s)
            while outcome is not None:
                batch.append(outcome)
                outcome = self._outcomes.get_nowait()
        except Empty:
            return batch, False
        return batch, True

    def _overdue(self) -> Iterator[Outcome[Task]]:
        now = monotonic()
        for running in list(self._running.values()):
            if now > running.deadline and not running.is_overdue:
                running.is_overdue = True
                yield Outcome(running.task, is_overdue=True)
