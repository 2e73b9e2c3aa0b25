"""What a worker has failed at since it last succeeded: how long it waits, and what health shows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.checker.loop.backoff import delay_s

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# The first delay is short, since most failures pass at once.
FIRST_S = 0.05
LONGEST_S = 5.0
# Failures in a row after which health shows the last one.
FAILURES_RED = 3


class FailureCount:
    """Counts failures in a row, and ends the count when the worker succeeds.

    A rebuild is a success only for a worker that was able to write. For example, the broker
    refuses each kafka_txn of pair 3. The worker rebuilds pair 3 between two attempts; that rebuild
    proves nothing, and only a commit ends the count.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._in_a_row = 0
        self._failed_in: set[int] = set()  # pairs of kafka_txns that failed since the last commit

    def failed(self, why: str) -> float:
        """Count and log a failure, and return how long to wait before the next attempt, seconds."""
        self._in_a_row += 1
        wait_s = delay_s(self._in_a_row, FIRST_S, LONGEST_S)
        _log.warning("%s; reading again from the committed offsets in %.1f s", why, wait_s)
        if self._in_a_row >= FAILURES_RED:
            self._status.set_ill("work", why)
        return wait_s

    def kafka_txn_failed(self, pairs: Iterable[int]) -> None:
        """Record that a kafka_txn of these pairs failed."""
        self._failed_in.update(pairs)

    def committed(self) -> None:
        """Record that a kafka_txn is committed."""
        self._failed_in.clear()
        self._succeeded()

    def rebuilt(self, pairs: Collection[int]) -> None:
        """Record that the ledgers of all served pairs are rebuilt."""
        if self._failed_in.isdisjoint(pairs):
            self._succeeded()

    def _succeeded(self) -> None:
        if self._in_a_row:
            self._in_a_row = 0
            self._status.set_ill("work", "")
