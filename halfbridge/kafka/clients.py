"""Implements the reading and writing ports by the client library's Consumer and Producer."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from halfbridge.kafka.admin import seen_topics
from halfbridge.kafka.client_errors import failure_of, raised
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.kafka.ports import (
        ClientError,
        DeliveryCallback,
        Record,
        SeenTopic,
        TopicPartition,
    )
    from halfbridge.serde.headers import Headers


class KafkaReader:
    """A Consumer: implements `ports.Reader` and `ports.Member`.

    If it `stays`, a closed consumer remains a static member of its group. `on_read` is called with
    the partitions and offsets that are read from now on.
    """

    def __init__(
        self,
        consumer: Any,
        *,
        stays: bool = False,
        on_read: Callable[[Mapping[TopicPartition, int]], None] = lambda _: None,
    ) -> None:
        self._on_read = on_read
        self._consumer: Any = consumer
        self._stays = stays
        self._no_commit = Event()  # unset while `commit_as` runs, maybe in another thread
        self._no_commit.set()

    def read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._on_read(offsets)
        self._call(
            self._consumer.assign,
            [ClientTopicPartition(topic, number, at) for (topic, number), at in offsets.items()],
        )

    def poll(self, wait_s: float) -> Any:
        """Return the next record, or an error in its place; None if neither came in time.

        A poll lets a commit of another thread go first. The client serves one call at a time; a
        waiting thread checks each millisecond whether it may call, which needs the interpreter's
        lock. A thread that always polls gives that lock up only while it polls, so without this a
        commit waits for seconds.
        """
        if not self._no_commit.wait(wait_s):
            return None
        try:
            return self._consumer.poll(wait_s)
        except KafkaException as error:
            raise failure_of(error) from error

    def take(self, records_max: int) -> list[Record]:
        records: list[Record] = self._call(self._consumer.consume, records_max, 0)
        return records

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._call(self._consumer.pause, _places(places))

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._call(self._consumer.resume, _places(places))

    def positions(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = _places(places)
        found = self._call(self._consumer.position, asked) if asked else ()
        return {(one.topic, one.partition): one.offset for one in found}

    def assignment(self) -> list[TopicPartition]:
        return [(one.topic, one.partition) for one in self._call(self._consumer.assignment)]

    def committed(
        self, places: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Committed]:
        found = self._call(self._consumer.committed, _places(places), timeout=timeout_s)
        _raise_first(found)
        return {(one.topic, one.partition): Committed(one.offset, one.metadata) for one in found}

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        wanted = [
            ClientTopicPartition(topic, number, offset, metadata)
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        _raise_first(self._call(self._consumer.commit, offsets=wanted, asynchronous=False))

    def ends(self, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
        where = ClientTopicPartition(*place)
        start, end = self._call(self._consumer.get_watermark_offsets, where, timeout=timeout_s)
        return int(start), int(end)

    def offsets_at(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        asked = [ClientTopicPartition(*place, at_ms) for place, at_ms in times_ms.items()]
        found = self._call(self._consumer.offsets_for_times, asked, timeout=timeout_s)
        _raise_first(found)
        return {
            (one.topic, one.partition): one.offset if one.offset >= 0 else None for one in found
        }

    def topic_failure(self, topic: str, timeout_s: float) -> ClientError | None:
        known = self._call(self._consumer.list_topics, topic, timeout=timeout_s)
        error: ClientError | None = known.topics[topic].error
        return error

    def close(self) -> None:
        """Close; in a broken client this may never return.

        A static member that stays in its group is only dropped, and so destroyed without a
        callback. The client's close() would first call back for an assignment that is due, then for
        its revocation, by when the group's part of librdkafka (2.16) may have ended: the callback's
        call then never returns, and keeps the interpreter's lock. A member that leaves is safe:
        that part waits for the broker's answer to the request to leave.

        A dropped consumer does not commit the offsets of `enable.auto.commit` once more; the last
        commit of the interval remains.
        """
        if not self._stays:
            self._call(self._consumer.close)
        self._consumer = Closed()

    def join(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[KafkaReader, frozenset[TopicPartition]], None],
        on_revoked: Callable[[KafkaReader], None],
    ) -> None:
        def assigned(_consumer: Any, partitions: Sequence[Any]) -> None:
            on_assigned(self, frozenset((one.topic, one.partition) for one in partitions))

        def revoked(consumer: Any, _partitions: Sequence[Any]) -> None:
            on_revoked(self)
            # A consumer that closes, or has failed for good, has nothing to unassign.
            with suppress(RuntimeError, KafkaException):
                consumer.unassign()

        self._call(
            self._consumer.subscribe,
            list(topics),
            on_assign=assigned,
            on_revoke=revoked,
            on_lost=revoked,
        )

    def join_and_read(self, topics: Sequence[str]) -> None:
        self._call(self._consumer.subscribe, list(topics))

    def skip_to(self, place: TopicPartition, offset: int) -> None:
        self._call(self._consumer.seek, ClientTopicPartition(*place, offset))

    def membership(self) -> object:
        return self._call(self._consumer.consumer_group_metadata)

    def commit_as(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], membership: object
    ) -> None:
        """Commit offsets as the member that `membership` names, or raise.

        The client's request names its present generation, so that is compared first. It cannot
        change in between: the client takes part in a new generation only after the caller has
        served the revocation, and when no commit is outstanding. But its session may end: then the
        request names no generation, and the broker accepts it while the group has no members.
        """
        self._no_commit.clear()
        try:
            if self.membership() != membership:
                raise KafkaFailure(
                    Code.ILLEGAL_GENERATION, "the member takes part in another generation by now"
                )
            self.commit(offsets)
        finally:
            self._no_commit.set()

    def leave(self) -> None:
        self._call(self._consumer.unsubscribe)
        self._stays = False

    def _call(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except KafkaException as error:
            raise failure_of(error) from error


def _places(places: Iterable[TopicPartition]) -> list[Any]:
    return [ClientTopicPartition(*place) for place in places]


def _raise_first(answers: Iterable[Any]) -> None:
    for one in answers:
        if one.error is not None:
            raise failure_of(one.error)


class KafkaWriter:
    """A Producer: implements `ports.Writer`."""

    def __init__(self, producer: Any) -> None:
        self._producer: Any = producer
        self._produce: Callable[..., Any] = producer.produce
        self._poll: Callable[..., Any] = producer.poll

    def produce(  # noqa: PLR0917  (once a record: keywords cost)
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: DeliveryCallback,
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> None:
        try:
            self._produce(
                topic,
                value,
                key,
                partition,
                on_delivery,
                timestamp=timestamp_ms,
                headers=headers,
            )
        except KafkaException as error:
            raise failure_of(error) from error

    def poll(self, wait_s: float) -> int:
        try:
            served: int = self._poll(wait_s)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error
        return served

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is outstanding; return how many still are.

        This calls `poll`, so that `linger.ms` applies. The client's own flush (2.16) continues
        after a fatal error with an exception pending: it ends with a SystemError of some callback,
        or raises a KafkaError, which no `except` clause that names a class can catch.
        """
        deadline = monotonic() + timeout_s
        self.poll(0)
        while (left := len(self._producer)) and (left_s := deadline - monotonic()) > 0:
            self.poll(left_s)
        return left

    def purge(self) -> None:
        self._call(self._producer.purge)

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        return seen_topics(self._call(self._producer.list_topics, timeout=timeout_s))

    def close(self) -> None:
        # A broken client raises its error again, and a closed one refuses. The client's own `close`
        # would wait for records.
        with suppress(KafkaFailure, RuntimeError):
            self.purge()
            self.poll(0)
        self._producer = Closed()
        self._produce = self._poll = refuse

    def __len__(self) -> int:
        return len(self._producer)

    def __bool__(self) -> bool:
        return True

    def _call(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error


class KafkaTransactionalWriter(KafkaWriter):
    """A transactional Producer: implements `ports.TransactionalWriter`."""

    def init(self, timeout_s: float) -> None:
        self._call(self._producer.init_transactions, timeout_s)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        positions = [ClientTopicPartition(*each) for each in offsets]
        self._call(self._producer.send_offsets_to_transaction, positions, member, timeout_s)

    def commit(self, timeout_s: float) -> None:
        self._call(self._producer.commit_transaction, timeout_s)

    def abort(self, timeout_s: float) -> None:
        self._call(self._producer.abort_transaction, timeout_s)


# For clients whose log is read here; the lines are not shown. `log_level` 6 includes lost
# connections. The second property logs connections that brokers close: many users turn it off.
LISTENED = {"log_level": 6, "log.connection.close": True}
# SESSTMOUT: the group's coordinator has been silent for a whole session time-out, on an open
# connection. A static member may fence itself then (librdkafka #3437).
_LOST = frozenset(("FAIL", "REQTMOUT", "SESSTMOUT"))


class LostConnections:
    """A `logger` for a client: calls `on_lost` after a lost connection, answer or session.

    With several brokers librdkafka (2.16) does not call the error callback when it loses one
    connection: it reconnects, repeats the unanswered requests, and only logs, when it serves
    callbacks. It suppresses repetitions of a line about one broker for 30 s.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def log(self, _level: int, _text: str, facility: str, *_rest: str) -> None:
        """Take a log line; the client passes its facility, its name and the message."""
        if facility in _LOST:
            self._on_lost()


class Closed:
    """Refuses every call but `close`; empty. A closed port refers to it in place of the client.

    So the client frees its threads, connections and key for thread-local storage at once. Its
    callbacks often lead back to the port: it would otherwise live until the collector of cycles
    runs, and many clients exhaust file descriptors or keys (1,024 on Linux).
    """

    def close(self) -> None:
        """Do nothing: the client is closed already."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise RuntimeError: the caller that closed the client must not use it again."""
        refuse()

    def __len__(self) -> int:
        """Return 0: nothing is outstanding."""
        return 0


def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    """Raise RuntimeError, as `Closed` does."""
    raise RuntimeError("the Kafka client is closed")
