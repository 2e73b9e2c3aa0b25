"""A waker held like a lock, for code that waits or calls a port while it holds it.

A `threading.Lock` must not be used there. In the memory stack one scheduler runs all calls in one
thread. A call that waits for a `threading.Lock` stops the scheduler, and so the call that would
release the lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.bridge.ports import Waker


@contextmanager
def held(waker: Waker) -> Iterator[None]:
    """Hold `waker` in a `with` block; waits until nobody else holds it."""
    waker.acquire()
    try:
        yield
    finally:
        waker.release()
