"""Implements the admin port by the client library's AdminClient."""

from __future__ import annotations

import atexit
import hashlib
from concurrent.futures import CancelledError, TimeoutError  # noqa: A004  # its own on 3.10
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, admin
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
)
from confluent_kafka.admin import NewTopic as _NewTopic

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.making import made
from halfbridge.kafka.ports import Edge, SeenCluster, SeenPartition, SeenTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.kafka.ports import NewTopic, TopicPartition

# How much longer than the question's time-out to wait: the client's own error names the reason.
_CLIENT_GRACE_S = 1.0
_LOW_64_BITS = (1 << 64) - 1  # a topic's id is two signed longs
_EDGES = {
    Edge.START: (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
    Edge.END: (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    Edge.STABLE_END: (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
}


class KafkaAnswer:
    """A future of the client library; `read` converts its result, or raises KafkaFailure."""

    def __init__(self, future: Any, read: Callable[[Any], Any], timeout_s: float) -> None:
        self._future = future
        self._read = read
        self._timeout_s = timeout_s

    def done(self) -> bool:
        done: bool = self._future.done()
        return done

    def result(self, timeout_s: float | None = None) -> Any:
        wait_s = self._timeout_s + _CLIENT_GRACE_S if timeout_s is None else timeout_s
        try:
            return self._read(self._future.result(wait_s))
        except TimeoutError as error:
            raise _silence() from error
        except (KafkaException, RuntimeError) as error:  # an answer the client could not read
            raise failure_of(error) from error

    def add_done_callback(self, callback: Callable[[KafkaAnswer], object]) -> None:
        self._future.add_done_callback(lambda _: callback(self))


class KafkaAdmin:
    """An AdminClient of this module: implements `ports.Admin`."""

    def __init__(self, client: AdminClient) -> None:
        self._client: Any = client

    def poll(self, wait_s: float) -> None:
        self._client.poll(wait_s)

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        return seen_topics(self._metadata(timeout_s))

    def partitions(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, tuple[SeenPartition, ...]]:
        known = self._metadata(timeout_s).topics
        return {
            topic: tuple(
                SeenPartition(
                    None if one.leader < 0 else one.leader, tuple(one.replicas), tuple(one.isrs)
                )
                for _, one in sorted(known[topic].partitions.items())
            )
            for topic in topics
            if topic in known and known[topic].error is None
        }

    def broker_count(self, timeout_s: float) -> int:
        return len(self._metadata(timeout_s).brokers)

    def ask_ends(
        self, places: Iterable[TopicPartition], edge: Edge, timeout_s: float
    ) -> dict[TopicPartition, KafkaAnswer]:
        spec, isolation = _EDGES[edge]
        futures = self._client.list_offsets(
            {ClientTopicPartition(*place): spec for place in places},
            isolation_level=isolation,
            request_timeout=timeout_s,
        )
        return {
            (place.topic, place.partition): KafkaAnswer(future, _offset, timeout_s)
            for place, future in futures.items()
        }

    def ask_settings(self, topics: Iterable[str], timeout_s: float) -> dict[str, KafkaAnswer]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        futures = self._client.describe_configs(resources, request_timeout=timeout_s)
        return {
            resource.name: KafkaAnswer(future, _settings, timeout_s)
            for resource, future in futures.items()
        }

    def ask_rights(self, topics: Iterable[str], timeout_s: float) -> dict[str, KafkaAnswer]:
        return self._ask_topics(topics, _may_write, timeout_s)

    def ask_operations(self, topics: Iterable[str], timeout_s: float) -> dict[str, KafkaAnswer]:
        return self._ask_topics(topics, _operations, timeout_s)

    def ask_topic_ids(self, topics: Iterable[str], timeout_s: float) -> dict[str, KafkaAnswer]:
        return self._ask_topics(topics, _topic_id, timeout_s)

    def ask_cluster(self, timeout_s: float) -> KafkaAnswer:
        future = self._client.describe_cluster(
            include_authorized_operations=True, request_timeout=timeout_s
        )
        return KafkaAnswer(future, _cluster, timeout_s)

    def ask_broker_settings(self, broker: int, timeout_s: float) -> KafkaAnswer:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        (future,) = self._client.describe_configs([resource], request_timeout=timeout_s).values()
        return KafkaAnswer(future, _settings, timeout_s)

    def ask_members(self, group: str, timeout_s: float) -> KafkaAnswer:
        futures = self._client.describe_consumer_groups([group], request_timeout=timeout_s)
        return KafkaAnswer(futures[group], _members, timeout_s)

    def create_topics(self, topics: Sequence[NewTopic], timeout_s: float) -> dict[str, KafkaAnswer]:
        wanted = [
            _NewTopic(one.name, one.partitions, one.replicas, config=dict(one.settings))
            for one in topics
        ]
        futures = self._client.create_topics(
            wanted, operation_timeout=timeout_s, request_timeout=timeout_s
        )
        return {name: KafkaAnswer(future, _nothing, timeout_s) for name, future in futures.items()}

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, KafkaAnswer]:
        wanted = [ClientTopicPartition(*place, offset) for place, offset in offsets.items()]
        futures = self._client.delete_records(wanted, request_timeout=timeout_s)
        return {
            (place.topic, place.partition): KafkaAnswer(future, _nothing, timeout_s)
            for place, future in futures.items()
        }

    def add_partitions(self, topic: str, partitions: int, timeout_s: float) -> KafkaAnswer:
        wanted = [NewPartitions(topic, partitions)]
        futures = self._client.create_partitions(wanted, request_timeout=timeout_s)
        return KafkaAnswer(futures[topic], _nothing, timeout_s)

    def alter_settings(
        self, topic: str, settings: Mapping[str, str], timeout_s: float
    ) -> KafkaAnswer:
        set_it = AlterConfigOpType.SET
        entries = [
            ConfigEntry(name, value, incremental_operation=set_it)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        (future,) = self._client.incremental_alter_configs(
            [resource], request_timeout=timeout_s
        ).values()
        return KafkaAnswer(future, _nothing, timeout_s)

    def _ask_topics(
        self, topics: Iterable[str], read: Callable[[Any], Any], timeout_s: float
    ) -> dict[str, KafkaAnswer]:
        futures = self._client.describe_topics(
            TopicCollection(list(topics)),
            include_authorized_operations=True,
            request_timeout=timeout_s,
        )
        return {topic: KafkaAnswer(each, read, timeout_s) for topic, each in futures.items()}

    def _metadata(self, timeout_s: float) -> Any:
        try:
            return self._client.list_topics(timeout=timeout_s)
        except KafkaException as error:
            self._client.poll(0)  # logs the reason, which the error of the call does not name
            raise failure_of(error) from error


def seen_topics(metadata: Any) -> dict[str, SeenTopic]:
    """Return the topics of the client library's metadata that have no error and have partitions."""
    return {
        name: SeenTopic(
            len(topic.partitions),
            min(len(one.replicas) for one in topic.partitions.values()),
            frozenset(number for number, one in topic.partitions.items() if one.leader < 0),
            max(len(one.replicas) - len(one.isrs) for one in topic.partitions.values()),
            tuple(len(one.isrs) for _, one in sorted(topic.partitions.items())),
        )
        for name, topic in metadata.topics.items()
        if topic.error is None and topic.partitions
    }


def _offset(result: Any) -> int:
    """Return the offset of an answer.

    After a time-out the client (2.16) reports no error: the offset is still the negative number of
    the question, which would look like the end of a truncated log.
    """
    offset = int(result.offset)
    if offset < 0:
        raise _silence()
    return offset


def _settings(result: Any) -> dict[str, str]:
    return {name: str(entry.value) for name, entry in result.items()}


def _may_write(result: Any) -> bool | None:
    operations = result.authorized_operations
    return None if operations is None else AclOperation.WRITE in operations


def _operations(result: Any) -> frozenset[str] | None:
    operations = result.authorized_operations
    return None if operations is None else frozenset(_kafka_name(one.name) for one in operations)


def _topic_id(result: Any) -> str:
    """Return the id in base64, as Kafka's tools print it; empty: the broker gives topics none."""
    return str(result.topic_id) if topic_number(result) else ""


def topic_number(result: Any) -> int:
    """Return a described topic's id as a number of 128 bits; 0: the broker gives topics none."""
    uuid = result.topic_id
    if uuid is None:
        return 0
    most, least = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    return int((most & _LOW_64_BITS) << 64 | least & _LOW_64_BITS)


def _kafka_name(name: str) -> str:
    """Return an operation as kafka-acls writes it: DESCRIBE_CONFIGS is DescribeConfigs."""
    return "".join(part.title() for part in name.split("_"))


def _cluster(result: Any) -> SeenCluster:
    brokers = {node.id: f"{node.host}:{node.port}" for node in result.nodes}
    return SeenCluster(brokers, _operations(result))


def _members(result: Any) -> list[str]:
    return [f"{one.group_instance_id or one.client_id} on {one.host}" for one in result.members]


def _nothing(_result: Any) -> None:
    return None


def _silence() -> KafkaFailure:
    return failure_of(KafkaError(Code.TIMED_OUT))


# Clients without a reference, which are to be closed. A finalizer may call `put`, in any thread.
# Without a limit, since a finalizer cannot wait. A process makes one client for each cluster, and a
# new client only in place of the one before (exception E-004 of DESIGN.md).
_unused: SimpleQueue[Any] = SimpleQueue()
_start_lock = Lock()
_closer: Thread | None = None
# Once the interpreter ends, no other thread runs Python: the main thread destroys the rest.
_is_ending = False


class AdminClient(admin.AdminClient):  # type: ignore[misc]  # it has no types
    """The client library's AdminClient; may be dropped at any moment, in any thread.

    librdkafka makes Python objects of answers in a thread of its own, which may start a garbage
    collection. If the client itself is garbage, its own thread then destroys librdkafka, which
    aborts the process (SIGABRT; confluent-kafka-python #2131). So the finalizer keeps the client
    alive, and another thread closes it.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        _start()
        super().__init__(*arguments, **keywords)

    def __del__(self) -> None:
        if not _is_ending:
            _unused.put(self)


def _start() -> None:
    global _closer  # noqa: PLW0603  (one thread a process; a child process starts its own)
    with _start_lock:
        if _closer is None or not _closer.is_alive():
            _closer = Thread(target=_close_unused, name="halfbridge-admin-close", daemon=True)
            _closer.start()


@atexit.register
def _end() -> None:
    global _is_ending  # noqa: PLW0603  (the interpreter ends once)
    _is_ending = True


def _close_unused() -> None:
    while True:
        client = _unused.get()
        with suppress(Exception):  # nobody is left to whom it could be reported
            client.__exit__(None, None, None)
        del client  # the client is closed, and its finalizer does not run again


class TopicIds:
    """Asks for the ids of topics, by an admin client with `properties`."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = dict(properties)
        self._client: Any = None

    def ask(self, topic: str, timeout_s: float) -> str:
        """Return the id of a topic, 32 hexadecimal digits.

        Where the brokers have no ids, a hash of the topic's name is returned: then a topic that is
        deleted and created again has the same id. Raises KafkaFailure: the topic does not exist or
        may not be described, or no broker answers; the caller acts by its code.
        """
        client = self._client or made(AdminClient, self._properties)
        self._client = None  # one that had no answer may wait for a dead controller for ever
        futures = client.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        number: int = KafkaAnswer(futures[topic], topic_number, timeout_s).result()
        self._client = client
        if not number:
            return hashlib.sha256(topic.encode()).hexdigest()[:32]
        return f"{number:032x}"


# Brokers delete within seconds; a busy broker has been seen to take ten.
_ADMIN_S = 30.0
_GROUP_POLL_S = 0.5  # a group is left by the end of a session or rebalance, which take seconds


def delete_topics(bootstrap_servers: str, is_wanted: Callable[[str], bool]) -> None:
    """Delete the topics that `is_wanted` accepts.

    Raises KafkaFailure: one failed, others are deleted; the caller acts by its code.
    """
    admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers})
    try:
        doomed = [name for name in admin.list_topics(timeout=_ADMIN_S).topics if is_wanted(name)]
    except KafkaException as error:
        raise failure_of(error) from error
    futures = admin.delete_topics(doomed).values() if doomed else ()
    failures = [failure for each in futures if (failure := _failure(each)) is not None]
    if failures:
        raise failures[0]


def delete_groups(bootstrap_servers: str, groups: Iterable[str]) -> None:
    """Delete groups; KafkaFailure if one fails.

    Retries, because a worker that was cut off stays a member for its session.
    """
    admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers})
    for group in groups:
        deadline = monotonic() + _ADMIN_S
        while not _is_deleted(admin, group, is_last_try=monotonic() > deadline):
            sleep(_GROUP_POLL_S)


def _failure(future: Any) -> KafkaFailure | None:
    try:
        future.result(_ADMIN_S)
    except (KafkaException, TimeoutError, CancelledError) as error:
        return failure_of(error)
    return None


def _is_deleted(admin: Any, group: str, *, is_last_try: bool) -> bool:
    try:
        admin.delete_consumer_groups([group])[group].result(_ADMIN_S)
    except KafkaException as error:
        failure: KafkaFailure = failure_of(error)
        if failure.code == KafkaError.GROUP_ID_NOT_FOUND:
            return True
        if failure.code != KafkaError.NON_EMPTY_GROUP or is_last_try:
            raise failure from error
        return False
    return True
