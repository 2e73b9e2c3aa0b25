"""Runs the user's checker in a bounded pool of threads; counts, and reports what hangs or fails.

Not concurrent.futures: Python joins an executor's threads at exit, so a checker that hangs would
keep the process alive for ever.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from inspect import iscoroutinefunction
from itertools import count
from queue import Empty, Full
from threading import Lock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from halfbridge.kafka.error_log import LOG_AGAIN_S, OncePerName, log_safely
from halfbridge.kafka.errors import NoAnswerError
from halfbridge.kafka.threads import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.kafka.ports import Call, CallQueue, Clock, Concurrency, Ports, Running

Task = TypeVar("Task")


@dataclass(slots=True)
class _Begun(Generic[Task]):
    task: Task
    since: float  # monotonic seconds
    is_overdue: bool = False


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Task]):
    """How a task ended: with an answer, with an error, or not yet (overdue)."""

    task: Task
    answer: object = None
    error: BaseException | None = None
    is_overdue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """The state of a pool's threads.

    Attributes:
        able: Threads that run a task that is not overdue, or wait for one.
        hung: Threads whose task is overdue.
        hung_s: How long the oldest of these tasks runs, seconds; 0.0 without one.
        timed_out: Tasks that were overdue, so far.
        replaced: Threads that were started in place of hung ones, so far.
    """

    able: int
    hung: int = 0
    hung_s: float = 0.0
    timed_out: int = 0
    replaced: int = 0


def is_async(work: Callable[..., object]) -> bool:
    """Return whether a call of `work` returns a coroutine, which no thread of a pool awaits.

    An object counts by its `__call__`, and a partial by its function.
    """
    while isinstance(work, partial):
        work = work.func
    return iscoroutinefunction(work) or iscoroutinefunction(type(work).__call__)


class Pool(Protocol[Task]):
    """Runs the user's checker on tasks, a limited number at a time: `CheckPool`, or a loop's."""

    def start(self) -> None:
        """Begin to run tasks."""

    def submit(self, task: Task) -> bool:
        """Queue a task; False if there is no room, or too many outcomes were not taken."""

    def drop_waiting(self) -> list[Task]:
        """Remove the tasks that have not begun, and return them."""

    def state(self) -> PoolState:
        """Return how many can run, and how many hang."""

    def outcomes(self, *, pause_s: float) -> Iterator[list[Outcome[Task]]]:
        """Yield accumulated outcomes until `stop`; finds overdue tasks every `pause_s`."""

    def stop(self, timeout_s: float) -> None:
        """Let running tasks finish, up to `timeout_s`; queued ones are dropped."""


class CheckPool(Generic[Task]):
    """Runs `work` on tasks in daemon threads, and reports outcomes and overdue ones.

    A thread whose task is overdue is hung. Up to `hung_max` hung threads are replaced by new ones,
    so the number of able threads is the lower of `threads` and `threads + hung_max - hung`. With 4
    and 16, the 17th hung thread is the first that is not replaced, and with 20 no able thread is
    left. When a hung thread returns, it continues to work unless a new thread has replaced it.

    Args:
        work: The user's function.
        ports: The clock and the concurrency are used.
        threads: How many run at a time.
        queue_max: How many tasks may wait. As many outcomes that nobody has taken refuse new tasks,
            because their answers cannot be sent. With 2,000, at most 2,000 such outcomes, those of
            the 2,000 waiting tasks and one of each thread are kept.
        timeout_s: How long a task may run before it is reported as overdue. Python cannot stop it;
            its answer is reported when it returns.
        hung_max: How many hung threads are replaced.
    """

    def __init__(
        self,
        work: Callable[[Task], object],
        ports: Ports,
        *,
        threads: int,
        queue_max: int,
        timeout_s: float,
        hung_max: int = 0,
    ) -> None:
        self._work = work
        self._now = ports.clock.monotonic
        self._run = ports.run
        self._threads_max = threads
        self._hung_max = hung_max
        self._timeout_s = timeout_s
        self._queue_max = queue_max
        # Holds Tasks; None: the pool may be stopping.
        self._tasks: CallQueue = ports.run.queue(queue_max)
        # Holds Outcomes; None: there are no more. `submit` limits their number.
        self._outcomes: CallQueue = ports.run.queue()
        self._numbers = count()
        self._is_stopping = False
        self._lock = ports.run.waker()  # guards what follows
        self._running: dict[int, _Begun[Task]] = {}
        self._threads: list[Running] = []
        self._able = self._hung = self._timed_out = self._replaced = 0
        self._untaken = 0  # outcomes

    def start(self) -> None:
        """Start the threads.

        Raises RuntimeError: the system gives no more threads; the operator allows more.
        """
        with locked(self._lock):
            while self._able < self._threads_max:
                self._start_one()

    def submit(self, task: Task) -> bool:
        """Queue a task; False if there is no room, or too many outcomes were not taken."""
        if self._untaken >= self._queue_max:
            return False
        try:
            self._tasks.put_nowait(task)
        except Full:
            return False
        return True

    def drop_waiting(self) -> list[Task]:
        """Remove the tasks that no thread has begun, and return them."""
        dropped = []
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    dropped.append(task)
        return dropped

    def state(self) -> PoolState:
        """Return the state of the threads."""
        with locked(self._lock):
            since = min((one.since for one in self._running.values() if one.is_overdue), default=0)
            return PoolState(
                able=self._able,
                hung=self._hung,
                hung_s=self._now() - since if self._hung else 0.0,
                timed_out=self._timed_out,
                replaced=self._replaced,
            )

    def outcomes(self, *, pause_s: float) -> Iterator[list[Outcome[Task]]]:
        """Yield accumulated outcomes until `stop`; finds overdue tasks every `pause_s`."""
        return all_batches(partial(self._next_batch, pause_s), self._overdue)

    def stop(self, timeout_s: float) -> None:
        """Let running tasks finish, up to `timeout_s`; queued ones are dropped."""
        with locked(self._lock):
            self._is_stopping = True
            threads = self._threads
        deadline = self._now() + timeout_s
        self.drop_waiting()  # nobody adds any more
        self._wake_one()
        for thread in threads:
            thread.join(max(0.0, deadline - self._now()))
        self._outcomes.put_nowait(None)

    def _work_off(self, number: int) -> None:
        while True:
            task = self._tasks.get()
            if task is None or self._is_stopping:
                self._wake_one()
                return
            with locked(self._lock):
                self._running[number] = _Begun(task, self._now())
            try:
                outcome = Outcome(task, self._work(task))
            # SystemExit, CancelledError and time-outs of other libraries must not end the thread.
            except BaseException as error:  # noqa: BLE001  (the user's code; its outcome tells)
                outcome = Outcome(task, error=error)
            is_spare = self._has_returned(number)
            self._outcomes.put_nowait(outcome)
            if is_spare:
                return

    def _has_returned(self, number: int) -> bool:
        """Note that a task returned; return whether a new thread has replaced the calling one."""
        with locked(self._lock):
            self._untaken += 1
            if not self._running.pop(number).is_overdue:
                return False
            self._hung -= 1
            if self._able >= self._threads_max:
                return True
            self._able += 1
            return False

    def _wake_one(self) -> None:
        """Make a waiting thread notice that the pool stops; that thread wakes the next one."""
        with suppress(Full):  # a full queue wakes the thread as well
            self._tasks.put_nowait(None)

    def _next_batch(self, pause_s: float) -> tuple[list[Outcome[Task]], bool]:
        return next_batch(self._outcomes, pause_s)

    def _overdue(self, *, taken: int) -> list[Outcome[Task]]:
        """Return the tasks that have become overdue, and replace their threads."""
        overdue = []
        with locked(self._lock):
            self._untaken -= taken
            due = self._now() - self._timeout_s
            for running in self._running.values():
                if running.since < due and not running.is_overdue:
                    running.is_overdue = True
                    overdue.append(Outcome(running.task, is_overdue=True))
            self._able -= len(overdue)
            self._hung += len(overdue)
            self._timed_out += len(overdue)
            self._replace()
        return overdue

    def _replace(self) -> None:
        places = min(self._threads_max, self._threads_max + self._hung_max - self._hung)
        with suppress(RuntimeError):  # the system has no thread now: the next call tries again
            while self._able < places and not self._is_stopping:
                self._start_one()
                self._replaced += 1

    def _start_one(self) -> None:
        number = next(self._numbers)
        thread = self._run.start(partial(self._work_off, number), f"halfbridge-checker-{number}")
        self._able += 1
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]


def all_batches(
    take: Callable[[], tuple[list[Outcome[Task]], bool]],
    overdue: Callable[..., list[Outcome[Task]]],
) -> Iterator[list[Outcome[Task]]]:
    """Yield what `take` returns (`next_batch`) and what became overdue, until the last batch."""
    while True:
        batch, is_last = take()
        batch.extend(overdue(taken=len(batch)))
        if batch:
            yield batch
        if is_last:
            return


def next_batch(outcomes: CallQueue, pause_s: float) -> tuple[list[Outcome[Task]], bool]:
    """Return the outcomes of a line, and whether its end (None) has come; waits for the first."""
    batch: list[Outcome[Task]] = []
    try:
        outcome = outcomes.get(timeout=pause_s)
        while outcome is not None:
            batch.append(outcome)
            outcome = outcomes.get_nowait()
    except Empty:
        return batch, False
    return batch, True


_LOG = logging.getLogger("halfbridge.bridge")
_ADVICE = "a checker needs time-outs of its own, shorter than check_timeout_ms"
_CLOSED = (
    "the event loop of this member of group %s is closed, so the member answers no check and leaves"
    " its group: close a producer before its loop ends, and make one in the loop that runs"
)


class HungCheckers:
    """Reports hung checkers every LOG_AGAIN_S, and once when no checker hangs any more.

    The loss of the last thread, and the return of the first one, are reported at once. `listener`
    is called with the result of `counts`, in a thread of its own, and not again before the last
    call has returned; an exception is logged.
    """

    def __init__(
        self,
        group: str,
        run: Concurrency,
        *,
        counts: Callable[[], CheckCounts],
        listener: Callable[[CheckCounts], object] | None,
    ) -> None:
        self._group = group
        self._run = run
        self._counts = counts
        self._listener = listener
        self._call: Call | None = None
        self._owes_call = False
        self._logged_at = float("-inf")
        self._logged_hung = False
        self._logged_able = True

    def check(self, state: PoolState, now: float) -> None:
        """Report if a report is due; never waits, never raises. `now`: monotonic seconds."""
        is_hung, is_able = state.hung > 0, state.able > 0
        is_news = is_able != self._logged_able or (self._logged_hung and not is_hung)
        if is_news or (is_hung and now - self._logged_at >= LOG_AGAIN_S):
            self._logged_at, self._logged_hung, self._logged_able = now, is_hung, is_able
            self._log(state)
            self._owes_call = self._listener is not None
        if self._owes_call and (self._call is None or self._call.done()):
            self._call_listener()

    def _log(self, state: PoolState) -> None:
        group, hung, hung_s = self._group, state.hung, state.hung_s
        if not hung and not state.able:
            log_safely(_LOG.error, _CLOSED, group)
        elif not hung:
            log_safely(_LOG.info, "checkers of group %s return again", group)
        elif state.able:
            text = "%d checkers of group %s hang, the oldest for %.0f s; %d threads are left: %s"
            log_safely(_LOG.warning, text, hung, group, hung_s, state.able, _ADVICE)
        else:
            text = (
                "%d checkers of group %s hang, the oldest for %.0f s, and no thread is left: this "
                "member answers no check before one returns, and leaves its group until then: %s"
            )
            log_safely(_LOG.error, text, hung, group, hung_s, _ADVICE)

    def _call_listener(self) -> None:
        try:
            thread = self._run.side_thread("halfbridge-on-hung")
        except RuntimeError:  # no more threads for this process now: tried again
            return
        self._call = thread.submit(_call, self._listener, self._counts())
        self._owes_call = False
        thread.leave()


def _call(listener: Callable[[CheckCounts], object], counts: CheckCounts) -> None:
    try:
        listener(counts)
    except BaseException:  # noqa: BLE001  (the user's code)
        log_safely(_LOG.exception, "on_hung failed")


# While a database is down each check of each undecided transaction raises: a line for each, and a
# traceback of some 3 KB for each kind now and then. Kinds beyond these have lines alone.
KINDS_MAX = 100


class Tracebacks:
    """Chooses the errors of checkers that are logged with their traceback. For one thread.

    Each class of errors is chosen once in LOG_AGAIN_S. A NoAnswerError never is: the checker says
    by it that it cannot tell now, and why.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._kinds = OncePerName(LOG_AGAIN_S, KINDS_MAX)

    def chosen(self, error: BaseException | None) -> BaseException | None:
        """Return `error` where its traceback is to be logged now, else None."""
        if error is None or isinstance(error, NoAnswerError):
            return None
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return error if self._kinds.is_due(kind, self._now()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCounts:
    """What a check responder has done so far, and how many of its threads hang now.

    Attributes:
        received: Requests read.
        undecodable: Requests that could not be read; skipped.
        foreign: Requests about a topic this producer does not declare, or of another group; left to
            other members.
        superseded: Requests that a newer one replaced, or whose transaction is being checked.
        refused: Requests for which the pool had no room, or that waited for a thread when this
            member left its group; the daemon asks again.
        answered: Explicit COMMIT, ROLLBACK or UNKNOWN handed to Kafka.
        failed: Checkers that raised, said nothing, or ran out of time.
        timed_out: Of these, the ones that ran out of time; the answer may have come later.
        hung: Checkers that are out of time and have not returned until now.
        replaced: Threads that were started because a checker ran out of time.
        departures: How often this member left its group because all its threads hung.
        unwritten: Answers that did not reach the op topic, or whose half partition's end is not
            known; the daemon asks again.
        unreadable: How often requests were left out because a record of the check topic cannot be
            read; the daemon asks again. The log names the record.
        errors: Errors of the consumer.
    """

    received: int = 0
    undecodable: int = 0
    foreign: int = 0
    superseded: int = 0
    refused: int = 0
    answered: int = 0
    failed: int = 0
    timed_out: int = 0
    hung: int = 0
    replaced: int = 0
    departures: int = 0
    unwritten: int = 0
    unreadable: int = 0
    errors: int = 0


class CheckTally:
    """Counters with the names of CheckCounts's attributes. Thread-safe."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys((each.name for each in fields(CheckCounts)), 0)
        self._lock = Lock()  # checks are rare compared with sends

    def add(self, name: str, many: int = 1) -> None:
        """Add `many` to the counter `name`."""
        with self._lock:
            self._counts[name] += many

    def counts(self, **now: int) -> CheckCounts:
        """Return the counts, completed by `now`: the attributes that are counted elsewhere."""
        with self._lock:
            return CheckCounts(**(self._counts | now))
