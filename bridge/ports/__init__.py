"""What this project needs of the outside: Kafka's clients, clocks, and concurrency.

Everything that speaks to Kafka, looks at a clock or waits is given these ports. Two things stand
behind them: `bridge/kafka` with `bridge/threads.py` (the client library, the system's clocks, its
threads), and the broker in memory (`halfbridge.testkit.memory`), where one scheduler decides who
goes on and what time it is.

Records are the client library's own message objects, and so are the errors that come with records
and acknowledgements: nothing is wrapped per record. `halfbridge.bridge.kafka.errors.failure_of`
makes a KafkaFailure of such an error. All other methods raise KafkaFailure themselves.

Times are seconds, unless a name says otherwise. A `Place` is (topic, partition).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from halfbridge.bridge.ports.admin import Admin, Answer, Edge, NewTopic, SeenTopic
from halfbridge.bridge.ports.clients import (
    NO_COMMITTED_OFFSET,
    Committed,
    Member,
    Place,
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
    "SeenTopic",
    "SideThread",
    "TransactionalWriter",
    "Waker",
    "Writer",
]


class Kafka(Protocol):
    """Makes clients.

    Properties are librdkafka's. `error_cb` is called with what `failure_of` takes. `on_lost` is
    called when the client lost a connection, an answer or its session, of which it says nothing
    else (`bridge/kafka/connections.py`).

    Raises (every method): ConfigError: a property is not known, or its value not taken.
    """

    def reader(self, properties: Mapping[str, Any]) -> Reader:
        """Return a reader that belongs to no group, but has a group's rights (`group.id`)."""

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
        """Return a client for questions; may be dropped at any moment, in any thread."""


@dataclass(frozen=True, slots=True)
class Ports:
    """All that a client or a worker is given of the outside.

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
