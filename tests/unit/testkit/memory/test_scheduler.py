"""Who goes on, what time it is, and what is left of a process that was killed."""

import gc
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from halfbridge.testkit.memory.process import Process, ProcessDeadError
from halfbridge.testkit.memory.scheduler import ROUNDS_MAX, EndlessWaitError, Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """Yield a scheduler that is closed in the end."""
    made = Scheduler()
    yield made
    made.close()


def _ticking(
    scheduler: Scheduler, process: Process, told: list[str], name: str, every_s: float
) -> Callable[[], None]:
    def tick() -> None:
        while True:
            scheduler.wait(process, None, every_s)
            told.append(f"{name}{scheduler.now_ns // 1_000_000_000}")

    return tick


def test_a_wait_outside_tasks_lets_all_go_on_in_turn(scheduler: Scheduler) -> None:
    """Time moves from deadline to deadline, and tasks go on in the order they were started in."""
    process, told = Process("p"), []
    scheduler.start(process, _ticking(scheduler, process, told, "a", 1.0), "a")
    scheduler.start(process, _ticking(scheduler, process, told, "b", 2.0), "b")
    assert not scheduler.wait(process, None, 4.0)
    assert told == ["a1", "a2", "b2", "a3", "a4", "b4"]
    assert scheduler.now_ns == 4_000_000_000


def test_a_wait_ends_as_soon_as_it_may(scheduler: Scheduler) -> None:
    """Time stands still where a task does what is waited for."""
    process, done = Process("p"), []
    scheduler.start(process, lambda: done.append(True), "a")
    assert scheduler.wait(process, lambda: bool(done), 10.0)
    assert scheduler.now_ns == 0


def test_a_wait_that_nothing_ends_is_an_error(scheduler: Scheduler) -> None:
    """The error names the tasks that wait as well."""
    process = Process("p")
    scheduler.start(process, lambda: scheduler.wait(process, lambda: False), "sleeper")
    with pytest.raises(EndlessWaitError, match="p/sleeper"):
        scheduler.wait(process, lambda: False)


def test_a_loop_that_never_waits_comes_to_its_deadline(scheduler: Scheduler) -> None:
    """A task that only looks again and again lets others on, and time moves all the same."""
    process, rounds = Process("p"), []

    def spin() -> None:
        while scheduler.now_ns < 3_000_000:
            scheduler.wait(process, lambda: False, 0.0)
            rounds.append(True)

    task = scheduler.start(process, spin, "spin")
    task.join(1.0)
    assert not task.is_alive()
    assert len(rounds) > 2 * ROUNDS_MAX
    assert scheduler.now_ns < 10_000_000


def test_a_driver_chooses(scheduler: Scheduler) -> None:
    """`runnable` has a stable order, `step` runs one task to its next wait, `advance` runs none."""
    process, told = Process("p"), []
    for name in "ab":
        scheduler.start(process, _ticking(scheduler, process, told, name, 1.0), name)
    first, second = scheduler.runnable()
    assert (first.name, second.name) == ("a", "b")
    scheduler.step(second)
    scheduler.step(first)
    assert scheduler.runnable() == []
    assert scheduler.next_moment() == 1_000_000_000
    scheduler.advance(1.0)
    assert scheduler.runnable() == [first, second]
    assert told == []
    scheduler.step(second)
    assert told == ["b1"]
    assert scheduler.runnable() == [first]


def test_what_a_task_raises_comes_to_whoever_steps_it(scheduler: Scheduler) -> None:
    """No error of a task is lost, and the task is over."""
    process = Process("p")

    def fail() -> None:
        raise ValueError("of the task")

    task = scheduler.start(process, fail, "a")
    with pytest.raises(ValueError, match="of the task"):
        scheduler.step(task)
    assert not task.is_alive()
    assert scheduler.runnable() == []


def test_a_killed_process_does_nothing_more(scheduler: Scheduler) -> None:
    """Its tasks end where they stand: no `finally` block runs, not even in a garbage collection."""
    process, other, told = Process("p"), Process("other"), []

    def work() -> None:
        try:
            scheduler.wait(process, None, 1.0)
            told.append("went on")
        finally:
            told.append("cleaned up")

    scheduler.start(process, work, "a")
    scheduler.wait(other, None, 0.5)
    scheduler.kill(process)
    gc.collect()
    scheduler.wait(other, None, 5.0)
    assert told == []
    with pytest.raises(ProcessDeadError):
        scheduler.wait(process, None, 1.0)
    with pytest.raises(ProcessDeadError):
        scheduler.start(process, work, "b")


def test_a_task_that_kills_its_process_does_not_return(scheduler: Scheduler) -> None:
    """As for a process that ends itself in the middle of a call."""
    process, other, told = Process("p"), Process("other"), []

    def work() -> None:
        try:
            scheduler.kill(process)
            told.append("went on")
        except BaseException:
            told.append("noticed")
            raise

    scheduler.start(process, work, "a")
    scheduler.wait(other, None, 1.0)
    assert told == []


def test_the_end_ends_everything(scheduler: Scheduler) -> None:
    """`close` unwinds all tasks, those of dead processes too; what they call on the way raises."""
    process, told = Process("p"), []

    def work() -> None:
        try:
            scheduler.wait(process, None)
        finally:
            told.append("unwound")
            scheduler.wait(process, None, 1.0)
            told.append("waited")

    def stubborn() -> None:
        while True:
            try:
                scheduler.wait(process, None)
            except BaseException:  # noqa: BLE001, PERF203  (what no task may do)
                continue

    scheduler.start(process, work, "a")
    scheduler.start(process, stubborn, "b")
    scheduler.wait(Process("other"), None, 0.1)
    scheduler.kill(process)
    scheduler.close()
    assert told == ["unwound"]


def test_a_frozen_process_stands_still(scheduler: Scheduler) -> None:
    """It goes on later, and finds that time has passed."""
    process, other, told = Process("p"), Process("other"), []
    scheduler.start(process, _ticking(scheduler, process, told, "a", 1.0), "a")
    scheduler.wait(other, None, 1.0)
    process.is_frozen = True
    scheduler.wait(other, None, 5.0)
    assert told == ["a1"]
    process.is_frozen = False
    scheduler.wait(other, None, 0.0)
    assert told == ["a1", "a6"]


def test_another_thread_is_refused(scheduler: Scheduler) -> None:
    """It is told so in place of whatever greenlets would make of it."""
    raised: list[BaseException] = []

    def use() -> None:
        try:
            scheduler.wait(Process("p"), None, 1.0)
        except RuntimeError as error:
            raised.append(error)

    thread = Thread(target=use)
    thread.start()
    thread.join()
    assert "one thread" in str(raised[0])
