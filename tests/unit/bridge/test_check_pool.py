"""The checker's pool: bounded, and never stopped by what it runs."""

from __future__ import annotations

from asyncio import CancelledError
from threading import Event
from typing import TYPE_CHECKING

import pytest

from bridge.check_pool import CheckPool, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 20.0
PAUSE_S = 0.01


def _pool(
    work: Callable[[int], object], *, threads: int = 1, queue_max: int = 10, timeout_s: float = 60.0
) -> CheckPool[int]:
    pool = CheckPool(work, threads=threads, queue_max=queue_max, timeout_s=timeout_s)
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


def test_an_overdue_task_is_told_once_and_its_answer_later() -> None:
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
