"""The operator's commands' side of Kafka: topics, offsets and reading whole partitions."""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec

from halfbridge.bridge.admin_client.kafka_io import AdminClient
from halfbridge.bridge.inquiry.kafka_io import ask_offsets, offset_of
from halfbridge.bridge.kafka_io import made
from halfbridge.bridge.trouble import Reasons
from halfbridge.checker.admin.read import CommittedOffset, LogRecord
from halfbridge.checker.admin.shape import SeenTopic, TopicShape
from halfbridge.checker.errors import AdminError
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

CALL_TIMEOUT_S = 20.0
REACH_TIMEOUT_S = 8.0  # an operator waits for it; a typo in the address is the usual cause
# A topic just made is not known to every broker at once.
SETTLE_TIMEOUT_S = 30.0
SETTLE_POLL_S = 0.05
READ_BATCH = 10_000
_INVALID = -1001
# What a broker answers while a group's coordinator is made or moved, or a topic is new to it. The
# last is the client's own word for a request to a broker that metadata no longer name: one that has
# just started, or lost its session for a moment.
_PASSING_ERRORS = frozenset(
    (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError._DESTROY_BROKER,
    )
)


class Cluster:
    """A Kafka cluster, as far as the operator's commands need it.

    Args:
        bootstrap_servers: Brokers.
        kafka: More client properties.
    """

    def __init__(self, bootstrap_servers: str, *, kafka: Mapping[str, str] | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._common: dict[str, Any] = {
            **(kafka or {}),
            "bootstrap.servers": bootstrap_servers,
            "allow.auto.create.topics": False,
            # Errors come back from the calls; librdkafka's own log lines would only repeat them.
            "log_level": 0,
        }
        self._reasons = Reasons()
        self._admin: Any = made(AdminClient, {**self._common, "error_cb": self._reasons.note})

    def broker_count(self) -> int:
        """Return how many brokers there are.

        Raises:
            AdminError: none answers; the operator checks the address.
        """
        return len(self._metadata().brokers)

    def topics(self) -> list[str]:
        """Return the names of all topics that may be seen."""
        return sorted(name for name, one in self._metadata().topics.items() if one.error is None)

    def describe(self, topics: Iterable[str]) -> dict[str, SeenTopic]:
        """Return those of `topics` that exist."""
        wanted = tuple(topics)
        with self._errors("read topic settings"):
            return dict(_patiently(lambda: self._described(wanted)))

    def _described(self, topics: Sequence[str]) -> dict[str, SeenTopic]:
        known = self._metadata().topics
        found = [topic for topic in topics if topic in known and known[topic].error is None]
        if not found:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in found]
        seen = {}
        futures = self._admin.describe_configs(resources, request_timeout=CALL_TIMEOUT_S)
        for resource, future in futures.items():
            partitions = known[resource.name].partitions
            seen[resource.name] = SeenTopic(
                len(partitions),
                min(len(partition.replicas) for partition in partitions.values()),
                {name: str(entry.value) for name, entry in future.result().items()},
            )
        return seen

    def create(self, shape: TopicShape, *, replication_factor: int) -> bool:
        """Make a topic and wait until it is known; return False when it is there already."""
        settings = {wanted.key: wanted.value for wanted in shape.settings}
        topic = NewTopic(
            shape.name,
            num_partitions=shape.partitions,
            replication_factor=replication_factor,
            config=settings,
        )
        attempts = count(1)
        with self._errors(f"create topic {shape.name}"):
            is_new: bool = _patiently(lambda: self._create(topic, attempt=next(attempts)))
        if is_new:
            self._settle(shape.name, shape.partitions)
        return is_new

    def grow(self, topic: str, *, partitions: int) -> None:
        """Add partitions to a topic, `partitions` in all, and wait until they are known."""
        with self._errors(f"add partitions to {topic}"):
            self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()
        self._settle(topic, partitions)

    def live_members(self, group: str) -> list[str]:
        """Return the client ids and hosts of a consumer group's live members."""
        with self._errors(f"describe group {group}"):
            try:
                description = _patiently(lambda: self._describe_group(group))
            except KafkaException as error:
                if _cause(error).code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                raise
        return [
            f"{member.group_instance_id or member.client_id} on {member.host}"
            for member in description.members
        ]

    def committed(
        self, group: str, partitions: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], CommittedOffset]:
        """Return the group's committed offsets; uncommitted partitions have offset -1."""
        # A consumer, not AdminClient.list_consumer_group_offsets: that one dereferences the
        # consumer group that an admin client has not (rd_kafka_handle_OffsetFetch, seen with
        # librdkafka 2.16 as a segmentation fault) while the coordinator still loads its offsets.
        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        with self._errors(f"read the offsets of group {group}"), self._consumer(group) as consumer:
            found = _patiently(lambda: consumer.committed(wanted, timeout=CALL_TIMEOUT_S))
        return {
            (each.topic, each.partition): CommittedOffset(
                -1 if each.offset == _INVALID else each.offset, each.metadata or ""
            )
            for each in found
        }

    def commit(self, group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        """Commit offsets with metadata for a group without live members, all in one request.

        Raises:
            AdminError: the group has live members, or no right; the operator acts.
        """
        wanted = [
            TopicPartition(topic, number, offset, metadata)
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        with self._errors(f"commit offsets of group {group}"), self._consumer(group) as consumer:
            _patiently(lambda: consumer.commit(offsets=wanted, asynchronous=False))

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """Return log start and end of a partition, read_uncommitted."""
        where = TopicPartition(topic, partition)
        with self._errors(f"read the ends of {topic} {partition}"):
            futures = [
                ask_offsets(self._admin, [where], spec, CALL_TIMEOUT_S)[where]
                for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
            ]
            start, end = (offset_of(future, CALL_TIMEOUT_S) for future in futures)
        return start, end

    def partition_count(self, topic: str) -> int:
        """Return a topic's number of partitions; 0 when it does not exist."""
        known = self._metadata().topics.get(topic)
        return 0 if known is None or known.error is not None else len(known.partitions)

    def read(self, topic: str, partition: int, *, start: int, end: int) -> Iterator[LogRecord]:
        """Yield a partition's committed records from `start` up to `end`, an end it has had.

        Raises:
            AdminError: no progress for `CALL_TIMEOUT_S`, such as behind an open kafka_txn.
        """
        if start >= end:
            return
        with (
            self._errors(f"read {topic} {partition}"),
            self._consumer("halfbridge-admin") as consumer,
        ):
            consumer.assign([TopicPartition(topic, partition, start)])
            yield from self._read_to(consumer, topic, partition, end=end)

    def _create(self, topic: NewTopic, *, attempt: int) -> bool:
        futures = self._admin.create_topics([topic], operation_timeout=CALL_TIMEOUT_S)
        try:
            futures[topic.topic].result()
        except KafkaException as error:
            if _cause(error).code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return attempt > 1  # made by an attempt whose answer did not come
            raise
        return True

    def _describe_group(self, group: str) -> Any:
        groups = self._admin.describe_consumer_groups([group], request_timeout=CALL_TIMEOUT_S)
        return groups[group].result()

    def _read_to(
        self, consumer: Any, topic: str, partition: int, *, end: int
    ) -> Iterator[LogRecord]:
        last_progress = time.monotonic()
        at_end = False
        while not at_end:
            for message in _fetched(consumer):
                last_progress = time.monotonic()
                error = message.error()
                if error is None:
                    if message.offset() < end:
                        yield _record(message)
                    at_end = at_end or message.offset() >= end - 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    # EOF is sent at the last stable offset, which an open kafka_txn holds back.
                    at_end = at_end or message.offset() >= end
                else:
                    raise KafkaException(error)
            if time.monotonic() - last_progress > CALL_TIMEOUT_S:
                raise AdminError(
                    f"{topic} {partition}: nothing readable up to offset {end} within"
                    f" {CALL_TIMEOUT_S:.0f} s: an open kafka_txn may hold it back; try again"
                )

    @contextmanager
    def _consumer(self, group: str) -> Iterator[Any]:
        settings = {
            **self._common,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        consumer = made(Consumer, settings)
        try:
            yield consumer
        finally:
            consumer.close()

    def _metadata(self) -> Any:
        with self._errors("reach Kafka"):
            return self._admin.list_topics(timeout=REACH_TIMEOUT_S)

    def _settle(self, topic: str, partitions: int) -> None:
        """Wait until every partition of a topic has a leader that answers."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not self._answers(topic, partitions):
            if time.monotonic() > deadline:
                raise AdminError(
                    f"topic {topic} was made but has no leader after {SETTLE_TIMEOUT_S:.0f} s;"
                    " try again"
                )
            time.sleep(SETTLE_POLL_S)

    def _answers(self, topic: str, partitions: int) -> bool:
        known = self._metadata().topics.get(topic)
        if known is None or len(known.partitions) < partitions:
            return False  # any broker may be asked, and this one has not heard of it
        return all(known.partitions[number].leader >= 0 for number in range(partitions))

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            self._admin.poll(0)  # hands over what it noted of its connections
            text = self._reasons.explain(_cause(error))
            raise AdminError(
                f"cannot {action} at {self.bootstrap_servers}: {text};"
                " check that the brokers run, the address and the rights"
            ) from error


def _cause(error: KafkaException) -> Any:
    return error.args[0]


def _fetched(consumer: Any) -> list[Any]:
    """Return what has been fetched; consume() alone would wait for all it may return."""
    first = consumer.poll(0.5)
    return [] if first is None else [first, *consumer.consume(READ_BATCH, 0)]


def _record(message: Any) -> LogRecord:
    try:
        headers = headers_of(message)
    except DecodeError:
        headers = None  # what cannot be read is no half message
    return LogRecord(
        message.partition(),
        message.offset(),
        message.timestamp(),
        message.key(),
        message.value(),
        list(headers or ()),
    )


def _patiently(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, called again while brokers answer what will pass."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            return _checked(call())
        except KafkaException as error:
            retriable = _cause(error).code() in _PASSING_ERRORS
            if not retriable or time.monotonic() > deadline:
                raise
        time.sleep(SETTLE_POLL_S)


def _checked(answer: Any) -> Any:
    """Return `answer` unless it is a list of partitions of which one failed."""
    for each in answer if isinstance(answer, list) else ():
        if each.error is not None:
            raise KafkaException(each.error)
    return answer
