"""The way to the brokers, as the run's choices would have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.bridge.failure import KafkaFailure
from halfbridge.testkit.memory.log import Row
from halfbridge.testkit.memory.network import Kind, Network, NoAnswerError
from tests.simulation.settings import LATE_MS, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.ports import Place
    from halfbridge.serde.headers import Headers
    from halfbridge.testkit.memory.client import Client
    from halfbridge.testkit.memory.scheduler import Scheduler
    from tests.simulation.world import World

T = TypeVar("T")
# Time-outs come in bunches: a third of them begin an outage.
OUTAGES_MS = (1_000, 1_000, 2_000, 12_000)
OUTAGE_RATE = 600
# How many of the records that are there one fetch brings.
READS = (1_000, 1_000, 1, 1, 3)
# A client notices a lost connection at once, or a silent broker within so long.
SILENT_S_MAX = 6.0
# Requests whose repetition, or late arrival, changes nothing that anybody relies on: a fault is
# only that no answer comes.
_QUESTIONS = frozenset(
    (
        *(Kind.METADATA, Kind.ENDS, Kind.SETTINGS, Kind.RIGHTS, Kind.MEMBERS),
        *(Kind.FETCH, Kind.FETCH_OFFSETS, Kind.JOIN, Kind.LEAVE, Kind.INIT),
    )
)


class ChosenNetwork(Network):
    """Lets requests time out: they never come, come late, or are done and nobody learns of it.

    Attributes:
        late: (deadline, kind, what the broker does) of requests that are still under way.
    """

    def __init__(self, scheduler: Scheduler, world: World) -> None:
        super().__init__(scheduler, gives_way=True)
        self._world = world
        self._outage_until_ms = 0
        self.late: list[tuple[int, Kind, Callable[[], object]]] = []
        scheduler.on_time.append(self._on_time)

    def request(
        self,
        client: Client,
        kind: Kind,
        place: Place | str | None,
        do: Callable[[], T],
        timeout_s: float,
    ) -> T:
        """Have a request done, or not; others go on before."""
        world, choices = self._world, self._world.choices
        self.scheduler.give_way(client.process)
        is_outage = world.now_ms < self._outage_until_ms
        if not choices.fault(OUTAGE_RATE if is_outage else self._rate(kind)):
            return do()
        if not is_outage and choices.below(3) == 1:
            self._outage_until_ms = world.now_ms + OUTAGES_MS[choices.below(len(OUTAGES_MS))]
        fate = choices.below(3)
        if fate == 1 and not self._may_be_late(kind, place):
            fate = 0
        if fate == 1:
            self.late.append((world.now_ms + LATE_MS, kind, do))
        elif fate == 2 and kind not in _QUESTIONS:
            self._try(kind, do)
        world.note("timed out", ("and never came", "and comes late", "but was done")[fate],
                   kind.value)  # fmt: skip
        if choices.below(2):
            client.connection_lost()
        else:
            self.scheduler.wait(client.process, None, min(timeout_s, SILENT_S_MAX))
        raise NoAnswerError

    def records_max(self, client: Client, place: Place) -> int:
        """Return how many records a fetch brings at most."""
        if client.process.name.startswith("worker"):
            return READS[self._world.choices.below(len(READS))]
        return super().records_max(client, place)

    def step_late(self) -> None:
        """Have one late request arrive."""
        if self.late:
            self._arrive(self._world.choices.below(len(self.late)))

    def tear(self) -> None:
        """Have a process lose its connections."""
        world = self._world
        processes = [each.process for each in (*world.workers, *world.shops) if each is not None]
        process = processes[world.choices.below(len(processes))]
        for client in process.clients:
            client.connection_lost()  # type: ignore[attr-defined]  # the network's own clients
        world.note("torn:", process.name)

    def rebalance(self) -> None:
        """Have the daemon's group begin a new generation."""
        self._world.broker.group(NAMES.daemon_group).rebalance(self.scheduler.now_ns, 1_000_000_000)

    def leave(self, instance: str) -> None:
        """Have a static member leave the daemon's group."""
        group = self._world.broker.group(NAMES.daemon_group)
        for seat in [*group.seats.values()]:
            if seat.instance == instance:
                group.leave(seat.member_id, self.scheduler.now_ns)

    def append(
        self, place: Place, key: bytes | None, value: bytes | None, headers: Headers | None
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
