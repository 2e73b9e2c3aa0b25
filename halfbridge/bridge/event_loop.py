"""A producer on an event loop: how tasks wait for acknowledgements and room, and run checks.

Nothing here blocks. The thread that serves a batch of acknowledgements notes the waits that they
end, and wakes the loop once after the batch. Tasks that wait for room are in one queue with one
timer. A record that finds the client's own queue full is kept, and handed over by the same timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic

from halfbridge.bridge.check_pool import Outcome, PoolState, Task, all_batches, next_batch
from halfbridge.bridge.delivery import ROOM_SLICE_S
from halfbridge.kafka.errors import BridgeError, KafkaFailure, ProducerClosedError, bridge_error

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, TimerHandle
    from collections.abc import Awaitable, Callable, Iterator
    from contextvars import Context

    from halfbridge.bridge.delivery import Delivery
    from halfbridge.bridge.shared import Shared
    from halfbridge.kafka.ports import CallQueue, Ports

_ON_DELIVERY = 4  # place of the delivery callback among the arguments of `Writer.produce`


class _Waker:
    """Notes the wait of a task, in the thread that serves its acknowledgement."""

    __slots__ = ("_settled", "_wait")

    def __init__(self, settled: deque[Future[None]], wait: Future[None]) -> None:
        self._settled, self._wait = settled, wait

    def release(self) -> None:
        self._settled.append(self._wait)


class LoopWaits:
    """The waits of one producer's tasks. Made and used in the thread of the loop."""

    def __init__(self, shared: Shared, ports: Ports, loop: AbstractEventLoop) -> None:
        self._shared = shared
        self._server = shared.server
        self._writer = shared.writer
        self._now = ports.clock.monotonic
        self._current = ports.run.current
        self._thread = ports.run.current()
        self._loop = loop
        # At most one entry for each task that waits, so as many as the application runs at once;
        # each leaves `_queue` after send_timeout_ms (exception E-004 of DESIGN.md).
        self._settled: deque[Future[None]] = deque()  # waits that have ended; from any thread
        self._queue: deque[tuple[Future[None], float]] = deque()  # for room; until monotonic s
        self._is_waking = self._is_serving = False
        # Records for which the client's queue had no room. `room` lets no other send pass
        # meanwhile, so these are few: those that were sent in the same turn of the loop.
        self._kept: deque[tuple[tuple[Any, ...], float]] = deque()
        self._timer: TimerHandle | None = None
        shared.records.on_full = self._keep
        self._server.on_batch = self._wake

    async def until_done(self, delivery: Delivery, timeout_s: float) -> None:
        """Return once a delivery is done, or after `timeout_s`."""
        if delivery.done():
            return
        wait = self._loop.create_future()
        delivery.wake_by(_Waker(self._settled, wait))
        if delivery.done():  # perhaps before it knew the waker
            return
        if not self._is_serving:
            self._is_serving = True
            self._loop.call_soon(self._serve)
        timer = self._loop.call_later(timeout_s, _end, wait)
        try:
            await wait
        finally:
            timer.cancel()

    async def room(self) -> None:
        """Return once a record may be sent; it must be sent before the next await.

        Raises:
            BackpressureError: not within send_timeout_ms; nothing was sent; slow down and repeat.
            ProducerClosedError: closed meanwhile; make another producer.
        """
        if not (self._server.is_full or self._kept or self._queue):
            return
        until = self._now() + self._shared.room_timeout_s
        is_first = True
        while is_first or self._server.is_full or self._kept:
            is_first = False
            wait = self._loop.create_future()
            self._queue.append((wait, until))
            self._poll_later()
            await wait
        self._shared.check_open(decides=True)

    async def handed_over(self, timeout_s: float) -> None:
        """Return once no record is kept; after `timeout_s` those that are left have failed."""
        until = self._now() + timeout_s
        while self._kept and self._now() < until:  # noqa: ASYNC110  (nothing tells of room)
            await asyncio.sleep(ROOM_SLICE_S)
        self._kept = deque((record, until) for record, _ in self._kept)
        self._hand_over()

    def _wake(self) -> None:
        """Have the loop end the waits that were noted (called after each batch, in any thread)."""
        if not self._settled or self._is_waking:
            return
        self._is_waking = True
        is_here = self._current() == self._thread
        try:
            (self._loop.call_soon if is_here else self._loop.call_soon_threadsafe)(self._end_waits)
        except RuntimeError:  # the loop is closed: its tasks have ended
            self._settled.clear()
            self._is_waking = False

    def _end_waits(self) -> None:
        self._is_waking = False  # first: what is noted from now on wakes again
        while self._settled:
            _end(self._settled.popleft())

    def _serve(self) -> None:
        """Serve what has arrived, after a turn of the loop in which tasks began to wait."""
        self._is_serving = False
        with suppress(KafkaFailure, RuntimeError):  # the background thread logs it; or closed
            self._server.serve(0.0)
        self._server.leave_to_background()

    def _keep(self, *record: object) -> None:
        """Take a record for which the client's queue has no room (`RecordWriter.on_full`)."""
        if self._current() != self._thread:
            self._shared.records.wait_and_produce(*record)
            return
        self._kept.append((record, self._now() + self._shared.room_timeout_s))
        self._poll_later()

    def _poll_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(ROOM_SLICE_S, self._poll)

    def _poll(self) -> None:
        """Serve, hand over what is kept, and let in as many waiting tasks as there is room for."""
        self._timer = None
        self._serve()
        self._hand_over()
        room = 0 if self._kept else self._server.room()
        now = self._now()
        while self._queue and (room > 0 or now > self._queue[0][1]):
            wait, _ = self._queue.popleft()
            if wait.done():  # cancelled
                continue
            if room > 0:
                wait.set_result(None)
                room -= 1
            else:
                wait.set_exception(self._server.no_room(self._shared.room_timeout_s))
        if self._queue or self._kept:
            self._poll_later()

    def _hand_over(self) -> None:
        while self._kept:
            record, until = self._kept[0]
            error: BridgeError | None = None
            try:
                self._writer.produce(*record)
            except BufferError:
                if self._now() < until:
                    return
                error = self._shared.records.stayed_full()
            except KafkaFailure as failure:
                error = bridge_error(failure)
            except RuntimeError:
                error = ProducerClosedError("this producer is closed; make another")
            self._kept.popleft()
            if error is None:
                self._server.sent_once()
            else:
                record[_ON_DELIVERY](error, None)
                self._server.hand_out()


def _end(wait: Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)


@dataclass(slots=True)
class _Begun(Generic[Task]):
    task: Task
    since: float  # monotonic seconds, when it was handed to the loop
    running: asyncio.Task[None] | None = None
    is_cancelled: bool = False
    is_overdue: bool = False


class LoopChecks(Generic[Task]):
    """As `CheckPool`, with tasks in place of threads. Thread-safe.

    A check that takes longer than `timeout_s` is cancelled. One that does not end then is overdue
    and hangs, and so is one that a blocked loop does not run. A loop that is closed runs no check.

    Args:
        loop: The event loop.
        context: Each check has a copy of it.
        work: The user's coroutine function.
        ports: The clock and the concurrency are used.
        threads: How many checks run at a time.
        queue_max: How many tasks may wait, and at how many outcomes that nobody has taken new ones
            are refused.
        timeout_s: How long a check may run.
        hung_max: How many hung checks are replaced by others.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        context: Context,
        work: Callable[[Task], Awaitable[object]],
        ports: Ports,
        *,
        threads: int,
        queue_max: int,
        timeout_s: float,
        hung_max: int = 0,
    ) -> None:
        self._loop = loop
        self._work = work
        self._context = context
        self._now = ports.clock.monotonic
        self._limit, self._hung_max = threads, hung_max
        self._queue_max = queue_max
        self._timeout_s = timeout_s
        self._outcomes: CallQueue = ports.run.queue()  # `submit` limits their number
        self._has_ended = ports.run.event()  # set once no check runs any more, after `stop`
        self._numbers = count()
        self._lock = Lock()  # guards what follows; nothing waits while it is held
        self._waiting: deque[Task] = deque()  # at most `queue_max`
        self._running: dict[int, _Begun[Task]] = {}
        self._is_stopping = False
        self._hung = self._timed_out = self._untaken = 0

    def start(self) -> None:
        """Begin to run tasks: nothing is to be prepared."""

    def submit(self, task: Task) -> bool:
        """Queue a task; False if there is no room, or too many outcomes were not taken."""
        with self._lock:
            if max(len(self._waiting), self._untaken) >= self._queue_max:
                return False
            self._waiting.append(task)
        self._begin_all()
        return True

    def drop_waiting(self) -> list[Task]:
        """Remove the tasks that have not begun, and return them."""
        with self._lock:
            dropped = list(self._waiting)
            self._waiting.clear()
        return dropped

    def state(self) -> PoolState:
        """Return how many can run, and how many hang."""
        now = self._now()
        with self._lock:
            since = min((one.since for one in self._running.values() if one.is_overdue), default=0)
            return PoolState(
                able=0 if self._loop.is_closed() else self._places(),
                hung=self._hung,
                hung_s=now - since if self._hung else 0.0,
                timed_out=self._timed_out,
            )

    def outcomes(self, *, pause_s: float) -> Iterator[list[Outcome[Task]]]:
        """Yield accumulated outcomes until `stop`; finds overdue tasks every `pause_s`."""
        return all_batches(partial(next_batch, self._outcomes, pause_s), self._overdue)

    def stop(self, timeout_s: float) -> None:
        """Let running checks finish, up to `timeout_s`, then cancel them; queued ones are dropped.

        Not for the thread of the loop.
        """
        with self._lock:
            self._is_stopping = True
            self._waiting.clear()
            is_idle = not self._running
        if not is_idle and not self._loop.is_closed():
            self._has_ended.wait(timeout_s)
        with self._lock:
            left = list(self._running.values())
        for begun in left:
            self._on_loop(_cancel, begun)
        self._outcomes.put_nowait(None)

    def _places(self) -> int:
        return min(self._limit, self._limit + self._hung_max - self._hung)

    def _begin_all(self) -> None:
        now = self._now()
        while True:
            with self._lock:
                busy = len(self._running) - self._hung
                if self._is_stopping or not self._waiting or busy >= self._places():
                    return
                number = next(self._numbers)
                begun = self._running[number] = _Begun(self._waiting.popleft(), now)
            if not self._on_loop(self._begin, number, begun):
                error = RuntimeError("the event loop of this producer is closed")
                self._finish(number, Outcome(begun.task, error=error))

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> bool:
        """Have the loop call, in a context of its own; return False if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments, context=self._context.copy())
            return True
        return False

    def _begin(self, number: int, begun: _Begun[Task]) -> None:
        begun.running = self._loop.create_task(self._run(number, begun))

    async def _run(self, number: int, begun: _Begun[Task]) -> None:
        try:
            outcome = Outcome(begun.task, await self._work(begun.task))
        except asyncio.CancelledError as cancelled:
            error: BaseException = cancelled
            if begun.is_cancelled:
                error = TimeoutError(f"cancelled after {self._timeout_s:g} s (check_timeout_ms)")
            outcome = Outcome(begun.task, error=error)
        except KeyboardInterrupt as interrupt:  # meant for the program
            self._finish(number, Outcome(begun.task, error=interrupt))
            raise
        except BaseException as error:  # noqa: BLE001  (the user's code; its outcome tells)
            outcome = Outcome(begun.task, error=error)
        self._finish(number, outcome)
        self._begin_all()

    def _finish(self, number: int, outcome: Outcome[Task]) -> None:
        with self._lock:
            self._untaken += 1
            if self._running.pop(number).is_overdue:
                self._hung -= 1
            if self._is_stopping and not self._running:
                self._has_ended.set()
        self._outcomes.put_nowait(outcome)

    def _overdue(self, *, taken: int) -> list[Outcome[Task]]:
        """Cancel the checks that are out of time; return those that did not end by that."""
        late, overdue = [], []
        due = self._now() - self._timeout_s
        with self._lock:
            self._untaken -= taken
            for begun in self._running.values():
                if begun.since >= due or begun.is_overdue:
                    continue
                if begun.is_cancelled:
                    begun.is_overdue = True
                    overdue.append(Outcome(begun.task, is_overdue=True))
                else:
                    begun.is_cancelled = True
                    late.append(begun)
            self._hung += len(overdue)
            self._timed_out += len(late)
        for begun in late:
            self._on_loop(_cancel, begun)
        if overdue:
            self._begin_all()
        return overdue


def _cancel(begun: _Begun[Any]) -> None:
    if begun.running is not None:
        begun.running.cancel()
