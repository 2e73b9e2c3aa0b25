"""The base of all clients: properties, requests, callbacks in polls, and the network.

A test that wants faults between clients and brokers uses a subclass of `Network`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.kafka.ports import ClientError, SeenTopic, TopicPartition
    from halfbridge.testkit.memory.broker import Broker
    from halfbridge.testkit.memory.process import Process
    from halfbridge.testkit.memory.scheduler import Scheduler

T = TypeVar("T")
# How long a client waits before it retries a request (retry.backoff.ms).
_BACKOFF_MS = 100


class Client:
    """A Kafka client of a process.

    librdkafka's `properties` that have no effect here are ignored. `on_lost` is called in the first
    poll after a connection was lost. Killing the process closes its clients.
    """

    def __init__(
        self,
        broker: Broker,
        network: Network,
        process: Process,
        properties: Mapping[str, Any],
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.process = process
        self.is_closed = False
        self._broker = broker
        self._network = network
        self._scheduler = broker.scheduler
        self._properties = properties
        self._on_lost = on_lost
        self._error_cb: Callable[[ClientError], None] | None = properties.get("error_cb")
        self._news: deque[Callable[[], None]] = deque()
        self._backoff_s = self.number("retry.backoff.ms", _BACKOFF_MS) / 1000
        self._scheduler.check(process)
        process.add(self)

    def die(self) -> None:
        """Die at once: nothing is sent or reported any more."""
        self.is_closed = True

    def connection_lost(self, failure: KafkaFailure | None = None) -> None:
        """Report a lost connection in the next poll (called by networks)."""
        lost = failure or KafkaFailure(Code.TRANSPORT, "Connection lost")
        self.tell(lost)
        if self._on_lost is not None:
            self._news.append(self._on_lost)

    def tell(self, failure: KafkaFailure) -> None:
        """Call `error_cb` in the next poll."""
        callback = self._error_cb
        if callback is not None:
            self._news.append(lambda: callback(failure))

    def number(self, name: str, default: int, *aliases: str) -> int:
        for each in (name, *aliases):
            if each in self._properties:
                return int(self._properties[each])
        return default

    def text(self, name: str, default: str = "") -> str:
        return str(self._properties.get(name, default))

    def flag(self, name: str, *, default: bool) -> bool:
        return str(self._properties.get(name, default)).lower() == "true"

    def _serve_news(self) -> int:
        served = 0
        while self._news:
            self._news.popleft()()
            served += 1
        return served

    def _request(
        self, kind: Kind, place: TopicPartition | str | None, do: Callable[[], T], timeout_s: float
    ) -> T:
        """Send a request once; a time-out is a retriable KafkaFailure."""
        try:
            return self._network.request(self, kind, place, do, timeout_s)
        except RequestTimeoutError as error:
            raise timed_out() from error

    def _persist(
        self,
        kind: Kind,
        place: TopicPartition | str | None,
        do: Callable[[], T],
        deadline_ns: int,
        again: frozenset[int] = frozenset(),
    ) -> T:
        """Send a request, retried after time-outs and the errors in `again`, until the deadline."""
        while True:
            try:
                return self._network.request(self, kind, place, do, self._left_s(deadline_ns))
            except RequestTimeoutError as error:
                if self._scheduler.now_ns >= deadline_ns:
                    raise timed_out() from error
            except KafkaFailure as failure:
                if failure.code not in again:
                    raise
                if self._scheduler.now_ns >= deadline_ns:
                    raise
            self._wait(None, min(self._backoff_s, self._left_s(deadline_ns)))

    def _wait(self, ready: Callable[[], bool] | None, timeout_s: float | None) -> bool:
        return self._scheduler.wait(self.process, ready, timeout_s)

    def _deadline(self, timeout_s: float) -> int:
        return self._scheduler.now_ns + int(timeout_s * NS_PER_S)

    def _left_s(self, deadline_ns: int) -> float:
        return max(0, deadline_ns - self._scheduler.now_ns) / NS_PER_S

    def _seen_topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        name = self.process.name
        return self._persist(
            Kind.METADATA, None, lambda: self._broker.seen_topics(name), self._deadline(timeout_s)
        )


def timed_out(text: str = "Local: Timed out") -> KafkaFailure:
    """Return the client's error for a request that no broker answered."""
    return KafkaFailure(Code.TIMED_OUT, text, is_retriable=True)


# Records of one partition in one fetch: as many as the daemon takes at once.
_FETCH_RECORDS_MAX = 5_000


class Kind(Enum):
    """Kinds of requests to a broker."""

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


class RequestTimeoutError(Exception):
    """No answer came in time: the request was executed, is still under way, or was lost."""


class Network:
    """Delivers every request; this class does so at once and without faults.

    A subclass that overrides `request` may raise RequestTimeoutError before or after `do()`, keep
    `do` and call it later, wait first, or call the client's `connection_lost`. A KafkaFailure that
    it raises is the broker's answer.

    Attributes:
        is_direct: `request` never waits. Otherwise admin requests, which must not wait, are sent by
            tasks of their own.
        yields: Every request first switches to the driver, which may step or kill any process
            between two requests. Such a network is not direct.
        is_down: Every request times out at once, as if the brokers' machines were down; set by
            tests.
    """

    def __init__(self, scheduler: Scheduler, *, yields: bool = False) -> None:
        self.scheduler = scheduler
        self.yields = yields
        self.is_direct = not yields
        self.is_down = False

    def request(
        self,
        client: Client,
        kind: Kind,
        place: TopicPartition | str | None,
        do: Callable[[], T],
        timeout_s: float,
    ) -> T:
        """Execute a request and return its answer: what `do` returns or raises.

        `place` is the partition, group, topic or transactional id of the request.

        Raises:
            RequestTimeoutError: no answer came in time; the client decides whether to retry.
        """
        del kind, place, timeout_s
        if self.yields:
            self.scheduler.yield_to_driver(client.process)
        if self.is_down:
            raise RequestTimeoutError
        return do()

    def reaches(self, process: Process) -> bool:
        """Return whether a process's heartbeats and the brokers' answers to it arrive."""
        del process
        return not self.is_down

    def records_max(self, client: Client, place: TopicPartition) -> int:
        """Return how many records a fetch returns at most."""
        del client, place
        return _FETCH_RECORDS_MAX
