"""Questions to brokers: the client library's AdminClient behind the ports."""

from __future__ import annotations

import atexit
from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, admin
from confluent_kafka import TopicPartition as _Place
from confluent_kafka.admin import AclOperation, ConfigResource, NewPartitions, OffsetSpec
from confluent_kafka.admin import NewTopic as _NewTopic

from halfbridge.bridge.failure import Code, KafkaFailure
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.ports import Edge, SeenTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfbridge.bridge.ports import NewTopic, Place

# How much later than its own limit the client is given up: it knows the reason.
_CLIENT_GRACE_S = 1.0
_EDGES = {
    Edge.START: (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
    Edge.END: (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
    Edge.STABLE_END: (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
}

# Clients that nothing refers to any more. `put` may be called by a finalizer, in any thread.
_unused: SimpleQueue[Any] = SimpleQueue()
_start_lock = Lock()
_closer: Thread | None = None
# Once the interpreter ends no other thread runs Python: the main thread destroys what is left.
_is_ending = False


class AdminClient(admin.AdminClient):  # type: ignore[misc]
    """The client library's AdminClient; may be dropped at any moment, in any thread.

    librdkafka hands answers over in a thread of the client's own, which makes Python objects of
    them. Where that starts a garbage collection, and the client is part of the garbage, librdkafka
    is destroyed by its own thread, and ends the process for that (SIGABRT; confluent-kafka-python
    #2131). Here the finalizer keeps the client alive, and another thread closes it.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        _start()
        super().__init__(*arguments, **keywords)

    def __del__(self) -> None:
        """Live on until the closing thread has closed this."""
        if not _is_ending:
            _unused.put(self)


class KafkaAnswer:
    """A future of the client library, as `ports.Answer`.

    Args:
        future: Of the client library.
        read: Makes the answer of the future's result; raises KafkaFailure.
        timeout_s: What the question was given.
    """

    def __init__(self, future: Any, read: Callable[[Any], Any], timeout_s: float) -> None:
        self._future = future
        self._read = read
        self._timeout_s = timeout_s

    def done(self) -> bool:
        """Tell whether `result` has not to wait."""
        done: bool = self._future.done()
        return done

    def result(self, timeout_s: float | None = None) -> Any:
        """Return the answer; wait for it.

        Raises:
            KafkaFailure: as the broker or the client says; TIMED_OUT when neither says anything.
        """
        wait_s = self._timeout_s + _CLIENT_GRACE_S if timeout_s is None else timeout_s
        try:
            return self._read(self._future.result(wait_s))
        except TimeoutError as error:
            raise _silence() from error
        except (KafkaException, RuntimeError) as error:  # an answer the client could not read
            raise failure_of(error) from error

    def add_done_callback(self, callback: Callable[[KafkaAnswer], object]) -> None:
        """Have `callback(self)` called once this is done, in whatever thread."""
        self._future.add_done_callback(lambda _: callback(self))


class KafkaAdmin:
    """An AdminClient, as `ports.Admin`.

    Args:
        client: Of this module.
    """

    def __init__(self, client: AdminClient) -> None:
        self._client: Any = client

    def poll(self, wait_s: float) -> None:
        """Serve what the client noted of its connections."""
        self._client.poll(wait_s)

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""
        return seen_topics(self._metadata(timeout_s))

    def broker_count(self, timeout_s: float) -> int:
        """Return how many brokers metadata name."""
        return len(self._metadata(timeout_s).brokers)

    def ask_ends(
        self, places: Iterable[Place], edge: Edge, timeout_s: float
    ) -> dict[Place, KafkaAnswer]:
        """Ask where logs begin or end."""
        spec, isolation = _EDGES[edge]
        futures = self._client.list_offsets(
            {_Place(*place): spec for place in places},
            isolation_level=isolation,
            request_timeout=timeout_s,
        )
        return {
            (place.topic, place.partition): KafkaAnswer(future, _offset, timeout_s)
            for place, future in futures.items()
        }

    def ask_settings(self, topics: Iterable[str], timeout_s: float) -> dict[str, KafkaAnswer]:
        """Ask for the settings of topics, at least one."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        futures = self._client.describe_configs(resources, request_timeout=timeout_s)
        return {
            resource.name: KafkaAnswer(future, _settings, timeout_s)
            for resource, future in futures.items()
        }

    def ask_rights(self, topics: Iterable[str], timeout_s: float) -> dict[str, KafkaAnswer]:
        """Ask whether this client may write to topics; None: the broker does not say."""
        futures = self._client.describe_topics(
            TopicCollection(list(topics)),
            include_authorized_operations=True,
            request_timeout=timeout_s,
        )
        return {
            topic: KafkaAnswer(future, _may_write, timeout_s) for topic, future in futures.items()
        }

    def ask_members(self, group: str, timeout_s: float) -> KafkaAnswer:
        """Ask for a group's live members: `<group.instance.id or client.id> on <host>`."""
        futures = self._client.describe_consumer_groups([group], request_timeout=timeout_s)
        return KafkaAnswer(futures[group], _members, timeout_s)

    def create_topics(self, topics: Sequence[NewTopic], timeout_s: float) -> dict[str, KafkaAnswer]:
        """Have topics made; TOPIC_ALREADY_EXISTS where one is there."""
        wanted = [
            _NewTopic(one.name, one.partitions, one.replicas, config=dict(one.settings))
            for one in topics
        ]
        futures = self._client.create_topics(
            wanted, operation_timeout=timeout_s, request_timeout=timeout_s
        )
        return {name: KafkaAnswer(future, _nothing, timeout_s) for name, future in futures.items()}

    def add_partitions(self, topic: str, partitions: int, timeout_s: float) -> KafkaAnswer:
        """Have a topic grow to so many partitions in all."""
        wanted = [NewPartitions(topic, partitions)]
        futures = self._client.create_partitions(wanted, request_timeout=timeout_s)
        return KafkaAnswer(futures[topic], _nothing, timeout_s)

    def _metadata(self, timeout_s: float) -> Any:
        try:
            return self._client.list_topics(timeout=timeout_s)
        except KafkaException as error:
            self._client.poll(0)  # logs why: the call itself says no more than that it failed
            raise failure_of(error) from error


def seen_topics(metadata: Any) -> dict[str, SeenTopic]:
    """Return the topics of the client library's metadata that may be seen and have partitions."""
    return {
        name: SeenTopic(
            len(topic.partitions),
            min(len(one.replicas) for one in topic.partitions.values()),
            all(one.leader >= 0 for one in topic.partitions.values()),
        )
        for name, topic in metadata.topics.items()
        if topic.error is None and topic.partitions
    }


def _offset(result: Any) -> int:
    """Return an offset.

    When time is up the client (2.16) names no error: the offset is still the negative number that
    the question went out with. Taken for an answer it would be the end of a truncated log.
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


def _members(result: Any) -> list[str]:
    return [f"{one.group_instance_id or one.client_id} on {one.host}" for one in result.members]


def _nothing(_result: Any) -> None:
    return None


def _silence() -> KafkaFailure:
    return failure_of(KafkaError(Code.TIMED_OUT))


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
        with suppress(Exception):  # nobody is left who could be told
            client.__exit__(None, None, None)
        del client  # now its finalizer does not run again, and there is nothing to destroy
