"""The way between clients and brokers; whoever wants trouble puts a subclass in its place."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.ports import Place
    from halfbridge.testkit.memory.process import Process, ProcessClient
    from halfbridge.testkit.memory.scheduler import Scheduler

T = TypeVar("T")

# Of one partition in one fetch: as many as the daemon takes at once.
_FETCH_RECORDS_MAX = 5_000


class Kind(Enum):
    """What is asked of a broker."""

    METADATA = "metadata"
    ENDS = "ends"
    SETTINGS = "settings"
    RIGHTS = "rights"
    MEMBERS = "members"
    CREATE_TOPIC = "create topic"
    ADD_PARTITIONS = "add partitions to a topic"
    ALTER_SETTINGS = "alter settings of a topic"
    DELETE_RECORDS = "delete records"
    FETCH = "fetch"
    FETCH_OFFSETS = "fetch offsets"
    COMMIT_OFFSETS = "commit offsets"
    JOIN = "join"
    LEAVE = "leave"
    PRODUCE = "produce"
    INIT = "init producer"
    ADD_TO_TXN = "add to kafka_txn"
    TXN_OFFSETS = "offsets of a kafka_txn"
    END_TXN = "end kafka_txn"


class NoAnswerError(Exception):
    """No answer came in time: the request was done, or is still under way, or never came."""


class Network:
    """Carries every request; this one does so at once and without fail.

    A subclass that overrides `request` may raise NoAnswerError before or after `do()`, keep `do`
    and call it later, wait first, or call the client's `connection_lost`. What it raises besides
    is taken for the broker's answer (KafkaFailure).

    Attributes:
        is_direct: Nothing waits in `request`. Else questions that must not wait are asked by
            tasks of their own.
        gives_way: Every request lets others go on first, so that a driver may choose who acts,
            or who dies, between any two requests. Such a network is not direct.
        is_down: No broker answers, at once, as if their machines were gone; for tests to set.
    """

    def __init__(self, scheduler: Scheduler, *, gives_way: bool = False) -> None:
        self.scheduler = scheduler
        self.gives_way = gives_way
        self.is_direct = not gives_way
        self.is_down = False

    def request(
        self,
        client: ProcessClient,
        kind: Kind,
        place: Place | str | None,
        do: Callable[[], T],
        timeout_s: float,
    ) -> T:
        """Have a request done and return its answer.

        Args:
            client: Who asks.
            kind: What for.
            place: Of which partition, group, topic or transactional id; None: of none.
            do: What the broker does.
            timeout_s: How long the client waits for the answer.

        Raises:
            NoAnswerError: nothing came in time.
            KafkaFailure: as the broker says.
        """
        del kind, place, timeout_s
        if self.gives_way:
            self.scheduler.give_way(client.process)
        if self.is_down:
            raise NoAnswerError
        return do()

    def reaches(self, process: Process) -> bool:
        """Tell whether heartbeats of a process arrive, and what brokers tell it."""
        del process
        return not self.is_down

    def records_max(self, client: ProcessClient, place: Place) -> int:
        """Return how many records a fetch brings at most."""
        del client, place
        return _FETCH_RECORDS_MAX
