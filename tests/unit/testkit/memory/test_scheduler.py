"""Which task runs, the virtual time, and the rest of a process that was killed."""

import gc
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError  # noqa: A004 (its own on 3.10)
from threading import Thread

import pytest

from halfbridge.kafka.ports import Clock, Concurrency, Ports
from halfbridge.kafka.threads import CLOSE_S_MAX, LEFT_MAX
from halfbridge.testkit.memory.machine import Machine
from halfbridge.testkit.memory.process import Process, ProcessDeadError
from halfbridge.testkit.memory.scheduler import ROUNDS_MAX, EndlessWaitError, Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """Yield a scheduler that is closed in the end."""
    made = Scheduler()
    yield made
    made.close()


def _ticking(
    scheduler: Scheduler, process: Process, reported: list[str], name: str, every_s: float
) -> Callable[[], None]:
    def tick() -> None:
        while True:
            scheduler.wait(process, None, every_s)
            reported.append(f"{name}{scheduler.now_ns // 1_000_000_000}")

    return tick


def test_a_wait_outside_tasks_lets_all_go_on_in_turn(scheduler: Scheduler) -> None:
    """Time moves from deadline to deadline, and tasks go on in the order they were started in."""
    process, reported = Process("p"), []
    scheduler.start(process, _ticking(scheduler, process, reported, "a", 1.0), "a")
    scheduler.start(process, _ticking(scheduler, process, reported, "b", 2.0), "b")
    assert not scheduler.wait(process, None, 4.0)
    assert reported == ["a1", "a2", "b2", "a3", "a4", "b4"]
    assert scheduler.now_ns == 4_000_000_000


def test_a_wait_ends_as_soon_as_it_may(scheduler: Scheduler) -> None:
    """Time does not move where a task does what is waited for."""
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
    process, reported = Process("p"), []
    for name in "ab":
        scheduler.start(process, _ticking(scheduler, process, reported, name, 1.0), name)
    first, second = scheduler.runnable()
    assert (first.name, second.name) == ("a", "b")
    scheduler.step(second)
    scheduler.step(first)
    assert scheduler.runnable() == []
    assert scheduler.next_moment() == 1_000_000_000
    scheduler.advance(1.0)
    assert scheduler.runnable() == [first, second]
    assert reported == []
    scheduler.step(second)
    assert reported == ["b1"]
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
    """Its tasks end at once: no `finally` block runs, not even in a garbage collection."""
    process, other, reported = Process("p"), Process("other"), []

    def work() -> None:
        try:
            scheduler.wait(process, None, 1.0)
            reported.append("went on")
        finally:
            reported.append("cleaned up")

    scheduler.start(process, work, "a")
    scheduler.wait(other, None, 0.5)
    scheduler.kill(process)
    gc.collect()
    scheduler.wait(other, None, 5.0)
    assert reported == []
    with pytest.raises(ProcessDeadError):
        scheduler.wait(process, None, 1.0)
    with pytest.raises(ProcessDeadError):
        scheduler.start(process, work, "b")


def test_a_task_that_kills_its_process_does_not_return(scheduler: Scheduler) -> None:
    """As for a process that ends itself in the middle of a call."""
    process, other, reported = Process("p"), Process("other"), []

    def work() -> None:
        try:
            scheduler.kill(process)
            reported.append("went on")
        except BaseException:
            reported.append("noticed")
            raise

    scheduler.start(process, work, "a")
    scheduler.wait(other, None, 1.0)
    assert reported == []


def test_the_end_ends_everything(scheduler: Scheduler) -> None:
    """`close` unwinds all tasks, those of dead processes too; what they call on the way raises."""
    process, reported = Process("p"), []

    def work() -> None:
        try:
            scheduler.wait(process, None)
        finally:
            reported.append("unwound")
            scheduler.wait(process, None, 1.0)
            reported.append("waited")

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
    assert reported == ["unwound"]


def test_a_frozen_process_does_not_run(scheduler: Scheduler) -> None:
    """It continues later, and finds that time has passed."""
    process, other, reported = Process("p"), Process("other"), []
    scheduler.start(process, _ticking(scheduler, process, reported, "a", 1.0), "a")
    scheduler.wait(other, None, 1.0)
    process.is_frozen = True
    scheduler.wait(other, None, 5.0)
    assert reported == ["a1"]
    process.is_frozen = False
    scheduler.wait(other, None, 0.0)
    assert reported == ["a1", "a6"]


def test_another_thread_is_refused(scheduler: Scheduler) -> None:
    """It gets a clear error in place of one of greenlets."""
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


# --- threads, locks, queues and clocks of a process in memory do what the system's do ------


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Machine() as machine:
        yield machine.ports(machine.process("p"))


@pytest.fixture
def run(ports: Ports) -> Concurrency:
    return ports.run


@pytest.fixture
def clock(ports: Ports) -> Clock:
    return ports.clock


def test_an_event_wakes_who_waits(run: Concurrency, clock: Clock) -> None:
    """Also one that is cleared before the waiting task runs."""
    event = run.event()
    assert not event.wait(1.0)
    assert clock.monotonic() == 1.0

    def flash() -> None:
        run.pause(2.0)
        event.set()
        event.clear()

    run.start(flash, "flash")
    assert event.wait(10.0)
    assert clock.monotonic() == 3.0
    assert not event.is_set()


def test_a_waker_is_a_lock(run: Concurrency, clock: Clock) -> None:
    """Taken twice it waits for the release, or for its time."""
    waker = run.waker()
    assert waker.acquire()
    assert not waker.acquire(blocking=False)
    assert not waker.acquire(timeout=1.0)
    run.start(waker.release, "release")
    assert waker.acquire(timeout=1.0)
    assert clock.monotonic() == 1.0
    waker.release()
    with pytest.raises(RuntimeError):
        waker.release()


def test_a_line_keeps_the_order_and_its_limit(run: Concurrency) -> None:
    """`get` waits for an item; a full line takes nothing, an empty one gives nothing."""
    line = run.queue(2)
    line.put_nowait(1)
    line.put_nowait(2)
    with pytest.raises(queue.Full):
        line.put_nowait(3)
    assert [line.get(), line.get_nowait()] == [1, 2]
    with pytest.raises(queue.Empty):
        line.get_nowait()
    with pytest.raises(queue.Empty):
        line.get(timeout=1.0)
    run.start(lambda: line.put_nowait("late"), "put")
    assert line.get(timeout=1.0) == "late"


def test_a_side_thread_runs_calls_in_order(run: Concurrency) -> None:
    """Each call's end, and what it raised, is in its future."""
    thread, reported = run.side_thread("side"), []

    def fail() -> None:
        raise ValueError("of the call")

    def slow() -> None:
        run.pause(5.0)
        reported.append("slow")

    slowly, failed, last = (
        thread.submit(slow),
        thread.submit(fail),
        thread.submit(reported.append, 1),
    )
    thread.leave()
    with pytest.raises(TimeoutError):
        slowly.result(1.0)
    last.result(60.0)
    assert reported == ["slow", 1]
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="of the call"):
        failed.result()


def test_a_client_that_does_not_close_is_left_behind(run: Concurrency, clock: Clock) -> None:
    """`close_clients` waits no longer than it must; too many such clients are an error."""

    class Client:
        def __init__(self, seconds: float | None) -> None:
            self.seconds = seconds

        def close(self) -> None:
            if self.seconds is None:
                run.event().wait()
            run.pause(self.seconds or 0.0)

    run.close_clients(Client(1.0), Client(2.0))
    assert clock.monotonic() == 2.0
    run.close_clients(*(Client(None) for _ in range(LEFT_MAX)))
    assert clock.monotonic() == 2.0 + CLOSE_S_MAX
    with pytest.raises(RuntimeError):
        run.close_clients(Client(None))


def test_callers_have_identities(run: Concurrency) -> None:
    """No two that run at a time have the same; the one outside all tasks is the main one."""
    seen: list[tuple[int, bool]] = []
    tasks = [run.start(lambda: seen.append((run.current(), run.is_main())), n) for n in "ab"]
    for task in tasks:
        task.join()
    assert run.is_main()
    assert [(task.ident, False) for task in tasks] == seen
    assert len({run.current(), *(ident for ident, _ in seen)}) == 3


def test_clocks_of_processes_differ() -> None:
    """Each process has its own monotonic clock, and its own idea of the time of day."""
    with Machine() as machine:
        true = machine.ports(machine.process("a")).clock
        ahead = machine.ports(machine.process("b", skew_s=100.0, skew_ms=-40)).clock
        assert ahead.monotonic() - true.monotonic() == 100.0
        assert ahead.time_ms() - true.time_ms() == -40


def test_transaction_ids_ascend(ports: Ports) -> None:
    """They are UUIDv7 of virtual time, the same in each run."""
    first, second = ports.transaction_id(), ports.transaction_id()
    ports.run.pause(1.0)
    assert first < second < ports.transaction_id()
    assert len(first) == 32
    assert first[12] == "7"
