"""How virtual time passes for a test: exactly while something happens, else in strides.

An idle daemon asks for records ten times a second. In 72 hours these are 2.6 million polls, none of
which does anything. So a poll may return later than asked. While nothing is written, time moves in
strides of a fifth of the quiet time, 240 s at most: after 10 s without a write, a poll of 0.1 s
takes 2 s. A check that is due 6 s after its half message comes at 7.2 s at the latest. The moment
that a test asks for is never passed over: whatever is due by then is done by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.testkit.memory.process import NS_PER_MS, NS_PER_S
from halfbridge.testkit.memory.scheduler import ROUNDS_MAX, ns_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.testkit.memory.broker import Broker

# A stride is this part of the time since the last write.
_STRIDE_PART = 5
# Below max.poll.interval.ms (300 s), after which Kafka expels a member that does not poll.
_STRIDE_NS_MAX = 240 * NS_PER_S
# What was begun is done once nothing was written for so long: two polls of an idle daemon (IDLE_S).
_QUIET_NS = 200 * NS_PER_MS
# What never becomes quiet is left to go on by itself.
_SETTLE_NS_MAX = 10 * NS_PER_S
_SPUN_NS = NS_PER_MS  # as the scheduler's own


class Passing:
    """Lets time pass for everybody, from outside all tasks.

    Args:
        broker: Its scheduler has the time, and its version tells of writes.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scheduler = broker.scheduler
        self._seen_version = -1
        self._written_ns = 0
        self._rounds = 0

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, then let everybody finish what was begun.

        Finishing takes some tenths of a second more, until nothing is written for 0.2 s.
        """
        self._run(self._scheduler.now_ns + ns_of(seconds), lambda: False)
        self.settle()

    def settle(self) -> None:
        """Let everybody finish what was begun; no strides are taken."""
        self._written_ns = began_ns = self._scheduler.now_ns
        quiet_ns = 0
        while quiet_ns < _QUIET_NS and self._written_ns < began_ns + _SETTLE_NS_MAX:
            self._run(self._written_ns + _QUIET_NS, lambda: False)
            quiet_ns = self._scheduler.now_ns - self._written_ns

    def until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Let time pass until something is so, or the time is over; tell whether it is."""
        return self._run(self._scheduler.now_ns + ns_of(timeout_s), is_so)

    def _run(self, deadline_ns: int, is_so: Callable[[], bool]) -> bool:
        scheduler = self._scheduler
        while True:
            ran = scheduler.runnable()
            for task in ran:
                scheduler.step(task)
            self._look()
            if ran:
                self._note_round()
                continue
            if is_so():
                return True
            if scheduler.now_ns >= deadline_ns:
                return False
            self._rounds = 0
            self._move(deadline_ns)

    def _look(self) -> None:
        version = self._broker.version
        if version != self._seen_version:
            self._seen_version, self._written_ns = version, self._scheduler.now_ns

    def _note_round(self) -> None:
        """Move time a little for tasks that ask without ever waiting."""
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            self._rounds = 0
            self._scheduler.advance(_SPUN_NS / NS_PER_S)

    def _move(self, deadline_ns: int) -> None:
        now_ns = self._scheduler.now_ns
        stride_ns = min((now_ns - self._written_ns) // _STRIDE_PART, _STRIDE_NS_MAX)
        next_ns = self._scheduler.next_moment()
        to_ns = deadline_ns if next_ns is None else max(next_ns, now_ns + stride_ns)
        self._scheduler.advance((min(to_ns, deadline_ns) - now_ns) / NS_PER_S)
