"""Decisions that a client sends without awaiting them: what is promised about them, and its judge.

In runs with such decisions clients have small queues, close in order or die, and sometimes repeat a
decision that failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from tests.simulation.settings import GROUPS, BrokenPromiseError

if TYPE_CHECKING:
    from halfbridge.bridge.futures import DecisionFuture

# in_flight_max of the groups' clients. With 1, a decision waits for all others' acknowledgements.
# With more, a repeated record may be stored after a later one.
IN_FLIGHT_MAX = dict(zip(GROUPS, (1, 8), strict=True))
# In the error of a record that its client has dropped.
_PURGED = "_PURGE_"


@dataclass(frozen=True, slots=True)
class SentDecision:
    """A decision whose call has returned.

    Attributes:
        process: The client process.
        future: What the call returned.
        began: The number of the call among all calls and returns of the process.
        returned: The number of its return; began + 1 if no other task of the process called.
    """

    process: str
    future: DecisionFuture
    began: int
    returned: int


class SentJudge:
    """Judges the order of sent decisions, their number in flight, and what `close` leaves."""

    def __init__(self) -> None:
        self._decisions: list[SentDecision] = []
        self._broken: list[str] = []
        self._moments: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()  # that have not returned

    def begins(self, process: str) -> int:
        """Record that a process decides; return the number of the call."""
        self._calls[process] += 1
        self._moments[process] += 1
        return self._moments[process]

    def refused(self, process: str) -> None:
        """Record that a call has raised."""
        self._calls[process] -= 1

    def sent(self, process: str, future: DecisionFuture, *, began: int, in_flight_max: int) -> None:
        """Record that a decision was sent by a process with this `in_flight_max`."""
        self._calls[process] -= 1
        self._moments[process] += 1
        returned = self._moments[process]
        self._decisions.append(SentDecision(process, future, began, returned))
        open_ = sum(not each.future.done() for each in self._decisions if each.process == process)
        is_alone = returned == began + 1 and not self._calls[process]
        if is_alone and open_ > in_flight_max:
            self._broken.append(f"{open_} decisions of {process} are in flight")

    def closed(self, process: str, *, in_time: bool) -> None:
        """Record that `close` has returned in a process; `in_time`: before its time-out."""
        for each in self._decisions:
            future = each.future
            if each.process != process:
                continue
            if not future.done():
                self._broken.append(f"{process} has closed and left {future.transaction.id}")
            elif in_time and _PURGED in str(future.exception()):
                self._broken.append(f"{process} has closed and dropped {future.transaction.id}")

    def rule(self) -> None:
        """Compare the positions of acknowledged decisions with the order of their calls.

        Raises:
            BrokenPromiseError: a promise was broken.
        """
        tries = Counter(each.future.transaction.id for each in self._decisions)
        pairs = defaultdict(list)
        for each in self._decisions:
            future = each.future
            is_only = tries[future.transaction.id] == 1
            if is_only and future.done() and future.exception() is None:
                pairs[each.process, future.transaction.half_partition].append(each)
        for decisions in pairs.values():
            self._broken += [
                f"{first.future.transaction.id} was overtaken by {later.future.transaction.id}"
                for first, later in permutations(decisions, 2)
                if first.returned < later.began and first.future.offset > later.future.offset
            ]
        if self._broken:
            raise BrokenPromiseError("; ".join(self._broken))
