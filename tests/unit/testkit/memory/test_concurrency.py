"""Threads, locks, queues and clocks of a process in memory do what the system's do."""

import queue
from collections.abc import Iterator
from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10

import pytest

from halfbridge.kafka.ports import Clock, Concurrency, Ports
from halfbridge.kafka.threads import CLOSE_S_MAX, LEFT_MAX
from halfbridge.testkit.memory.machine import Machine


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
    """Also one that is cleared before whoever waits goes on."""
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
    line = run.line(2)
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
    thread, told = run.side_thread("side"), []

    def fail() -> None:
        raise ValueError("of the call")

    def slow() -> None:
        run.pause(5.0)
        told.append("slow")

    slowly, failed, last = thread.submit(slow), thread.submit(fail), thread.submit(told.append, 1)
    thread.leave()
    with pytest.raises(TimeoutError):
        slowly.result(1.0)
    last.result(60.0)
    assert told == ["slow", 1]
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="of the call"):
        failed.result()


def test_a_client_that_does_not_close_is_left_behind(run: Concurrency, clock: Clock) -> None:
    """`let_go` waits no longer than it must; too many such clients are an error."""

    class Client:
        def __init__(self, seconds: float | None) -> None:
            self.seconds = seconds

        def close(self) -> None:
            if self.seconds is None:
                run.event().wait()
            run.pause(self.seconds or 0.0)

    run.let_go(Client(1.0), Client(2.0))
    assert clock.monotonic() == 2.0
    run.let_go(*(Client(None) for _ in range(LEFT_MAX)))
    assert clock.monotonic() == 2.0 + CLOSE_S_MAX
    with pytest.raises(RuntimeError):
        run.let_go(Client(None))


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
