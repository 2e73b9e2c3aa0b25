"""The simulated machine: brokers, processes, the ports of each process, and virtual time.

Virtual time is exact while the brokers are written to; otherwise it moves in strides. An idle
daemon polls ten times a second: 2.6 million polls in 72 hours, none of which does anything. So a
poll may return later than asked. A stride is a fifth of the time since the last write, 240 s at
most: after 10 s without a write, a poll of 0.1 s takes 2 s. A check that is due 6 s after its half
message is sent at 7.2 s at the latest. No stride passes the moment that a test asks for: everything
due by then is done by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.ports import Ports
from halfbridge.serde.units import NS_PER_MS, NS_PER_S
from halfbridge.testkit.memory.admin import MemoryAdmin
from halfbridge.testkit.memory.broker import Broker
from halfbridge.testkit.memory.client import Network
from halfbridge.testkit.memory.concurrency import ProcessClock, ProcessConcurrency
from halfbridge.testkit.memory.member import MemoryMember
from halfbridge.testkit.memory.process import Process
from halfbridge.testkit.memory.reader import MemoryReader
from halfbridge.testkit.memory.scheduler import ROUNDS_MAX, Scheduler, ns_of
from halfbridge.testkit.memory.transactional_writer import MemoryTransactionalWriter
from halfbridge.testkit.memory.writer import MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

_UUID_V7 = 7 << 76 | 2 << 62  # version and variant (RFC 9562, 5.7)


class MemoryKafka:
    """Makes clients of one process, as `ports.Kafka`."""

    def __init__(self, broker: Broker, network: Network, process: Process) -> None:
        self._parts = broker, network, process

    def reader(self, properties: Mapping[str, object]) -> MemoryReader:
        return MemoryReader(*self._parts, properties)

    def member(
        self, properties: Mapping[str, object], *, on_lost: Callable[[], None] | None = None
    ) -> MemoryMember:
        return MemoryMember(*self._parts, properties, on_lost)

    def writer(self, properties: Mapping[str, object]) -> MemoryWriter:
        return MemoryWriter(*self._parts, properties)

    def transactional_writer(
        self, properties: Mapping[str, object], *, on_lost: Callable[[], None] | None = None
    ) -> MemoryTransactionalWriter:
        return MemoryTransactionalWriter(*self._parts, properties, on_lost)

    def admin(self, properties: Mapping[str, object]) -> MemoryAdmin:
        return MemoryAdmin(*self._parts, properties)


class Machine:
    """Brokers, and processes that use them, in one thread. A context manager."""

    def __init__(self, *, network: Callable[[Scheduler], Network] = Network) -> None:
        self.scheduler = Scheduler()
        self.broker = Broker(self.scheduler)
        self.network = network(self.scheduler)
        self._transactions = 0

    def process(self, name: str, *, skew_s: float = 0.0, skew_ms: int = 0) -> Process:
        return Process(name, skew_s=skew_s, skew_ms=skew_ms)

    def ports(self, process: Process) -> Ports:
        return Ports(
            MemoryKafka(self.broker, self.network, process),
            ProcessClock(self.scheduler, process),
            ProcessConcurrency(self.scheduler, process),
            self._transaction_id,
        )

    def run(self, process: Process, seconds: float) -> None:
        """Run all tasks for `seconds` of virtual time (as a wait of `process`)."""
        self.scheduler.wait(process, None, seconds)

    def close(self) -> None:
        self.scheduler.close()

    def _transaction_id(self) -> str:
        """Return a new id: a UUIDv7 of virtual time, with a count in place of random bits."""
        self._transactions += 1
        when = self.broker.now_ms << 80
        return f"{when | _UUID_V7 | self._transactions:032x}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# A stride is the time since the last write divided by this, so each makes that time a fifth longer:
# hours take few strides, and near deadlines are overshot by little.
_STRIDE_PART = 5
# Below max.poll.interval.ms (300 s), after which Kafka expels a member that does not poll.
_STRIDE_NS_MAX = 240 * NS_PER_S
# Work has settled once nothing was written for this long: two polls of an idle daemon (IDLE_S).
_QUIET_NS = 200 * NS_PER_MS
# Writes that never stop are not waited for any longer than this: 50 times the quiet time.
_SETTLE_NS_MAX = 10 * NS_PER_S
_SPUN_NS = NS_PER_MS  # as the scheduler's own


class Passing:
    """Advances virtual time and runs all tasks, from outside any task."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scheduler = broker.scheduler
        self._seen_version = -1
        self._written_ns = 0
        self._rounds = 0

    def advance(self, seconds: float) -> None:
        """Advance virtual time by `seconds`, then let all tasks settle.

        Settling takes some tenths of a second more, until nothing is written for 0.2 s.
        """
        self._run(self._scheduler.now_ns + ns_of(seconds), lambda: False)
        self.settle()

    def settle(self) -> None:
        """Run all tasks until nothing is written for 0.2 s, without strides."""
        self._written_ns = began_ns = self._scheduler.now_ns
        quiet_ns = 0
        while quiet_ns < _QUIET_NS and self._written_ns < began_ns + _SETTLE_NS_MAX:
            self._run(self._written_ns + _QUIET_NS, lambda: False)
            quiet_ns = self._scheduler.now_ns - self._written_ns

    def until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Advance virtual time until `is_so()`, or for `timeout_s`; return whether it is."""
        return self._run(self._scheduler.now_ns + ns_of(timeout_s), is_so)

    def _run(self, deadline_ns: int, is_so: Callable[[], bool]) -> bool:
        scheduler = self._scheduler
        while True:
            ran = scheduler.runnable()
            for task in ran:
                scheduler.step(task)
            self._note_writes()
            if ran:
                self._note_round()
                continue
            if is_so():
                return True
            if scheduler.now_ns >= deadline_ns:
                return False
            self._rounds = 0
            self._move(deadline_ns)

    def _note_writes(self) -> None:
        version = self._broker.version
        if version != self._seen_version:
            self._seen_version, self._written_ns = version, self._scheduler.now_ns

    def _note_round(self) -> None:
        """Move time a little for tasks that poll without ever waiting."""
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
