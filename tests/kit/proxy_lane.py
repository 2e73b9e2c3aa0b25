"""One direction of a connection, in which bytes may be late but never overtake each other."""

import asyncio
from collections import deque
from collections.abc import Callable

LANE_BYTES_MAX = 64 * 1024 * 1024  # what waits on one lane; a slow network drops as well


class LaneFullError(Exception):
    """More waits than a lane holds; the connection cannot go on."""


class Lane:
    """Hands bytes over to `write`, in order, each not before it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._write = write
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float:
        """How long it takes until all is written; 0 when nothing waits."""
        return max(0.0, self._waiting[-1][0] - self._loop.time()) if self._waiting else 0.0

    def put(self, data: bytes, delay_s: float = 0) -> None:
        """Have `data` written `delay_s` from now, or as soon as what is before it was.

        Raises:
            LaneFullError: too much waits already.
        """
        if not data:
            return
        if delay_s <= 0 and not self._waiting:
            self._write(data)
            return
        self._waiting_bytes += len(data)
        if self._waiting_bytes > LANE_BYTES_MAX:
            raise LaneFullError(f"{self._waiting_bytes} bytes wait")
        due = self._loop.time() + delay_s
        if self._waiting:
            due = max(due, self._waiting[-1][0])
        self._waiting.append((due, data))
        if self._timer is None:
            self._timer = self._loop.call_at(self._waiting[0][0], self._serve)

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            _, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._write(data)
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._serve)
