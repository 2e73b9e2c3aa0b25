"""The way to the brokers, as the run's choices would have it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.kafka.errors import KafkaFailure
from halfbridge.testkit.memory.client import Client, Kind, Network, RequestTimeoutError
from halfbridge.testkit.memory.log import Row
from tests.simulation import trouble
from tests.simulation.settings import LATE_MS, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.serde.headers import Headers
    from halfbridge.testkit.memory.process import Process
    from halfbridge.testkit.memory.scheduler import Scheduler
    from tests.simulation.world import World

T = TypeVar("T")
# Time-outs come in bunches: a third of them begin an outage.
OUTAGES_MS = (1_000, 1_000, 2_000, 12_000)
OUTAGE_RATE = 600
# A late request may arrive while a later kafka_txn is open.
OVERTAKEN_RATE = 500
# An answer may take so long.
SLOW_S = (0.1, 0.5, 3.0)
# Longer than a rebalance and the start of a ledger.
MOVED_S = 6.0
# A client notices a lost connection at once, or a silent broker within so long.
SILENT_S_MAX = 6.0
# How long a fetch of a stalled client waits for nothing, once everything is healed.
STALLED_S = 0.1
# Requests whose repetition, or late arrival, changes nothing that anybody relies on: a fault is
# only that no answer comes.
_QUESTIONS = frozenset(
    (
        *(Kind.METADATA, Kind.ENDS, Kind.SETTINGS, Kind.RIGHTS, Kind.MEMBERS),
        *(Kind.FETCH, Kind.FETCH_OFFSETS, Kind.JOIN, Kind.LEAVE, Kind.INIT),
    )
)


class RequestOutcome(Enum):
    """What becomes of a request."""

    DONE = "is done"
    LOST = "timed out and never came"
    LATE = "timed out and comes late"
    REPEATED = "is repeated, and comes late as well"
    UNHEARD = "timed out but was done"
    SLOW = "is slow"
    DEADLY = "its process dies"
    MOVED = "is slow, and a worker leaves meanwhile"


# What may become of one that fails; the first three in an outage.
FATES = (
    RequestOutcome.LOST,
    RequestOutcome.LATE,
    RequestOutcome.UNHEARD,
    RequestOutcome.SLOW,
    RequestOutcome.DEADLY,
)
_LATE = frozenset((RequestOutcome.LATE, RequestOutcome.REPEATED))
_SLOW = frozenset((RequestOutcome.SLOW, RequestOutcome.MOVED))


class ChosenNetwork(Network):
    """Lets requests time out: they are lost, arrive late, or are served without an answer.

    Attributes:
        stalled: Clients that are brought no records any more.
        late: (deadline, kind, what the broker does) of requests that are still under way.
    """

    def __init__(self, scheduler: Scheduler, world: World) -> None:
        super().__init__(scheduler, yields=True)
        self._world = world
        self._outage_until_ms = 0
        self.late: list[tuple[int, Kind, Callable[[], object]]] = []
        self.stalled: set[Client] = set()
        scheduler.on_time.append(self._on_time)

    def request(
        self,
        client: Client,
        kind: Kind,
        place: TopicPartition | str | None,
        do: Callable[[], T],
        timeout_s: float,
    ) -> T:
        """Have a request done, or not; others go on before."""
        world = self._world
        self.scheduler.yield_to_driver(client.process)
        if self.late and kind is Kind.TXN_OFFSETS and world.choices.fault(OVERTAKEN_RATE):
            self.step_late()
        if kind is Kind.FETCH and client in self.stalled and world.choices.is_calm:
            # A poll would ask repeatedly, and the virtual time does not move until it ends.
            self.scheduler.wait(client.process, None, STALLED_S)
        fate = self._fate(client.process, kind, place)
        if fate is RequestOutcome.DONE:
            return do()
        world.note(fate.value, kind.value)
        if fate is RequestOutcome.MOVED:
            trouble.move(world, client.process)
        if fate in _SLOW:
            slow_s = (
                MOVED_S
                if fate is RequestOutcome.MOVED
                else SLOW_S[world.choices.below(len(SLOW_S))]
            )
            self.scheduler.wait(client.process, None, min(slow_s, 0.8 * timeout_s))
            return do()
        if fate in _LATE:
            self.late.append((world.now_ms + LATE_MS, kind, do))
        elif fate is RequestOutcome.UNHEARD or (
            fate is RequestOutcome.DEADLY and world.choices.below(2)
        ):
            self._try(kind, do)
        if fate is RequestOutcome.DEADLY:
            world.lose(client.process)
        elif fate is RequestOutcome.REPEATED or world.choices.below(2):
            client.connection_lost()
        else:
            self.scheduler.wait(client.process, None, min(timeout_s, SILENT_S_MAX))
        raise RequestTimeoutError

    def _fate(
        self, process: Process, kind: Kind, place: TopicPartition | str | None
    ) -> RequestOutcome:
        """Choose what becomes of a request."""
        world, choices = self._world, self._world.choices
        is_outage = world.now_ms < self._outage_until_ms
        if not choices.fault(OUTAGE_RATE if is_outage else self._rate(kind)):
            if not world.rate:
                return RequestOutcome.DONE
            if kind is Kind.PRODUCE and place is not None and place[0] == NAMES.half:
                is_later = trouble.before(world, process) is not None
                if is_later and choices.fault(world.profile.moves):
                    return RequestOutcome.MOVED
            if kind is Kind.END_TXN and choices.fault(world.profile.late_ends):
                return RequestOutcome.REPEATED
            return RequestOutcome.DONE
        if not is_outage and choices.below(3) == 1:
            self._outage_until_ms = world.now_ms + OUTAGES_MS[choices.below(len(OUTAGES_MS))]
        fate = FATES[choices.below(3 if is_outage else len(FATES))]
        if (fate is RequestOutcome.LATE and not self._may_be_late(kind, place)) or (
            fate is RequestOutcome.UNHEARD and kind in _QUESTIONS
        ):
            return RequestOutcome.LOST
        return fate

    def records_max(self, client: Client, place: TopicPartition) -> int:
        """Return how many records a fetch brings at most."""
        if client in self.stalled:
            return 0
        if client.process.name.startswith("worker"):
            reads = self._world.profile.reads
            return reads[self._world.choices.below(len(reads))]
        return super().records_max(client, place)

    def step_late(self) -> None:
        """Have one late request arrive."""
        if self.late:
            self._arrive(self._world.choices.below(len(self.late)))

    def tear(self) -> None:
        """Have a process lose its connections."""
        world = self._world
        processes = [each.process for each in (*world.workers, *world.shops) if each is not None]
        if world.feed is not None:
            processes += world.feed.processes
        process = processes[world.choices.below(len(processes))]
        for client in process.clients:
            client.connection_lost()
        world.note("torn:", process.name)

    def rebalance(self, limit_ms: int = 1_000) -> None:
        """Have the daemon's group begin a new generation, within so long."""
        group = self._world.broker.group(NAMES.daemon_group)
        group.rebalance(self.scheduler.now_ns, limit_ms * 1_000_000)

    def leave(self, instance: str) -> None:
        """Have a static member leave the daemon's group."""
        group = self._world.broker.group(NAMES.daemon_group)
        for slot in [*group.slots.values()]:
            if slot.instance == instance:
                group.leave(slot.member_id, self.scheduler.now_ns)

    def append(
        self, place: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> int:
        """Store a stranger's record; return its offset."""
        row = Row(key, value, headers, self._world.now_ms)
        return self._world.broker.produce("stranger", place, [row], None)

    def _rate(self, kind: Kind) -> int:
        rate = self._world.rate
        return rate // 4 if kind in _QUESTIONS else rate

    def _may_be_late(self, kind: Kind, place: Any) -> bool:
        if kind in _QUESTIONS:
            return False
        is_half = isinstance(place, tuple) and place[0] == NAMES.half
        return self._world.has_late_halves or kind is not Kind.PRODUCE or not is_half

    def _on_time(self) -> None:
        while self.late and self.late[0][0] <= self._world.now_ms:
            self._arrive(0)

    def _arrive(self, which: int) -> None:
        _, kind, do = self.late.pop(which)
        self._try(kind, do)

    def _try(self, kind: Kind, do: Callable[[], object]) -> None:
        try:
            do()
        except KafkaFailure as failure:
            self._world.note("refused", kind.value, failure.name)
        else:
            self._world.note("came", kind.value)
