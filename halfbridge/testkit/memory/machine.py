"""Where it all comes together: brokers, processes, and the ports that each process is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.kafka.ports import Ports
from halfbridge.testkit.memory.admin import MemoryAdmin
from halfbridge.testkit.memory.broker import Broker
from halfbridge.testkit.memory.concurrency import ProcessClock, ProcessConcurrency
from halfbridge.testkit.memory.member import MemoryMember
from halfbridge.testkit.memory.network import Network
from halfbridge.testkit.memory.process import Process
from halfbridge.testkit.memory.reader import MemoryReader
from halfbridge.testkit.memory.scheduler import Scheduler
from halfbridge.testkit.memory.transactional_writer import MemoryTransactionalWriter
from halfbridge.testkit.memory.writer import MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

_UUID_V7 = 7 << 76 | 2 << 62


class MemoryKafka:
    """Makes clients of one process, as `ports.Kafka`."""

    def __init__(self, broker: Broker, network: Network, process: Process) -> None:
        self._parts = broker, network, process

    def reader(self, properties: Mapping[str, Any]) -> MemoryReader:
        """Return a reader that belongs to no group."""
        return MemoryReader(*self._parts, properties)

    def member(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> MemoryMember:
        """Return a member of `group.id`."""
        return MemoryMember(*self._parts, properties, on_lost)

    def writer(self, properties: Mapping[str, Any]) -> MemoryWriter:
        """Return a writer."""
        return MemoryWriter(*self._parts, properties)

    def transactional_writer(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> MemoryTransactionalWriter:
        """Return a writer with the `transactional.id` of its properties."""
        return MemoryTransactionalWriter(*self._parts, properties, on_lost)

    def admin(self, properties: Mapping[str, Any]) -> MemoryAdmin:
        """Return a client for questions."""
        return MemoryAdmin(*self._parts, properties)


class Machine:
    """Brokers, and processes that use them, in one thread. A context manager.

    Args:
        brokers: How many there are.
        scheduler: Another one than usual.
        network: Makes the network; a subclass of `Network` for trouble.

    Attributes:
        scheduler: Has the time, and steps tasks.
        broker: All brokers.
        network: Carries requests.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        scheduler: Scheduler | None = None,
        network: Callable[[Scheduler], Network] = Network,
    ) -> None:
        self.scheduler = Scheduler() if scheduler is None else scheduler
        self.broker = Broker(self.scheduler, brokers=brokers)
        self.network = network(self.scheduler)
        self._transactions = 0

    def process(self, name: str, *, skew_s: float = 0.0, skew_ms: int = 0) -> Process:
        """Return a new process.

        Args:
            name: For people, and for rights.
            skew_s: What its monotonic clock shows at the beginning.
            skew_ms: How far its other clock is ahead.
        """
        return Process(name, skew_s=skew_s, skew_ms=skew_ms)

    def ports(self, process: Process) -> Ports:
        """Return what a process is given of the outside."""
        return Ports(
            MemoryKafka(self.broker, self.network, process),
            ProcessClock(self.scheduler, process),
            ProcessConcurrency(self.scheduler, process),
            self._transaction_id,
        )

    def run(self, process: Process, seconds: float) -> None:
        """Let everybody go on while so much time passes (as a wait of `process`)."""
        self.scheduler.wait(process, None, seconds)

    def close(self) -> None:
        """End all tasks."""
        self.scheduler.close()

    def _transaction_id(self) -> str:
        """Return a new id: a UUIDv7 of virtual time, with a count in place of random bits."""
        self._transactions += 1
        when = self.broker.now_ms << 80
        return f"{when | _UUID_V7 | self._transactions:032x}"

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all tasks."""
        self.close()
