"""The port for questions to brokers, and for creating topics."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Place = tuple[str, int]
T_co = TypeVar("T_co", covariant=True)


class SeenTopic(NamedTuple):
    """A topic as the brokers' metadata describe it.

    Attributes:
        partitions: Number of partitions.
        replicas: The lowest number of replicas that a partition has.
        leaderless: The partitions without a leader: nobody can write to them for now.
        out_of_sync: The highest number of replicas of a partition that have not caught up.
        in_sync: How many replicas of each partition have caught up; empty: not known.
    """

    partitions: int
    replicas: int
    leaderless: frozenset[int] = frozenset()
    out_of_sync: int = 0
    in_sync: tuple[int, ...] = ()

    @property
    def is_led(self) -> bool:
        """Whether every partition has a leader."""
        return not self.leaderless

    def unavailable(self, min_in_sync: int | None) -> dict[int, str]:
        """Return the partitions that take no records, each with the reason, as in "has no leader".

        Args:
            min_in_sync: The topic's `min.insync.replicas`; None: not known.
        """
        found = dict.fromkeys(sorted(self.leaderless), "has no leader")
        wanted = min_in_sync or 1
        if self.replicas >= wanted > 1:  # a broker never asks for more replicas than there are
            for number, count in enumerate(self.in_sync):
                if count < wanted and number not in found:
                    found[number] = f"has {count} of min.insync.replicas={wanted} replicas in sync"
        return found


class SeenPartition(NamedTuple):
    """Where a partition is, by the ids of brokers.

    Attributes:
        leader: The broker that takes records; None: there is none for now.
        replicas: The brokers that keep the log, the preferred leader first.
        in_sync: Those of them that have caught up.
    """

    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class SeenCluster(NamedTuple):
    """A cluster as a broker describes it.

    Attributes:
        brokers: Id of each broker -> host:port.
        operations: Kafka's names of what this client may do to the cluster; None: not told.
    """

    brokers: Mapping[int, str]
    operations: frozenset[str] | None


class NewTopic(NamedTuple):
    """A topic to be created."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


class Edge(Enum):
    """Which offset of a log is asked for.

    START is the log start. END is the high watermark. STABLE_END is the last stable offset, the end
    of the log for read_committed readers.
    """

    START = "start"
    END = "end"
    STABLE_END = "stable end"


class Answer(Protocol[T_co]):
    """The future answer of a broker to one question."""

    def done(self) -> bool:
        """Tell whether `result` returns without waiting."""

    def result(self, timeout_s: float | None = None) -> T_co:
        """Wait for the answer and return it.

        Args:
            timeout_s: None: a moment longer than the question's own time-out, because the client's
                error then says why there is no answer.

        Raises:
            KafkaFailure: the broker's or the client's error; TIMED_OUT if there is neither.
        """

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(self)` once this is done, in any thread."""


class Admin(Protocol):
    """Asks brokers, and creates topics."""

    def poll(self, wait_s: float) -> None:
        """Serve the client's error callback (`error_cb`)."""

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""

    def partitions(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, tuple[SeenPartition, ...]]:
        """Return where each partition is of those of `topics` that exist."""

    def broker_count(self, timeout_s: float) -> int:
        """Return the number of brokers in the metadata."""

    def ask_ends(
        self, places: Iterable[Place], edge: Edge, timeout_s: float
    ) -> Mapping[Place, Answer[int]]:
        """Ask where logs begin or end."""

    def ask_settings(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[dict[str, str]]]:
        """Ask for the settings of at least one topic: name of the setting -> value."""

    def ask_rights(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[bool | None]]:
        """Ask whether this client may write to topics; None: the broker does not say."""

    def ask_operations(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[frozenset[str] | None]]:
        """Ask what this client may do to topics, as `Read`, `DescribeConfigs`; None: not told."""

    def ask_topic_ids(self, topics: Iterable[str], timeout_s: float) -> Mapping[str, Answer[str]]:
        """Ask for the ids that topics got when they were created; empty: they have none."""

    def ask_cluster(self, timeout_s: float) -> Answer[SeenCluster]:
        """Ask which brokers there are."""

    def ask_broker_settings(self, broker: int, timeout_s: float) -> Answer[dict[str, str]]:
        """Ask for the settings of a broker: Kafka's name of each to its value."""

    def ask_members(self, group: str, timeout_s: float) -> Answer[list[str]]:
        """Ask for a group's live members: `<group.instance.id or client.id> on <host>`."""

    def create_topics(
        self, topics: Sequence[NewTopic], timeout_s: float
    ) -> Mapping[str, Answer[None]]:
        """Create topics; the answer for a topic that exists is TOPIC_ALREADY_EXISTS."""

    def delete_records(
        self, offsets: Mapping[Place, int], timeout_s: float
    ) -> Mapping[Place, Answer[None]]:
        """Have the records of each place below an offset deleted; its log then starts there."""

    def add_partitions(self, topic: str, partitions: int, timeout_s: float) -> Answer[None]:
        """Grow a topic to `partitions` partitions in all."""

    def alter_settings(
        self, topic: str, settings: Mapping[str, str], timeout_s: float
    ) -> Answer[None]:
        """Change some settings of a topic: all of them, or none."""
