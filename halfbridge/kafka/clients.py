"""Implements the reading and writing ports by the client library's Consumer and Producer."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from confluent_kafka import KafkaException, TopicPartition

from halfbridge.kafka.admin import seen_topics
from halfbridge.kafka.client_errors import failure_of, raised
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.kafka.ports import Place, SeenTopic
    from halfbridge.serde.headers import Headers


class KafkaReader:
    """A Consumer: implements `ports.Reader` and `ports.Member`.

    Args:
        consumer: The client library's Consumer.
        stays: When closed, it stays a member of its group: a static member that has not left.
        on_read: Called with the partitions and offsets that are read from now on.
    """

    def __init__(
        self,
        consumer: Any,
        *,
        stays: bool = False,
        on_read: Callable[[Mapping[Place, int]], None] = lambda _: None,
    ) -> None:
        self._on_read = on_read
        self._consumer: Any = consumer
        self._stays = stays
        self._no_commit = Event()  # unset while `commit_as` runs, maybe in another thread
        self._no_commit.set()

    def read_from(self, offsets: Mapping[Place, int]) -> None:
        """Read exactly these partitions from these offsets on; empty: read nothing."""
        self._on_read(offsets)
        self._call(
            self._consumer.assign,
            [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()],
        )

    def poll(self, wait_s: float) -> Any:
        """Return the next record, or an error in its place; None if neither came in time.

        A poll lets a commit of another thread go first. The client serves one call at a time. A
        second thread checks once a millisecond whether it may call, and needs the interpreter's
        lock for each check. A thread that always polls gives that lock up only while it polls,
        so without this a commit waited for seconds.
        """
        if not self._no_commit.wait(wait_s):
            return None
        try:
            return self._consumer.poll(wait_s)
        except KafkaException as error:
            raise failure_of(error) from error

    def take(self, records_max: int) -> list[Any]:
        """Return records that were fetched already; never waits."""
        records: list[Any] = self._call(self._consumer.consume, records_max, 0)
        return records

    def pause(self, places: Iterable[Place]) -> None:
        """Stop fetching these partitions; their fetched records are dropped."""
        self._call(self._consumer.pause, _places(places))

    def resume(self, places: Iterable[Place]) -> None:
        """Fetch these partitions again."""
        self._call(self._consumer.resume, _places(places))

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the offset after the last returned record; negative if there was none."""
        asked = _places(places)
        found = self._call(self._consumer.position, asked) if asked else ()
        return {(one.topic, one.partition): one.offset for one in found}

    def assignment(self) -> list[Place]:
        """Return the partitions that are read at present."""
        return [(one.topic, one.partition) for one in self._call(self._consumer.assignment)]

    def committed(self, places: Iterable[Place], timeout_s: float) -> dict[Place, Committed]:
        """Return the group's committed offsets; a failure of one partition is raised."""
        found = self._call(self._consumer.committed, _places(places), timeout=timeout_s)
        _raise_first(found)
        return {(one.topic, one.partition): Committed(one.offset, one.metadata) for one in found}

    def commit(self, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Commit offsets of the group outside any kafka_txn, in one request; waits."""
        wanted = [
            TopicPartition(topic, number, offset, metadata)
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        _raise_first(self._call(self._consumer.commit, offsets=wanted, asynchronous=False))

    def ends(self, place: Place, timeout_s: float) -> tuple[int, int]:
        """Ask a broker for log start and high watermark, and return them."""
        where = TopicPartition(*place)
        start, end = self._call(self._consumer.get_watermark_offsets, where, timeout=timeout_s)
        return int(start), int(end)

    def offsets_at(
        self, times_ms: Mapping[Place, int], timeout_s: float
    ) -> dict[Place, int | None]:
        """Return the first offset whose record is not older than a time; None: there is none."""
        asked = [TopicPartition(*place, at_ms) for place, at_ms in times_ms.items()]
        found = self._call(self._consumer.offsets_for_times, asked, timeout=timeout_s)
        _raise_first(found)
        return {
            (one.topic, one.partition): one.offset if one.offset >= 0 else None for one in found
        }

    def topic_failure(self, topic: str, timeout_s: float) -> Any:
        """Return why a topic cannot be read; None if it can."""
        return self._call(self._consumer.list_topics, topic, timeout=timeout_s).topics[topic].error

    def close(self) -> None:
        """Close; in a broken client this may never return.

        A static member that stays in its group is only dropped, and so destroyed without a
        callback. The client's close() would first call back for an assignment that is due, and
        then for its revocation. The group's part of librdkafka (2.16) may have ended by the second
        callback. The callback's call then never returns, and keeps the interpreter's lock. A member
        that leaves is safe: that part waits for the broker's answer to the request to leave.

        A consumer that is dropped does not commit the offsets that the client commits by itself
        (`enable.auto.commit`) once more. The last commit of the interval remains.
        """
        if not self._stays:
            self._call(self._consumer.close)
        self._consumer = Closed()

    def join(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[KafkaReader, frozenset[Place]], None],
        on_revoked: Callable[[KafkaReader], None],
    ) -> None:
        """Join the group; nothing is read before `read_from`."""

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
        """Join the group, and read the assigned partitions from the committed offsets on."""
        self._call(self._consumer.subscribe, list(topics))

    def skip_to(self, place: Place, offset: int) -> None:
        """Read an assigned partition from an offset on; its fetched records are dropped."""
        self._call(self._consumer.seek, TopicPartition(*place, offset))

    def membership(self) -> object:
        """Return the member's id and generation."""
        return self._call(self._consumer.consumer_group_metadata)

    def commit_as(self, offsets: Mapping[Place, tuple[int, str]], membership: object) -> None:
        """Commit offsets as the member that `membership` names, or raise.

        The client names its present generation in the request, so the generation is compared
        first. It cannot change between the comparison and the request: the client takes part in a
        new generation only after the caller has served the revocation, and only when no commit is
        outstanding. But its session may end. Then the request names no generation, and the broker
        accepts such a request while the group has no members.
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
        """Leave the group; closing a static member does not leave the group."""
        self._call(self._consumer.unsubscribe)
        self._stays = False

    def _call(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except KafkaException as error:
            raise failure_of(error) from error


def _places(places: Iterable[Place]) -> list[Any]:
    return [TopicPartition(*place) for place in places]


def _raise_first(answers: Iterable[Any]) -> None:
    for one in answers:
        if one.error is not None:
            raise failure_of(one.error)


class KafkaWriter:
    """A Producer: implements `ports.Writer`.

    Args:
        producer: The client library's Producer.
    """

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
        on_delivery: Callable[[Any, Any], None],
        timestamp_ms: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Hand a record to the client."""
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
        """Serve acknowledgements, waiting for the first one; return how many were served."""
        try:
            served: int = self._poll(wait_s)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error
        return served

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is outstanding; return how many still are.

        This calls `poll`, so that `linger.ms` applies. The client's own flush (2.16) continues
        after a fatal error with an exception pending. It then ends with a SystemError of some
        callback, or raises a KafkaError, which no `except` clause that names a class can catch.
        """
        deadline = monotonic() + timeout_s
        self.poll(0)
        while (left := len(self._producer)) and (left_s := deadline - monotonic()) > 0:
            self.poll(left_s)
        return left

    def purge(self) -> None:
        """Give up unacknowledged records; `poll` calls their callbacks with an error."""
        self._call(self._producer.purge)

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""
        return seen_topics(self._call(self._producer.list_topics, timeout=timeout_s))

    def close(self) -> None:
        """Give up unacknowledged records without waiting, and free the client."""
        # A broken client raises its error again, and a closed one refuses. The client's own `close`
        # would wait for records.
        with suppress(KafkaFailure, RuntimeError):
            self.purge()
            self.poll(0)
        self._producer = Closed()
        self._produce = self._poll = refuse

    def __len__(self) -> int:
        """Return how many records have no acknowledgement, or a callback that was not served."""
        return len(self._producer)

    def __bool__(self) -> bool:
        """Return True: a writer is true even if `len` is 0."""
        return True

    def _call(self, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except (KafkaException, SystemError) as error:
            raise raised(error) from error


class KafkaTransactionalWriter(KafkaWriter):
    """A transactional Producer: implements `ports.TransactionalWriter`."""

    def init(self, timeout_s: float) -> None:
        """Take over the transactional id; an open kafka_txn of the id is aborted."""
        self._call(self._producer.init_transactions, timeout_s)

    def begin(self) -> None:
        """Begin a kafka_txn."""
        self._call(self._producer.begin_transaction)

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        """Add offsets (topic, partition, offset, metadata) to the kafka_txn."""
        positions = [TopicPartition(*each) for each in offsets]
        self._call(self._producer.send_offsets_to_transaction, positions, member, timeout_s)

    def commit(self, timeout_s: float) -> None:
        """Commit."""
        self._call(self._producer.commit_transaction, timeout_s)

    def abort(self, timeout_s: float) -> None:
        """Abort."""
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
    connection: it reconnects, repeats the unanswered requests, and writes only a log line.

    The client hands over its log lines where it serves its callbacks. It suppresses repetitions of
    a line about one broker for 30 s.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def log(self, _level: int, _text: str, facility: str, *_rest: str) -> None:
        """Take a log line; the client passes its facility, its name and the message."""
        if facility in _LOST:
            self._on_lost()


class Closed:
    """Refuses every call but `close`; empty.

    A port that is closed drops its reference to the client, and the client then frees its threads,
    its connections and its key for thread-local storage. Callbacks of the client often lead back
    to the port. So the client would otherwise live until the collector of cycles runs, and a
    process that makes and closes many clients runs out of file descriptors or of keys (1,024 on
    Linux).
    """

    def close(self) -> None:
        """Do nothing: the client is closed already."""

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: always; whoever closed the client must not use the client again.
        """
        refuse()

    def __len__(self) -> int:
        """Return 0: nothing is outstanding."""
        return 0


def refuse(*_arguments: object, **_keywords: object) -> NoReturn:
    """Refuse a call, as `Closed` does.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError("the Kafka client is closed")
