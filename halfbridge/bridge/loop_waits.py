"""How the tasks of an event loop wait for a producer's acknowledgements, and for room.

Nothing here blocks. Whoever serves a batch of acknowledgements notes the tasks that it ends, and
wakes the loop once behind the batch. Tasks that wait for room are in one queue with one timer. A
record that finds the client's own queue full is kept, and handed over by the same timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.delivery import ROOM_SLICE_S
from halfbridge.kafka.errors import BridgeError, KafkaFailure, ProducerClosedError, bridge_error

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, TimerHandle

    from halfbridge.bridge.delivery import Delivery
    from halfbridge.bridge.shared import Shared
    from halfbridge.kafka.ports import Ports

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
        self._settled: deque[Future[None]] = deque()  # waits that have ended; from any thread
        self._is_waking = self._is_serving = False
        self._queue: deque[tuple[Future[None], float]] = deque()  # for room; until monotonic s
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
        """Have the loop end the waits that were noted (called behind each batch, anywhere)."""
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
        """Serve what is there, behind a turn of the loop in which tasks began to wait."""
        self._is_serving = False
        with suppress(KafkaFailure, RuntimeError):  # the background thread logs it; or closed
            self._server.serve(0.0)
        self._server.leave_to_background()

    def _keep(self, *record: Any) -> None:
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
