"""Calls that wait for Kafka, outside the event loop; their number and time are limited."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from halfbridge.web.guards import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future
    from types import TracebackType

T = TypeVar("T")

# Reading a log takes the interpreter. More threads would only take it from each other; with fewer,
# calls that wait for a slow broker would hold up the others.
THREADS = 4
# Calls that run or wait for a thread: eight for each. A longer queue would outlast CALL_S_MAX. One
# that was given up still counts until it returns.
CALLS_MAX = 32
CALL_S_MAX = 30.0  # half of what nginx and most balancers wait by default
KEPT_MAX = 256  # answers: one of each kind and place that somebody has opened lately


class Work:
    """Runs calls in threads: those of `pool`, or `THREADS` of its own."""

    def __init__(self, pool: Executor | None = None) -> None:
        self._pool = pool or ThreadPoolExecutor(THREADS, thread_name_prefix="halfbridge-web")
        self._calls = 0

    async def run(self, call: Callable[[], T], *, within_s: float = CALL_S_MAX) -> T:
        """Return what `call` returns.

        Raises:
            Refusal: 503 while `CALLS_MAX` calls are under way, 504 after `within_s`; the client
                asks again later. The call continues, because a thread cannot be ended.
        """
        if self._calls >= CALLS_MAX:
            raise Refusal(
                503, f"{CALLS_MAX} requests wait already: repeat it", {"Retry-After": "2"}
            )
        loop = asyncio.get_running_loop()
        self._calls += 1
        future = self._pool.submit(call)
        future.add_done_callback(lambda done: self._end(loop, done))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), within_s)
        except asyncio.TimeoutError as error:
            raise Refusal(504, f"not done within {within_s:.0f} s: repeat it later") from error

    def close(self) -> None:
        """Begin no further call."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, loop: asyncio.AbstractEventLoop, _done: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._count_down)

    def _count_down(self) -> None:
        self._calls -= 1


class CachePolicy(NamedTuple):
    """How long an answer is kept."""

    fresh_s: float  # an answer so young is not made again
    old_s: float  # an answer so old may be shown while a new one is made


@dataclass(frozen=True, slots=True)
class CachedAnswer(Generic[T]):
    """An answer, and how long ago it was made, seconds."""

    value: T
    age_s: float


@dataclass(slots=True)
class _Place:
    """The last answer under one key, the task that makes a new one, and the last failure."""

    task: asyncio.Task[Any] | None = None
    value: Any = None
    made_s: float = -1.0
    failure: Exception | None = None
    trace: TracebackType | None = None  # of the failure, as the call raised it
    failed_s: float = -1.0


class Answers:
    """Answers that several requests share: one call a key at a time, its answer kept for a while.

    So a page costs the same for one operator as for twenty, and a page need not wait
    for a slow call: it shows the answer of before, and how old that is.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._places: dict[tuple[object, ...], _Place] = {}

    async def get(
        self,
        key: tuple[object, ...],
        call: Callable[[], T],
        *,
        fresh_s: float,
        old_s: float = 0.0,
        wait_s: float = CALL_S_MAX,
    ) -> CachedAnswer[T] | None:
        """Return an answer for `key`, which `call` makes in a thread; None: it is still being made.

        An answer as young as `fresh_s` is not made again. One as young as `old_s` may be returned
        where a new one is not there after `wait_s`.

        Raises:
            Refusal: as `Work.run`.
            Exception: as `call`, whose failure is kept for `fresh_s` too; the caller acts as on the
                call's own.
        """
        loop = asyncio.get_running_loop()
        place = self._place(key)
        if place.made_s >= 0 and loop.time() - place.made_s <= fresh_s:
            return CachedAnswer(place.value, loop.time() - place.made_s)
        if place.failure is None or loop.time() - place.failed_s > fresh_s:
            if place.task is None:
                place.task = loop.create_task(self._make(place, call))
            done, _ = await asyncio.wait({place.task}, timeout=wait_s)
            if not done:
                is_old = place.made_s < 0 or loop.time() - place.made_s > old_s
                return None if is_old else CachedAnswer(place.value, loop.time() - place.made_s)
        if place.failure is not None:
            # Each raise adds to a traceback, whose frames keep the requests that met the failure.
            raise place.failure.with_traceback(place.trace)
        return CachedAnswer(place.value, loop.time() - place.made_s)

    def forget(self) -> None:
        """Have everything read again: something was changed.

        What is being read now may have been read before the change: nobody new is given it.
        """
        self._places.clear()

    async def _make(self, place: _Place, call: Callable[[], Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            place.value = await self._work.run(call)
            place.made_s, place.failure, place.trace = loop.time(), None, None
        except Exception as error:  # noqa: BLE001 (raised in everybody who waits for it)
            place.failure, place.trace, place.failed_s = error, error.__traceback__, loop.time()
        finally:
            place.task = None

    def _place(self, key: tuple[object, ...]) -> _Place:
        place = self._places.pop(key, None) or _Place()
        self._places[key] = place  # after all others: used last
        if len(self._places) > KEPT_MAX:
            idle = (each for each, kept in self._places.items() if kept.task is None)
            oldest = next(idle, None)
            if oldest is not None and oldest != key:
                del self._places[oldest]
        return place
