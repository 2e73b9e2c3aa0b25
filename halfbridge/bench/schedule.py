"""When messages are due, at a given rate: an open loop, which waits for nobody."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from halfbridge.serde.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAD_S = 2.0  # the schedule runs this long before the measurement, so its start does not count


def lead_in(rate: float) -> int:
    """Return the number of messages in front of the measured ones."""
    return int(LEAD_S * rate)


def scheduled(numbers: Iterator[int], rate: float) -> Iterator[tuple[int, int]]:
    """Yield each number with its due time, at that time, or at once if that has passed.

    Args:
        numbers: Of the messages.
        rate: Messages a second.
    """
    interval_ns = NS_PER_S / rate
    start_ns = time.monotonic_ns()
    for place, number in enumerate(numbers):
        due_ns = start_ns + int(place * interval_ns)
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / NS_PER_S)
        yield number, due_ns


class Turns:
    """Gives the items of a schedule to many threads, one item at a time."""

    def __init__(self, schedule: Iterator[tuple[int, int]]) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()

    def __call__(self) -> tuple[int, int] | None:
        """Return the next item, when it is due; None after the last one."""
        with self._lock:
            return next(self._schedule, None)
