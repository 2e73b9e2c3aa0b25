"""Questions to brokers, and topics that they make."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.bridge.ports.clients import Place

T_co = TypeVar("T_co", covariant=True)


class SeenTopic(NamedTuple):
    """A topic as metadata name it.

    Attributes:
        partitions: How many there are.
        replicas: The fewest that a partition has.
        is_led: Every partition has a leader.
    """

    partitions: int
    replicas: int
    is_led: bool


class NewTopic(NamedTuple):
    """A topic to be made."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


class Edge(Enum):
    """Which end of a log is asked for.

    START is the log start. END is the high watermark. STABLE_END is the last stable offset: up to
    there read_committed readers come.
    """

    START = "start"
    END = "end"
    STABLE_END = "stable end"


class Answer(Protocol[T_co]):
    """What one question to a broker will have brought."""

    def done(self) -> bool:
        """Tell whether `result` has not to wait."""

    def result(self, timeout_s: float | None = None) -> T_co:
        """Return the answer; wait for it.

        Args:
            timeout_s: None: a moment longer than the question was given, since the client knows
                why it was not answered.

        Raises:
            KafkaFailure: as the broker or the client says; TIMED_OUT when neither says anything.
        """

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Have `callback(self)` called once this is done, in whatever thread."""


class Admin(Protocol):
    """Asks brokers, and has topics made."""

    def poll(self, wait_s: float) -> None:
        """Serve what the client noted of its connections (`error_cb`)."""

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""

    def broker_count(self, timeout_s: float) -> int:
        """Return how many brokers metadata name."""

    def ask_ends(
        self, places: Iterable[Place], edge: Edge, timeout_s: float
    ) -> Mapping[Place, Answer[int]]:
        """Ask where logs begin or end."""

    def ask_settings(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[dict[str, str]]]:
        """Ask for the settings of topics, at least one: Kafka's name of each to its value."""

    def ask_rights(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[bool | None]]:
        """Ask whether this client may write to topics; None: the broker does not say."""

    def ask_members(self, group: str, timeout_s: float) -> Answer[list[str]]:
        """Ask for a group's live members: `<group.instance.id or client.id> on <host>`."""

    def create_topics(
        self, topics: Sequence[NewTopic], timeout_s: float
    ) -> Mapping[str, Answer[None]]:
        """Have topics made; TOPIC_ALREADY_EXISTS where one is there."""

    def add_partitions(self, topic: str, partitions: int, timeout_s: float) -> Answer[None]:
        """Have a topic grow to so many partitions in all."""
