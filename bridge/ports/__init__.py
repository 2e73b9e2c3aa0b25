"""The ports: Kafka's clients, clocks and concurrency, as Protocols.

All code that uses Kafka, reads a clock or waits is given these ports. There are two
implementations: `bridge/kafka` with `bridge/threads.py` (the client library, the system's clocks
and threads), and the broker in memory (`halfbridge.testkit.memory`), where one scheduler decides
which call continues and what time it is.

Records, and the errors of records and acknowledgements, are the client library's own objects:
nothing is wrapped per record. `halfbridge.bridge.kafka.errors.failure_of` converts such an error to
a KafkaFailure. All other methods raise KafkaFailure themselves.

Times are seconds, unless a name says otherwise. A `Place` is (topic, partition).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from halfbridge.bridge.ports.admin import (
    Admin,
    Answer,
    Edge,
    NewTopic,
    Place,
    SeenCluster,
    SeenPartition,
    SeenTopic,
)
from halfbridge.bridge.ports.clients import (
    NO_COMMITTED_OFFSET,
    Committed,
    Member,
    Reader,
    Record,
    TransactionalWriter,
    Writer,
)
from halfbridge.bridge.ports.concurrency import (
    Call,
    Clock,
    Concurrency,
    Event,
    Line,
    Running,
    SideThread,
    Waker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "NO_COMMITTED_OFFSET",
    "Admin",
    "Answer",
    "Call",
    "Clock",
    "Committed",
    "Concurrency",
    "Edge",
    "Event",
    "Kafka",
    "Line",
    "Member",
    "NewTopic",
    "Place",
    "Ports",
    "Reader",
    "Record",
    "Running",
    "SeenCluster",
    "SeenPartition",
    "SeenTopic",
    "SideThread",
    "TransactionalWriter",
    "Waker",
    "Writer",
]


class Kafka(Protocol):
    """Makes clients.

    Properties are librdkafka's. `error_cb` is called with an error for `failure_of`. `on_lost` is
    called when the client has lost a connection, an answer or its session, which the client reports
    in no other way (`bridge/kafka/connections.py`).

    Raises (every method): ConfigError: a property is not known, or its value is refused.
    """

    def reader(self, properties: Mapping[str, Any]) -> Reader:
        """Return a reader that joins no group, but reads with the rights of `group.id`."""

    def member(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> Member:
        """Return a member of `group.id`; static with `group.instance.id`."""

    def writer(self, properties: Mapping[str, Any]) -> Writer:
        """Return a writer."""

    def transactional_writer(
        self, properties: Mapping[str, Any], *, on_lost: Callable[[], None] | None = None
    ) -> TransactionalWriter:
        """Return a writer with the `transactional.id` of its properties."""

    def admin(self, properties: Mapping[str, Any]) -> Admin:
        """Return an admin client; may be dropped at any moment, in any thread."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one client or worker.

    Attributes:
        kafka: Makes Kafka clients.
        clock: Tells the time.
        run: Runs calls beside each other.
        transaction_id: Returns a new transaction id.
    """

    kafka: Kafka
    clock: Clock
    run: Concurrency
    transaction_id: Callable[[], str]
