"""What a producer counts of its own records."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.check_pool import CheckCounts

HALF_MESSAGE = "half message"
STORED, FAILED = "stored", "failed"


class Outcomes:
    """Counts acknowledgements, by the kind of record. Thread-safe.

    Callbacks of several threads come at the same time, so an addition needs the lock; it is held
    for some 50 ns.
    """

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, str], int] = {
            (record, outcome): 0
            for record in (HALF_MESSAGE, "COMMIT", "ROLLBACK")
            for outcome in (STORED, FAILED)
        }

    def add(self, record: str, outcome: str) -> None:
        """Count one record: HALF_MESSAGE, or the value of a decision's Resolution."""
        with self._lock:
            self._counts[record, outcome] += 1

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)


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
