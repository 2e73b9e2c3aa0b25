"""An admin client of the brokers in memory, as `ports.Admin`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import SeenCluster
from halfbridge.testkit.memory.broker import BROKERS
from halfbridge.testkit.memory.client import Client, Kind, RequestTimeoutError, timed_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.kafka.ports import Edge, NewTopic, SeenPartition, SeenTopic, TopicPartition
    from halfbridge.testkit.memory.process import Process
    from halfbridge.testkit.memory.scheduler import Scheduler

T = TypeVar("T")
P = TypeVar("P", bound="TopicPartition | str")

_BROKER_SETTINGS = {
    "transaction.max.timeout.ms": "900000",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offsets.retention.minutes": "10080",
}
# How much longer `result` waits than the client's own time-out, whose error has the reason.
_CLIENT_GRACE_S = 1.0


class MemoryAnswer(Generic[T]):
    """The future of an admin request, as `ports.Answer`."""

    def __init__(self, scheduler: Scheduler, process: Process, timeout_s: float) -> None:
        self._scheduler, self._process, self._timeout_s = scheduler, process, timeout_s
        self._is_done = False
        self._value: Any = None
        self._failure: KafkaFailure | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._is_done

    def result(self, timeout_s: float | None = None) -> T:
        wait_s = self._timeout_s + _CLIENT_GRACE_S if timeout_s is None else timeout_s
        if not self._scheduler.wait(self._process, self.done, wait_s):
            raise timed_out()
        if self._failure is not None:
            raise self._failure
        value: T = self._value
        return value

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def settle(self, ask: Callable[[], T]) -> None:
        try:
            self._value = ask()
        except KafkaFailure as failure:
            self._failure = failure
        except RequestTimeoutError:
            self._failure = timed_out()
        self._is_done = True
        for callback in self._callbacks:
            callback(self)


class MemoryAdmin(Client):
    """Sends admin requests to the brokers in memory."""

    def poll(self, wait_s: float) -> None:
        self._scheduler.check(self.process)
        if not self._serve_news() and wait_s > 0:
            self._wait(lambda: bool(self._news), wait_s)
            self._serve_news()

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        return self._seen_topics(timeout_s)

    def partitions(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, tuple[SeenPartition, ...]]:
        deadline_ns = self._deadline(timeout_s)
        return self._persist(Kind.METADATA, None, lambda: self._broker.places(topics), deadline_ns)

    def broker_count(self, timeout_s: float) -> int:
        deadline_ns = self._deadline(timeout_s)
        return self._persist(Kind.METADATA, None, lambda: BROKERS, deadline_ns)

    def ask_ends(
        self, places: Iterable[TopicPartition], edge: Edge, timeout_s: float
    ) -> dict[TopicPartition, MemoryAnswer[int]]:
        def end(place: TopicPartition) -> int:
            try:
                return self._broker.end(place, edge)
            except KafkaFailure as failure:
                text = "Failed to query partition leaders: No leaders found"
                raise KafkaFailure(Code.NOENT, text) from failure

        return self._ask_each(Kind.ENDS, places, end, timeout_s)

    def ask_settings(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, MemoryAnswer[dict[str, str]]]:
        def settings(topic: str) -> dict[str, str]:
            return dict(self._broker.topic(topic).settings)

        return self._ask_each(Kind.SETTINGS, topics, settings, timeout_s)

    def ask_rights(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, MemoryAnswer[bool | None]]:
        def may_write(topic: str) -> bool | None:
            return self._broker.may_write(self.process.name, self._broker.topic(topic).name)

        return self._ask_each(Kind.RIGHTS, topics, may_write, timeout_s)

    def ask_operations(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, MemoryAnswer[frozenset[str] | None]]:
        def operations(topic: str) -> frozenset[str] | None:
            return self._broker.topic_operations(self.process.name, self._broker.topic(topic).name)

        return self._ask_each(Kind.RIGHTS, topics, operations, timeout_s)

    def ask_topic_ids(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, MemoryAnswer[str]]:
        def topic_id(topic: str) -> str:
            return self._broker.topic(topic).topic_id

        return self._ask_each(Kind.METADATA, topics, topic_id, timeout_s)

    def ask_cluster(self, timeout_s: float) -> MemoryAnswer[SeenCluster]:
        def cluster() -> SeenCluster:
            brokers = {number: f"memory-{number}:9092" for number in range(BROKERS)}
            return SeenCluster(brokers, frozenset(("IdempotentWrite", "Describe")))

        return self._ask(Kind.METADATA, "brokers", cluster, timeout_s)

    def ask_broker_settings(self, broker: int, timeout_s: float) -> MemoryAnswer[dict[str, str]]:
        """Request a broker's settings: Kafka's defaults of those that halfbridge reads."""
        return self._ask(Kind.SETTINGS, str(broker), lambda: dict(_BROKER_SETTINGS), timeout_s)

    def ask_members(self, group: str, timeout_s: float) -> MemoryAnswer[list[str]]:
        """Request a group's live members: `<group.instance.id or client.id> on <host>`."""

        def members() -> list[str]:
            if group not in self._broker.groups:
                raise KafkaFailure(Code.GROUP_ID_NOT_FOUND, f"Group {group} not found.")
            slots = self._broker.groups[group].slots.values()
            return [f"{slot.instance or slot.client_id} on /127.0.0.1" for slot in slots]

        return self._ask(Kind.MEMBERS, group, members, timeout_s)

    def create_topics(
        self, topics: Sequence[NewTopic], timeout_s: float
    ) -> dict[str, MemoryAnswer[None]]:
        create = self._broker.create_topic
        return {
            topic.name: self._ask(Kind.CREATE_TOPIC, topic.name, partial(create, topic), timeout_s)
            for topic in topics
        }

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, MemoryAnswer[None]]:
        def delete(place: TopicPartition) -> None:
            self._broker.delete_records(place, wanted[place])

        wanted = dict(offsets)
        return self._ask_each(Kind.DELETE_RECORDS, wanted, delete, timeout_s)

    def add_partitions(self, topic: str, partitions: int, timeout_s: float) -> MemoryAnswer[None]:
        grow = partial(self._broker.grow_topic, topic, partitions)
        return self._ask(Kind.ADD_PARTITIONS, topic, grow, timeout_s)

    def alter_settings(
        self, topic: str, settings: Mapping[str, str], timeout_s: float
    ) -> MemoryAnswer[None]:
        alter = partial(self._broker.alter_topic, topic, settings)
        return self._ask(Kind.ALTER_SETTINGS, topic, alter, timeout_s)

    def close(self) -> None:
        self.is_closed = True

    def _ask(
        self, kind: Kind, place: TopicPartition | str, do: Callable[[], T], timeout_s: float
    ) -> MemoryAnswer[T]:
        """Send a request without waiting: in a task of its own if the network may wait."""
        self._scheduler.check(self.process)
        answer: MemoryAnswer[T] = MemoryAnswer(self._scheduler, self.process, timeout_s)

        def ask() -> T:
            return self._network.request(self, kind, place, do, timeout_s)

        if self._network.is_direct:
            answer.settle(ask)
        else:
            self._scheduler.start(self.process, lambda: answer.settle(ask), f"ask {kind.value}")
        return answer

    def _ask_each(
        self, kind: Kind, places: Iterable[P], do: Callable[[P], T], timeout_s: float
    ) -> dict[P, MemoryAnswer[T]]:
        return {place: self._ask(kind, place, partial(do, place), timeout_s) for place in places}
