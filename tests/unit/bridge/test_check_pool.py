"""The checker's pool: bounded, and never stopped by what it runs."""

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from queue import Queue
from threading import Event, Thread, current_thread
from threading import enumerate as all_threads
from typing import Any

import pytest

from halfbridge.bridge.check_pool import (
    KINDS_MAX,
    CheckCounts,
    CheckPool,
    HungCheckers,
    Outcome,
    PoolState,
    Tracebacks,
    is_async,
)
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.error_log import LOG_AGAIN_S
from halfbridge.kafka.errors import NoAnswerError
from halfbridge.kafka.ports import Ports
from halfbridge.kafka.threads import Threads
from tests.fake_ports import Clock

TIMEOUT_S = 20.0
PAUSE_S = 0.01


def _pool(
    work: Callable[[int], object],
    *,
    threads: int = 1,
    hung_max: int = 0,
    queue_max: int = 10,
    timeout_s: float = 60.0,
    ports: Ports | None = None,
) -> CheckPool[int]:
    pool = CheckPool(
        work,
        ports or system_ports(),
        threads=threads,
        hung_max=hung_max,
        queue_max=queue_max,
        timeout_s=timeout_s,
    )
    pool.start()
    return pool


def _take(outcomes: Iterator[list[Outcome[int]]], count: int) -> list[Outcome[int]]:
    taken: list[Outcome[int]] = []
    while len(taken) < count:
        taken += next(outcomes)
    return taken


def test_answers_and_errors_come_out_with_their_task() -> None:
    """An exception is an outcome; the thread that met it takes the next task."""
    pool = _pool(lambda task: 10 // task)
    for task in (0, 5):
        assert pool.submit(task)
    failed, good = _take(pool.outcomes(pause_s=PAUSE_S), 2)
    assert isinstance(failed.error, ZeroDivisionError)
    assert good == Outcome(5, 2)
    pool.stop(TIMEOUT_S)


@pytest.mark.parametrize("kind", [SystemExit, CancelledError, KeyboardInterrupt])
def test_no_exception_of_a_checker_ends_a_thread(kind: type[BaseException]) -> None:
    """Nor one that is not an Exception: it is an outcome like any other."""

    def work(task: int) -> int:
        if task:
            raise kind
        return task

    pool = _pool(work)
    for task in (1, 0):
        pool.submit(task)
    failed, good = _take(pool.outcomes(pause_s=PAUSE_S), 2)
    assert isinstance(failed.error, kind)
    assert good == Outcome(0, 0)
    pool.stop(TIMEOUT_S)


def test_a_full_queue_refuses() -> None:
    """One runs, one waits, the third is refused at once."""
    running, release = Event(), Event()

    def work(task: int) -> int:
        running.set()
        release.wait(TIMEOUT_S)
        return task

    pool = _pool(work, queue_max=1)
    assert pool.submit(1)
    assert running.wait(TIMEOUT_S)
    assert pool.submit(2)
    assert not pool.submit(3)
    release.set()
    assert [outcome.task for outcome in _take(pool.outcomes(pause_s=PAUSE_S), 2)] == [1, 2]
    pool.stop(TIMEOUT_S)


def test_outcomes_that_nobody_takes_refuse_new_tasks() -> None:
    """While answers cannot be sent, checkers are not called without end.

    One thread, and room for three. That the fourth task has begun means that the outcomes of three
    are there.
    """
    begun = [Event() for _ in range(6)]
    release = Event()

    def work(task: int) -> None:
        begun[task].set()
        release.wait(TIMEOUT_S)

    pool = _pool(work, queue_max=3)
    assert pool.submit(0)
    assert begun[0].wait(TIMEOUT_S)
    assert all(pool.submit(task) for task in (1, 2, 3))
    release.set()
    assert begun[3].wait(TIMEOUT_S)
    assert not pool.submit(4)
    outcomes = pool.outcomes(pause_s=PAUSE_S)
    assert [each.task for each in _take(outcomes, 4)] == [0, 1, 2, 3]
    assert pool.submit(5)
    assert [each.task for each in _take(outcomes, 1)] == [5]
    assert not begun[4].is_set()
    pool.stop(TIMEOUT_S)


def test_an_overdue_task_is_reported_once_and_its_answer_later() -> None:
    """A task cannot be stopped; it is reported when its time is over, and again with its answer."""
    release = Event()

    def work(task: int) -> int:
        release.wait(TIMEOUT_S)
        return task

    pool = _pool(work, timeout_s=0.0)
    pool.submit(7)
    outcomes = pool.outcomes(pause_s=PAUSE_S)
    assert _take(outcomes, 1) == [Outcome(7, is_overdue=True)]
    release.set()
    assert _take(outcomes, 1) == [Outcome(7, 7)]
    pool.stop(TIMEOUT_S)


@pytest.mark.parametrize("queued", [0, 1, 3])
def test_stop_does_not_wait_for_a_task_that_hangs(queued: int) -> None:
    """Stopping gives up after its time-out, drops what is queued, and ends the outcomes."""
    running, never = Event(), Event()

    def work(task: int) -> int:
        running.set()
        never.wait(TIMEOUT_S)
        return task

    pool = _pool(work, queue_max=3)
    pool.submit(1)
    assert running.wait(TIMEOUT_S)
    for task in range(queued):
        pool.submit(task)
    pool.stop(0.01)
    assert list(pool.outcomes(pause_s=PAUSE_S)) == []
    never.set()


class _Hanging:
    """Work that does not return before it is released; each task says that it began."""

    def __init__(self, tasks: int) -> None:
        self.began = [Event() for _ in range(tasks)]
        self.release = [Event() for _ in range(tasks)]

    def __call__(self, task: int) -> int:
        self.began[task].set()
        assert self.release[task].wait(TIMEOUT_S)
        return task


def _overdue(outcomes: Iterator[list[Outcome[int]]], task: int) -> None:
    while Outcome(task, is_overdue=True) not in next(outcomes):
        pass


def _answered(outcomes: Iterator[list[Outcome[int]]], task: int) -> None:
    while Outcome(task, task) not in next(outcomes):
        pass


def _counted(state: PoolState) -> tuple[int, int, int, int]:
    return state.able, state.hung, state.timed_out, state.replaced


def test_hung_threads_are_replaced_up_to_a_bound() -> None:
    """One thread and two in reserve: the third that hangs leaves nobody, and nothing is begun."""
    work = _Hanging(4)
    pool = _pool(work, hung_max=2, timeout_s=0.0)
    outcomes = pool.outcomes(pause_s=PAUSE_S)
    for task, able in ((0, 1), (1, 1), (2, 0)):
        pool.submit(task)
        assert work.began[task].wait(TIMEOUT_S)
        _overdue(outcomes, task)
        assert _counted(pool.state()) == (able, task + 1, task + 1, min(task + 1, 2))
    assert pool.state().hung_s > 0
    pool.submit(3)
    assert pool.drop_waiting() == [3]
    assert pool.submit(3)
    work.release[1].set()
    assert work.began[3].wait(TIMEOUT_S), "a thread that returned does not go on"
    for each in work.release:
        each.set()
    _answered(outcomes, 3)
    pool.stop(TIMEOUT_S)


def test_a_thread_whose_place_is_taken_ends_when_it_returns() -> None:
    """Three threads hang, and all return: two of them are too many, and run nothing any more."""
    work = _Hanging(3)
    names = []

    def named(task: int) -> int:
        if task < len(work.began):
            return work(task)
        names.append(current_thread().name)
        return task

    pool = _pool(named, hung_max=2, timeout_s=0.0)
    outcomes = pool.outcomes(pause_s=PAUSE_S)
    for task in range(3):
        pool.submit(task)
        assert work.began[task].wait(TIMEOUT_S)
        _overdue(outcomes, task)
    for task in (2, 1, 0):  # the last one takes its place back, the others find it taken
        work.release[task].set()
        _answered(outcomes, task)
    assert _counted(pool.state()) == (1, 0, 3, 2)
    for task in range(3, 10):
        pool.submit(task)
        _answered(outcomes, task)
    assert len(set(names)) == 1
    pool.stop(TIMEOUT_S)


class _FewThreads(Threads):
    """A system that gives no more threads while `are_left` is not set."""

    are_left = True

    def start(self, call: Callable[[], None], name: str) -> Thread:
        if not self.are_left:
            raise RuntimeError("can't start new thread")
        return Threads.start(call, name)


def test_a_process_without_threads_tries_again() -> None:
    """A thread that cannot be started is missed, and started when it can be."""
    work = _Hanging(2)
    threads = _FewThreads()
    ports = replace(system_ports(), run=threads)
    pool = _pool(work, hung_max=1, timeout_s=0.0, ports=ports)
    outcomes = pool.outcomes(pause_s=PAUSE_S)
    pool.submit(0)
    assert work.began[0].wait(TIMEOUT_S)
    threads.are_left = False
    _overdue(outcomes, 0)
    assert _counted(pool.state()) == (0, 1, 1, 0)
    threads.are_left = True
    pool.submit(1)
    _overdue(outcomes, 1)
    assert pool.state().replaced == 1
    for each in work.release:
        each.set()
    pool.stop(TIMEOUT_S)


def test_stop_ends_every_thread_that_waits() -> None:
    """More threads than the queue has room for: each wakes the next."""
    before = set(all_threads())
    pool = _pool(lambda task: task, threads=5, queue_max=1)
    assert len(set(all_threads()) - before) == 5
    pool.stop(TIMEOUT_S)
    assert set(all_threads()) - before == set()


async def _awaited(_: object) -> None:
    """Return None, from a coroutine."""


class _AsyncCheckers:
    """Has checkers that must be awaited."""

    async def check(self, _: object) -> None:
        """Return nothing."""

    async def __call__(self, _: object) -> None:
        """Return nothing."""


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (_awaited, True),
        (partial(partial(_awaited, 1), 2), True),
        (_AsyncCheckers().check, True),
        (_AsyncCheckers(), True),
        (print, False),
        (lambda _: None, False),
        (partial(print, 1), False),
        (_AsyncCheckers, False),
    ],
)
def test_what_must_be_awaited_is_known(work: Any, *, wanted: bool) -> None:
    """However it is wrapped."""
    assert is_async(work) is wanted


# --- hung checkers are reported, at a limited rate, to the log and to a listener -----------

WELL = PoolState(able=4)
SOME = PoolState(able=4, hung=2, hung_s=12.0)
ALL = PoolState(able=0, hung=20, hung_s=60.0)


def _levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    levels = [record.levelname for record in caplog.records]
    caplog.clear()
    return levels


def test_hung_checkers_are_reported_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """At once, then at a pace; the loss of the last thread at once too; and when all is well."""
    reported = HungCheckers("orders", Threads(), counts=CheckCounts, listener=None)
    with caplog.at_level(logging.INFO):
        reported.check(WELL, 0.0)
        assert _levels(caplog) == []
        reported.check(SOME, 1.0)
        assert "2 checkers of group orders hang, the oldest for 12 s; 4 threads" in caplog.text
        assert _levels(caplog) == ["WARNING"]
        reported.check(SOME, LOG_AGAIN_S)
        assert _levels(caplog) == []
        reported.check(SOME, 1.0 + LOG_AGAIN_S)
        assert _levels(caplog) == ["WARNING"]
        reported.check(ALL, 2.0 + LOG_AGAIN_S)
        assert "leaves its group" in caplog.text
        assert _levels(caplog) == ["ERROR"]
        reported.check(ALL, 2.0 + 2 * LOG_AGAIN_S)
        assert _levels(caplog) == ["ERROR"]
        reported.check(SOME, 3.0 + 2 * LOG_AGAIN_S)
        reported.check(WELL, 4.0 + 2 * LOG_AGAIN_S)
        reported.check(WELL, 4.0 + 9 * LOG_AGAIN_S)
        assert _levels(caplog) == ["WARNING", "INFO"]


def _let_calls_end() -> None:
    for thread in all_threads():
        if thread.name == "halfbridge-on-hung":
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def test_a_listener_hears_the_counts() -> None:
    """Each time that the log says something, the last time that none hangs."""
    heard: list[CheckCounts] = []
    counts = CheckCounts(hung=2)
    reported = HungCheckers("orders", Threads(), counts=lambda: counts, listener=heard.append)
    reported.check(WELL, 0.0)
    reported.check(SOME, 1.0)
    _let_calls_end()
    reported.check(SOME, 2.0)
    counts = CheckCounts()
    reported.check(WELL, 3.0)
    reported.check(WELL, 4.0)
    _let_calls_end()
    assert heard == [CheckCounts(hung=2), CheckCounts()]


def test_a_listener_that_hangs_or_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is called again only when it has returned, but then; what it raises is logged."""
    called: Queue[int] = Queue()
    release = Event()

    def listener(counts: CheckCounts) -> None:
        called.put(counts.hung)
        assert release.wait(TIMEOUT_S)
        raise ValueError("a pager that is down")

    hung = 2
    reported = HungCheckers(
        "orders", Threads(), counts=lambda: CheckCounts(hung=hung), listener=listener
    )
    reported.check(SOME, 0.0)
    assert called.get(timeout=TIMEOUT_S) == 2
    hung = 0
    reported.check(WELL, 1.0)
    assert called.empty()
    release.set()
    _let_calls_end()
    reported.check(WELL, 2.0)
    _let_calls_end()
    assert called.get(timeout=TIMEOUT_S) == 0
    assert caplog.text.count("ValueError: a pager that is down") == 2


# --- which errors of checkers are logged with their traceback ------------------------------


def test_each_kind_is_chosen_once_in_a_while() -> None:
    """A database that is down for an hour fills no disk."""
    clock = Clock()
    tracebacks = Tracebacks(clock)
    down, bug = OSError("down"), KeyError("row")
    assert tracebacks.chosen(down) is down
    assert tracebacks.chosen(bug) is bug
    assert tracebacks.chosen(OSError("down again")) is None
    clock.now += LOG_AGAIN_S
    assert tracebacks.chosen(down) is down


def test_what_a_checker_says_on_purpose_has_no_traceback() -> None:
    """NoAnswerError says that it cannot tell now; an overdue checker has raised nothing."""
    tracebacks = Tracebacks(Clock())
    assert tracebacks.chosen(NoAnswerError("asked a replica")) is None
    assert tracebacks.chosen(None) is None


def test_kinds_are_limited() -> None:
    """Classes that are made while a service runs cost no memory."""
    tracebacks = Tracebacks(Clock())
    kinds = [type(f"Error{number}", (Exception,), {}) for number in range(KINDS_MAX + 1)]
    chosen = [tracebacks.chosen(kind()) for kind in kinds]
    assert [each is not None for each in chosen] == [True] * KINDS_MAX + [False]
