"""Deliveries: who is woken, whose callbacks run, and that nothing is lost between threads."""

import logging
import signal
from asyncio import CancelledError
from collections import deque
from dataclasses import replace
from itertools import count
from threading import Event, Thread, Timer
from time import monotonic
from typing import Any

import pytest

from halfbridge.bridge.delivery import POLL_EVERY, Delivery, DeliveryServer
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import BackpressureError, Code, KafkaFailure
from halfbridge.kafka.threads import SystemClock
from tests.kit.waiting import until

TIMEOUT_S = 20.0


class Queue:
    """A Kafka producer of the test: `poll` settles what was acknowledged."""

    def __init__(self) -> None:
        self.acked: deque[Delivery] = deque()
        self.outstanding = 0
        self.arrived = Event()
        self.polled = Event()
        self.failure: KafkaFailure | None = None

    def __len__(self) -> int:
        return self.outstanding

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge from the broker's side."""
        self.acked.append(delivery)
        self.arrived.set()

    def poll(self, timeout: float) -> int:
        """Serve what there is, or wait for it."""
        self.polled.set()
        if self.failure is not None:
            raise self.failure
        if not self.acked:
            self.arrived.wait(timeout)
        self.arrived.clear()
        served = 0
        while self.acked:
            self.outstanding -= 1
            self.acked.popleft().settle()
            served += 1
        return served


def _server(queue: Any, in_flight_max: int = 100) -> DeliveryServer:
    return DeliveryServer(queue, system_ports(), in_flight_max=in_flight_max)


def _delivery(server: DeliveryServer, queue: Queue) -> Delivery:
    queue.outstanding += 1
    return Delivery(server)


def test_a_thread_that_waits_alone_serves_itself() -> None:
    """Without a background thread: its own poll ends the wait."""
    queue = Queue()
    server = _server(queue)
    delivery = _delivery(server, queue)
    Timer(0.05, queue.ack, [delivery]).start()
    assert delivery.wait(TIMEOUT_S)


def test_of_two_waiting_threads_none_is_forgotten() -> None:
    """A thread that waited alone hands over to the background thread when its wait is over."""
    queue = Queue()
    server = _server(queue)
    server.start()
    deliveries = [_delivery(server, queue) for _ in range(2)]
    waits: list[bool] = []
    waiters = [Thread(target=lambda d=each: waits.append(d.wait(TIMEOUT_S))) for each in deliveries]
    for delivery, waiter in zip(deliveries, waiters, strict=True):
        waiter.start()
        assert queue.polled.wait(TIMEOUT_S)
        queue.polled.clear()
        if delivery is deliveries[1]:
            queue.ack(deliveries[0])
            waiters[0].join(TIMEOUT_S)
            queue.ack(delivery)
    waiters[1].join(TIMEOUT_S)
    server.stop()
    assert waits == [True, True]


def test_a_background_thread_that_is_about_to_park_is_woken() -> None:
    """It has seen an empty queue, and a send follows before it waits."""
    server = _server(Queue())
    server._is_idle = True
    server.leave_to_background()
    assert server._kick.is_set()


def test_a_poll_that_fails_leaves_the_wait_to_the_background_thread() -> None:
    """A broken client raises in each poll; the wait ends at its time-out, and raises nothing."""
    queue = Queue()
    queue.failure = KafkaFailure(Code.FATAL, "broken", is_fatal=True)
    server = _server(queue)
    assert not _delivery(server, queue).wait(0.01)


def test_a_wait_ends_at_its_time_out() -> None:
    """No acknowledgement: the caller gets its thread back."""
    queue = Queue()
    server = _server(queue)
    server.start()
    assert not _delivery(server, queue).wait(0.01)
    server.stop()


def test_callbacks_run_once_each_after_poll_and_a_raising_one_harms_nobody() -> None:
    """In order; also those added after the end, at once."""
    queue = Queue()
    server = _server(queue)
    delivery = _delivery(server, queue)
    seen: list[int] = []
    delivery.add_done_callback(lambda _: seen.append(1))
    delivery.add_done_callback(lambda _: int("no number"))
    delivery.add_done_callback(lambda _: seen.append(2))
    queue.ack(delivery)
    assert server.flush(TIMEOUT_S) == 0
    delivery.add_done_callback(lambda _: seen.append(3))
    assert seen == [1, 2, 3]


class _Refusing(logging.Filter):
    """Raises for each line, as a user's filter may."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise SystemExit(record.msg)


@pytest.mark.parametrize("kind", [SystemExit, CancelledError, KeyboardInterrupt])
def test_no_exception_of_a_callback_ends_the_background_thread(
    kind: type[BaseException], request: pytest.FixtureRequest
) -> None:
    """Nor one that is not an Exception, nor what a log filter raises: the next one is served."""
    refusing = _Refusing()
    log = logging.getLogger("halfbridge.bridge")
    log.addFilter(refusing)
    request.addfinalizer(lambda: log.removeFilter(refusing))

    def raising(_: object) -> None:
        raise kind

    queue = Queue()
    server = _server(queue)
    server.start()
    first, second = _delivery(server, queue), _delivery(server, queue)
    first.add_done_callback(raising)
    server.sent_once()
    for each in (first, second):
        queue.ack(each)
        until("the background thread has served it", each.done)
    server.stop()


def test_ctrl_c_during_a_callback_is_not_swallowed() -> None:
    """It ends the call in the main thread; the callbacks behind it are still run."""
    queue = Queue()
    server = _server(queue)
    delivery = _delivery(server, queue)
    seen: list[Delivery] = []
    delivery.add_done_callback(lambda _: signal.raise_signal(signal.SIGINT))
    delivery.add_done_callback(seen.append)
    queue.ack(delivery)
    with pytest.raises(KeyboardInterrupt):
        server.flush(TIMEOUT_S)
    assert server.flush(TIMEOUT_S) == 0
    assert seen == [delivery]


def test_a_callback_that_sends_does_not_recurse() -> None:
    """A chain of a thousand sends from callbacks stays flat."""
    queue = Queue()
    server = _server(queue)
    left = [1_000]

    def send(_: object) -> None:
        if left[0]:
            left[0] -= 1
            delivery = _delivery(server, queue)
            delivery.add_done_callback(send)
            queue.ack(delivery)
            server.sent()

    send(None)
    assert server.flush(TIMEOUT_S) == 0
    assert left == [0]


class _Ticking(SystemClock):
    """A clock that advances by `step_s` at each reading."""

    def __init__(self, step_s: float) -> None:
        self._times = count(1000.0, step_s)

    def monotonic(self) -> float:
        """Return the next time."""
        return next(self._times)


@pytest.mark.parametrize(("pause_s", "is_served"), [(0.0001, True), (0.01, False)])
def test_only_a_thread_that_sends_densely_serves_itself(pause_s: float, *, is_served: bool) -> None:
    """One that pauses between sends leaves it to the background thread, which is quicker."""
    clock = _Ticking(pause_s)
    queue: Any = Queue()
    server = DeliveryServer(queue, replace(system_ports(), clock=clock), in_flight_max=100)
    deliveries = [_delivery(server, queue) for _ in range(2 * POLL_EVERY)]
    for delivery in deliveries:
        clock.monotonic()
        queue.ack(delivery)
        server.sent()
    assert deliveries[0].done() is is_served


def test_no_room_in_time_is_back_pressure() -> None:
    """The named limit is in the error."""
    queue = Queue()
    queue.outstanding = 8
    server = _server(queue, in_flight_max=8)
    server.sent()
    server.sent()
    assert server.is_full
    with pytest.raises(BackpressureError, match="in_flight_max"):
        server.wait_for_room(0.01)
    queue.outstanding = 7
    server.wait_for_room(0.01)
    assert not server.is_full


def test_flush_says_what_is_left() -> None:
    """Flush ends at its time-out with the number of unacknowledged records."""
    queue = Queue()
    server = _server(queue)
    _delivery(server, queue)
    assert server.flush(0.01) == 1


class _Releasing(Queue):
    """Sets `release` when it is polled while `entered` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = Event(), Event()

    def poll(self, timeout: float) -> int:
        """Let the callback that waits go on: somebody flushes meanwhile."""
        if self.entered.is_set():
            self.release.set()
        return super().poll(timeout)


def test_flush_waits_for_a_callback_at_work_and_for_what_it_sends() -> None:
    """Nothing is unacknowledged while another thread runs the last callback; it may send yet."""
    queue = _Releasing()
    server = _server(queue)
    sent: list[Delivery] = []

    def send(_: object) -> None:
        queue.entered.set()
        queue.release.wait(TIMEOUT_S)
        sent.append(_delivery(server, queue))
        queue.ack(sent[0])

    delivery = _delivery(server, queue)
    delivery.add_done_callback(send)
    queue.ack(delivery)
    draining = Thread(target=server.serve, args=(0,))
    draining.start()
    assert queue.entered.wait(TIMEOUT_S)

    left = server.flush(TIMEOUT_S)
    sent_by_then = tuple(sent)

    queue.release.set()
    draining.join(TIMEOUT_S)
    assert left == 0
    assert [each.done() for each in sent_by_then] == [True]


def test_a_callback_may_flush() -> None:
    """It does not wait for itself, nor for the callbacks behind it."""
    queue = Queue()
    server = _server(queue)
    left: list[int] = []
    first, second = _delivery(server, queue), _delivery(server, queue)
    first.add_done_callback(lambda _: left.append(server.flush(TIMEOUT_S)))
    second.add_done_callback(lambda _: left.append(-1))
    queue.ack(first)
    queue.ack(second)
    began = monotonic()
    assert server.flush(TIMEOUT_S) == 0
    assert left == [0, -1]
    assert monotonic() - began < TIMEOUT_S
