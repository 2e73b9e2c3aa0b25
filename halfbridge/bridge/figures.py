"""What a producer counts of its own records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.bridge.check_pool import CheckCounts

HALF_MESSAGE = "half message"
STORED, FAILED = "stored", "failed"


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
