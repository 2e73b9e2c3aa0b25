"""Acknowledgements of produced records: their futures, who serves them, and their counts.

librdkafka hands over acknowledgements inside `poll`, and the Python client takes the GIL again for
each of them. Next to a busy thread, a polling thread therefore gets one acknowledgement per switch
interval (5 ms). Hence four rules:

1. Pipelined callers that send densely poll inline, every POLL_EVERY sends. A thread that waits for
   room polls inline too.
2. A thread that waits for its acknowledgement while no other thread waits polls for itself, so one
   thread is woken instead of two. Where several threads wait, none of them polls, because it would
   serve the others' acknowledgements in addition to its own work.
3. A background thread polls when no thread sends densely or waits alone, and none has polled inline
   for INLINE_GRACE_S. It serves several threads that block, slow senders, and callbacks after the
   last send.
4. Inside `poll` a callback only notes its result. Waiting threads are woken, and users'
   callbacks run, after `poll` has returned with the whole batch.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from halfbridge.kafka.error_log import log_safely
from halfbridge.kafka.errors import BackpressureError, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from halfbridge.bridge.check_pool import CheckCounts
    from halfbridge.kafka.ports import Ports, Running, Waker, Writer

_LOG = logging.getLogger("halfbridge.bridge")
POLL_EVERY = 32  # sends that share the cost of one poll
INLINE_GRACE_S = 0.005  # several inline polls of a dense sender fall into it
# A thread that sends at this rate hardly ever releases the GIL to the background thread. A slower
# sender pauses, and the background thread serves it sooner.
DENSE_PER_S = 8_000
_SLICE_S = 0.01  # how late a thread that polls sees a stop or a send
ROOM_SLICE_S = 0.004  # below INLINE_GRACE_S, so that the background thread stays away
_IDLE_S = 0.5  # nothing is under way: a send or a stop wakes the thread at once
# How long a thread that waits alone polls at a time: Ctrl-C has to wait for the end of a poll.
_ALONE_SLICE_S = 0.05
# A thread that waits alone polls only if no two have waited together for this time: of 32 threads
# that block, one often waits alone for a moment.
ALONE_AGAIN_S = 0.01
# What `Outcomes` counts: a half message or the value of a decision's Resolution, and its outcome.
HALF_MESSAGE = "half message"
STORED, FAILED = "stored", "failed"


class DeliveryServer:
    """Serves the acknowledgements of one writer. Thread-safe."""

    def __init__(self, writer: Writer, ports: Ports, *, in_flight_max: int) -> None:
        self._writer = writer
        self._poll = writer.poll
        self._now = ports.clock.monotonic
        self._run, self._current = ports.run, ports.run.current
        self.new_waker = ports.run.waker
        self._in_flight_max = in_flight_max
        self.guard = Lock()  # for rare list creation only
        # Acknowledged, and not handed out yet: a thread that polls hands them out after the poll.
        self.woken: deque[Delivery] = deque()
        self.ready: deque[Delivery] = deque()
        self._draining = ports.run.waker()  # held while callbacks run; no thread waits for it
        self._drainer: int | None = None  # the thread that runs callbacks
        self._inline_at = 0.0
        self._waiting = 0  # threads that wait for an acknowledgement; changed under `guard`
        self._crowded_at = 0.0  # when a thread last began to wait while another did
        self._is_served = False  # by a thread that waits alone
        self._sends = 0  # not locked: a lost count only delays the next poll
        self._poll_every = max(1, min(POLL_EVERY, in_flight_max // 4))
        self._poll_at, self._polled_at = self._poll_every, 0.0
        self._seen_sends, self._seen_at = 0, 0.0  # by the background thread
        self.is_full = False  # updated every POLL_EVERY sends, so that a send need not ask
        self._is_idle = self._is_parked = self._stopping = False
        self._kick = ports.run.event()
        self._background: Running | None = None
        self._in_background: int | None = None  # the background thread's identity, once it runs
        # Called once for each served batch, after its wakers were released; set by an event loop.
        self.on_batch: Callable[[], object] | None = None

    def start(self) -> None:
        """Start the background thread."""
        self._background = self._run.start(self._serve_until_stopped, "halfbridge-delivery")

    def stop(self) -> None:
        """Stop the background thread."""
        self._stopping = True
        self._kick.set()
        if self._background is not None and self._in_background != self._current():
            self._background.join()

    def sent(self) -> None:
        """Note a pipelined send; every POLL_EVERY sends of a dense sender, serve."""
        self._sends += 1
        if self._is_idle:
            self._kick.set()
        if self._sends < self._poll_at:
            return
        self._poll_at = self._sends + self._poll_every
        now = self._now()
        is_dense = (now - self._polled_at) * DENSE_PER_S < self._poll_every
        self._polled_at = now
        if is_dense:
            self._inline_at = now
            self._poll(0)
        self.is_full = len(self._writer) >= self._in_flight_max
        if is_dense:
            self.hand_out()

    def sent_once(self) -> None:
        """Note a send for which no thread waits, and which no other send may follow."""
        if self._is_idle:
            self._kick.set()

    def wait_for_room(self, timeout_s: float) -> None:
        """Return once fewer than in_flight_max records are unacknowledged.

        Raises BackpressureError: not within `timeout_s`; slow down and repeat.
        """
        deadline = self._now() + timeout_s
        while True:
            self.serve(ROOM_SLICE_S)
            if self.room() > 0:
                return
            if self._now() > deadline:
                raise self.no_room(timeout_s)

    def room(self) -> int:
        """Return how many more records may be unacknowledged now."""
        room = self._in_flight_max - len(self._writer)
        if room > 0:
            self.is_full = False
        return room

    def no_room(self, waited_s: float) -> BackpressureError:
        """Return the error of a caller that waited for room."""
        return BackpressureError(
            f"{self._in_flight_max} records are unacknowledged (in_flight_max), "
            f"and none was acknowledged in {waited_s:g} s"
        )

    def serve(self, timeout_s: float) -> None:
        """Serve in this thread, waiting up to `timeout_s` for the first acknowledgement."""
        self._inline_at = self._now()
        self._poll(timeout_s)
        self._inline_at = self._now()
        self.hand_out()

    def hand_out(self) -> None:
        """Wake the waiting threads and run the callbacks of the served acknowledgements."""
        woken = self.woken
        while woken:
            with suppress(IndexError):  # another thread was quicker
                woken.popleft().wake()
        if self.on_batch is not None:
            self.on_batch()
        # One thread runs callbacks at a time, and callbacks do not nest: a callback that sends
        # comes back here through `sent`. The outer loop takes what was served after the release.
        while self.ready and self._draining.acquire(blocking=False):
            try:
                self._drainer = self._current()
                self._run_ready()
            finally:
                self._drainer = None
                self._draining.release()

    def flush(self, timeout_s: float) -> int:
        """Serve until no record is unacknowledged and no callback waits or runs.

        A callback that calls this does not wait for callbacks. Returns how many records are still
        unacknowledged.
        """
        deadline = self._now() + timeout_s
        while not self._is_quiet():
            self.serve(ROOM_SLICE_S)
            if self._now() > deadline:
                break
        self.hand_out()  # `_is_quiet` held the lock, so another thread may have skipped callbacks
        return len(self._writer)

    def await_release(self, delivery: Delivery, waker: Waker, timeout_s: float) -> None:
        """Wait for `waker`, which `delivery` releases; serve meanwhile if no other thread does."""
        deadline = self._now() + timeout_s
        if self._current() == self._in_background:
            self._serve_until(deadline, delivery, _SLICE_S)
            return
        with self.guard:
            self._waiting += 1
            is_first = self._waiting == 1
        try:
            if not is_first:
                self._crowded_at = self._now()
            elif deadline - timeout_s - self._crowded_at >= ALONE_AGAIN_S:
                self._serve_alone(deadline, delivery)
            if not delivery.done():
                self.leave_to_background()
                waker.acquire(timeout=max(0.0, deadline - self._now()))
        finally:
            with self.guard:
                self._waiting -= 1

    def leave_to_background(self) -> None:
        """Have the background thread serve at once, because the caller does not."""
        self._inline_at = 0.0
        if self._is_parked or self._is_idle:  # idle: it is about to park
            self._kick.set()

    def run_guarded(self, callback: Callable[[Any], object], delivery: Delivery) -> None:
        """Run a user's callback (for deliveries); an exception is logged."""
        try:
            callback(delivery)
        except BaseException as error:  # the user's code must not stop acknowledgements
            log_safely(_LOG.exception, "a delivery callback raised")
            # Ctrl-C is meant for the program; Python raises it in the main thread only.
            if isinstance(error, KeyboardInterrupt) and self._run.is_main():
                raise

    def _serve_alone(self, deadline: float, delivery: Delivery) -> None:
        self._is_served = True
        try:
            self._serve_until(deadline, delivery, _ALONE_SLICE_S)
        except KafkaFailure:
            pass  # the background thread meets it too, and logs it
        finally:
            self._is_served = False
            if self._waiting > 1:  # threads that began to wait meanwhile
                self._inline_at = 0.0
                self._kick.set()

    def _serve_until(self, deadline: float, delivery: Delivery, slice_s: float) -> None:
        while not delivery.done() and (left_s := deadline - self._now()) > 0:
            self._poll(min(left_s, slice_s))
            self.hand_out()

    def _is_quiet(self) -> bool:
        if self._drainer == self._current():
            return not len(self._writer)
        # While the lock is held no callback runs, so no callback sends between the two checks.
        if not self._draining.acquire(blocking=False):
            return False
        try:
            return not len(self._writer) and not self.ready
        finally:
            self._draining.release()

    def _run_ready(self) -> None:
        ready = self.ready
        while ready:  # the drain lock is held: nobody else pops
            ready[0].run_callbacks()  # stays in `ready` until it returns, in case Ctrl-C interrupts
            ready.popleft()

    def _serve_until_stopped(self) -> None:
        self._in_background = self._current()
        while not self._stopping:
            try:
                self._serve_in_background()
            except BaseException:  # noqa: BLE001, PERF203  (waiting threads depend on this one)
                log_safely(_LOG.exception, "serving acknowledgements failed; continuing")
                self._park(_SLICE_S)

    def _serve_in_background(self) -> None:
        now = self._now()
        is_inline = self._is_served or now - self._inline_at < INLINE_GRACE_S
        # An event loop that sends densely serves at the end of each turn, and then leaves the rest.
        if is_inline or (self.on_batch is None and self._is_dense(now)):
            self._park(INLINE_GRACE_S)
            return
        served = self._poll(_SLICE_S)
        self.hand_out()
        if not served and not len(self._writer):
            self._is_idle = True
            if not len(self._writer):  # else a send has just missed the flag
                self._park(_IDLE_S)
            self._is_idle = False

    def _is_dense(self, now: float) -> bool:
        """Return whether other threads send so densely that they poll inline."""
        sends, seconds = self._sends - self._seen_sends, now - self._seen_at
        self._seen_sends, self._seen_at = self._sends, now
        return sends > DENSE_PER_S * max(seconds, INLINE_GRACE_S)

    def _park(self, seconds: float) -> None:
        self._is_parked = True
        self._kick.wait(seconds)
        self._is_parked = False
        self._kick.clear()


class Releasable(Protocol):
    """What a delivery releases when it is done: a waker, or the wait of a task."""

    def release(self) -> None:
        """End the wait."""


class Delivery:
    """A future of one record: thread-safe, and cheap, because it has no lock or condition.

    Callbacks run in the thread that serves acknowledgements. Callbacks must not block; they may
    send and decide in the pipelined form. An exception of a callback is logged (Ctrl-C is raised).
    """

    __slots__ = ("_callbacks", "_error", "_is_done", "_server", "_wakers", "offset", "timestamp")

    # Subclasses do not extend this method: a call through super() costs as much as the method.
    def __init__(self, server: DeliveryServer) -> None:
        self._server = server
        self._is_done = False
        self._error: Any = None
        self._wakers: list[Releasable] | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None
        self.offset = self.timestamp = -1

    def done(self) -> bool:
        """Return whether the record was acknowledged or has failed."""
        return self._is_done

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits for this, or has waited."""
        return self._wakers is not None

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(self)` once this is done; if this is done already, at once."""
        with self._server.guard:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self._is_done:
            self.run_callbacks()

    def run_callbacks(self) -> None:
        """Run the callbacks that have not run yet (for the server)."""
        while self._callbacks:
            with suppress(IndexError):  # popping is atomic: each runs in one thread only
                self._server.run_guarded(self._callbacks.pop(0), self)

    def fail(self, error: BaseException) -> None:
        """Note why the record failed, before `settle` (for subclasses)."""
        self._error = error

    def settle(self) -> None:
        """Mark as done, and have the server wake waiting threads (for subclasses, in `poll`)."""
        self._is_done = True
        if self._wakers is not None:
            self._server.woken.append(self)
        if self._callbacks:
            self._server.ready.append(self)

    def wake(self) -> None:
        """Wake the waiting threads (for the server)."""
        wakers = self._wakers
        while wakers:
            with suppress(IndexError):  # another thread was quicker
                wakers.pop().release()

    def wake_by(self, waker: Releasable) -> None:
        """Have `waker` released once this is done; if this is done already, perhaps never."""
        with self._server.guard:
            if self._wakers is None:
                self._wakers = []
            self._wakers.append(waker)

    def wait(self, timeout_s: float) -> bool:
        """Wait until done, at most `timeout_s`; return whether it is."""
        if self._is_done:
            return True
        waker = self._server.new_waker()
        waker.acquire()
        self.wake_by(waker)
        if not self._is_done:  # else `settle` may have run before the waker was added
            self._server.await_release(self, waker, timeout_s)
        return self._is_done


class Outcomes:
    """Counts acknowledgements, by the kind of record. Thread-safe.

    Callbacks of several threads come at the same time, and one comes with each record. So a count
    is an iterator: a step is atomic, and costs a third of an addition under a lock.

    Attributes:
        half_stored, commit_stored, rollback_stored: Count one record that a broker has stored.
    """

    __slots__ = ("_lock", "_reads", "_steps", "commit_stored", "half_stored", "rollback_stored")

    def __init__(self) -> None:
        self._lock = Lock()
        self._reads = 0  # a read is a step as well
        self._steps = {
            (record, outcome): count()
            for record in (HALF_MESSAGE, "COMMIT", "ROLLBACK")
            for outcome in (STORED, FAILED)
        }
        self.half_stored = partial(next, self._steps[HALF_MESSAGE, STORED])
        self.commit_stored = partial(next, self._steps["COMMIT", STORED])
        self.rollback_stored = partial(next, self._steps["ROLLBACK", STORED])

    def failed(self, record: str) -> None:
        """Count one failure: of HALF_MESSAGE, or of the value of a decision's Resolution."""
        next(self._steps[record, FAILED])

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the counts so far."""
        with self._lock:
            found = {key: next(steps) - self._reads for key, steps in self._steps.items()}
            self._reads += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a producer has done so far.

    Attributes:
        outcomes: (record, outcome) -> count, as `Outcomes` counts them.
        failed_decisions: `TransactionProducer.failed_decisions`.
        in_flight: Records without an acknowledgement now.
        checks: `TransactionProducer.check_counts()`.
    """

    outcomes: Mapping[tuple[str, str], int]
    failed_decisions: int
    in_flight: int
    checks: CheckCounts
