"""What was read of MariaDB's binlog and is not taken yet: a bounded queue between two threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfbridge.sql.log_subscription.changes import Insert

_QUEUE_MAX = 2_000  # inserts read ahead: two message transactions
_PUT_TIMEOUT_S = 0.2  # how soon a full queue notices that the stream is closed


@dataclass(frozen=True, slots=True)
class Read:
    """An element of the queue.

    Attributes:
        insert: An insert; None: only the place in the log has changed.
        read_to: All inserts that committed up to this Position.commit were queued.
        file, offset: The place in the binlog up to which it was read.
    """

    insert: Insert | None
    read_to: str
    file: str
    offset: int


class ReadAhead:
    """The queue. One thread puts, another one takes and closes."""

    def __init__(self) -> None:
        self._queue: Queue[Read | Exception] = Queue(_QUEUE_MAX)
        self._closed = threading.Event()
        self._error: Exception | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is taken."""
        return self._closed.is_set()

    @property
    def is_half_full(self) -> bool:
        """Whether there is room left for inserts only, and not for changes of place."""
        return self._queue.qsize() > _QUEUE_MAX // 2

    def take(self, timeout_s: float) -> Read | None:
        """Return the next element; None: nothing came within `timeout_s`.

        Raises:
            Exception: An error that was put; every later call raises the error again.
        """
        if self._error is not None:
            raise self._error
        try:
            taken = (
                self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
            )
        except Empty:
            return None
        if isinstance(taken, Exception):
            self._error = taken
            raise taken
        return taken

    def put(self, what: Read | Exception) -> None:
        """Add an element; wait while the queue is full; do nothing once it is closed."""
        while not self._closed.is_set():
            try:
                self._queue.put(what, timeout=_PUT_TIMEOUT_S)
            except Full:
                continue
            return

    def close(self) -> None:
        """Take nothing more, and let the other thread go on."""
        self._closed.set()
