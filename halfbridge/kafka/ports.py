"""The ports: Kafka's clients, clocks and concurrency, as Protocols.

All code that uses Kafka, reads a clock or waits is given these ports. They are implemented by the
rest of this package (the client library, the system's clocks and threads) and by the broker in
memory (`halfbridge.testkit.memory`), where one scheduler decides which call continues and what time
it is.

Records, and the errors of records and acknowledgements, are the client library's own objects:
nothing is wrapped per record, and `client_errors.failure_of` converts such an error. All other
methods raise KafkaFailure themselves.

Times are seconds, unless a name says otherwise. A `TopicPartition` is (topic, partition).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.serde.headers import Headers

__all__ = [
    "NO_COMMITTED_OFFSET",
    "Admin",
    "Answer",
    "Call",
    "CallQueue",
    "ClientError",
    "Clock",
    "Committed",
    "Concurrency",
    "DeliveryCallback",
    "Edge",
    "Event",
    "Kafka",
    "Member",
    "NewTopic",
    "Ports",
    "Reader",
    "Record",
    "Running",
    "SeenCluster",
    "SeenPartition",
    "SeenTopic",
    "SentRecord",
    "SideThread",
    "StoredRecord",
    "TopicPartition",
    "TransactionalWriter",
    "Waker",
    "Writer",
]


class Kafka(Protocol):
    """Makes clients with librdkafka's properties; `error_cb` gets an error for `failure_of`.

    `on_lost` is called when the client has lost a connection, an answer or its session, which the
    client reports in no other way (`kafka/clients.py`). Every method raises ConfigError: a property
    is not known, or its value is refused.
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
    """The ports of one client or worker; `transaction_id` returns a new id."""

    kafka: Kafka
    clock: Clock
    run: Concurrency
    transaction_id: Callable[[], str]


NO_COMMITTED_OFFSET = -1001  # librdkafka's RD_KAFKA_OFFSET_INVALID


# An error as the client library reports it; only `failure_of` knows its class.
ClientError: TypeAlias = object


class Record(Protocol):
    """A consumed record, or an error in place of a record; see `error`."""

    def topic(self) -> str | None:
        """Return the topic; None in an error about the group."""

    def partition(self) -> int | None:
        """Return the partition's number."""

    def offset(self) -> int | None:
        """Return the offset; for PARTITION_EOF, the end of the partition."""

    def key(self) -> bytes | None:
        """Return the key."""

    def value(self) -> bytes | None:
        """Return the value."""

    def headers(self) -> Headers | None:
        """Return the headers, in order."""

    def timestamp(self) -> tuple[int, int]:
        """Return the kind (0 none, 1 CreateTime, 2 LogAppendTime) and the time, ms since 1970."""

    def error(self) -> ClientError | None:
        """Return an error for `failure_of`; None for a record."""

    def __len__(self) -> int:
        """Return the size of the value in bytes."""


class StoredRecord(Record, Protocol):
    """A record, or the end of a partition (PARTITION_EOF): its place is known."""

    def topic(self) -> str:
        """Return the topic."""

    def partition(self) -> int:
        """Return the partition's number."""

    def offset(self) -> int:
        """Return the offset."""


class Committed(NamedTuple):
    """A committed offset, NO_COMMITTED_OFFSET if there is none, and the metadata with it."""

    offset: int
    metadata: str | None


class Reader(Protocol):
    """Reads assigned partitions."""

    def read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions from these offsets on (assign); empty: read nothing."""

    def poll(self, wait_s: float) -> Record | None:
        """Return the next record, or an error in its place; None if neither came in time."""

    def take(self, records_max: int) -> list[Record]:
        """Return records that were fetched already; never waits."""

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions; their fetched records are dropped."""

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Fetch these partitions again."""

    def positions(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last returned record; negative if there was none."""

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read at present."""

    def committed(
        self, places: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Committed]:
        """Return the group's committed offsets; with read_committed, stable ones."""

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets of the group outside any kafka_txn, in one request; waits."""

    def ends(self, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Ask a broker for log start and high watermark, and return them."""

    def offsets_at(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset whose record is not older than a time; None: there is none.

        Times are ms since 1970. With read_committed only offsets below the last stable one are
        found.
        """

    def topic_failure(self, topic: str, timeout_s: float) -> ClientError | None:
        """Return why a topic cannot be read (missing, no right); None if it can."""

    def close(self) -> None:
        """Close; may never return: see `close_clients`. RuntimeError in later calls: a bug."""


class Member(Reader, Protocol):
    """A reader that shares partitions with the other members of its group."""

    def join(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Member, frozenset[TopicPartition]], None],
        on_revoked: Callable[[Member], None],
    ) -> None:
        """Join the group (subscribe).

        `on_assigned` and `on_revoked` are called inside `poll` and `take`, and perhaps in `close`
        if the member leaves. They must not raise: the client would drop the records that it has
        fetched.
        """

    def join_and_read(self, topics: Sequence[str]) -> None:
        """Join the group, and read the assigned partitions from the committed offsets on."""

    def skip_to(self, place: TopicPartition, offset: int) -> None:
        """Read an assigned partition from an offset on (seek); fetched records are dropped."""

    def membership(self) -> object:
        """Return the member's id and generation, for `send_offsets` and `commit_as`."""

    def commit_as(
        self, offsets: Mapping[TopicPartition, tuple[int, str]], membership: object
    ) -> None:
        """Commit all offsets outside any kafka_txn, as the member of `membership`, or none; waits.

        Another thread may poll meanwhile: a poll that has not begun waits until the commit ends.
        `membership` is that of the time when the offsets were this member's to commit.

        Raises:
            KafkaFailure: with ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or FATAL
                nothing is committed, because the group has gone on without this member. After a
                retriable failure the outcome is unknown, and the same call may be repeated.
        """

    def leave(self) -> None:
        """Leave the group (unsubscribe); closing a static member does not leave the group.

        Raises KafkaFailure: FATAL if another member has this member's place; nothing is left to do.
        """


class SentRecord(Protocol):
    """A record that a delivery report is about."""

    def topic(self) -> str:
        """Return the topic."""

    def partition(self) -> int:
        """Return the partition's number; negative: none was chosen before the record failed."""

    def offset(self) -> int | None:
        """Return the offset; None: the record failed, or is only inferred to be stored."""

    def timestamp(self) -> tuple[int, int]:
        """As `Record.timestamp`."""


class DeliveryCallback(Protocol):
    """Called once for a record, by `poll`, `flush` or `purge`; `error` None: acknowledged."""

    def __call__(self, error: ClientError | None, record: SentRecord, /) -> None:
        """Note the outcome."""


class Writer(Protocol):
    """Writes records; `poll` and `flush` serve acknowledgements."""

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
        """Hand a record to the client.

        Args:
            topic: The record's topic.
            value: None: a tombstone.
            key: None: no key.
            partition: -1: by the key, as the Java client does; without a key, any partition.
            on_delivery: Called with the outcome.
            timestamp_ms: CreateTime; 0: the client's clock.
            headers: The headers, in order.

        Raises:
            BufferError: the queue is full; `poll` makes room.
            KafkaFailure: the client refuses the record; the caller corrects it.
        """

    def poll(self, wait_s: float) -> int:
        """Serve acknowledgements, waiting for the first one; return how many were served."""

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is outstanding; return how many still are."""

    def purge(self) -> None:
        """Give up unacknowledged records: they fail with one of `failure.PURGED`."""

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """As `Admin.topics`."""

    def close(self) -> None:
        """Give up unacknowledged records without waiting, and free the client.

        Later calls raise RuntimeError; the client is freed after the call of another thread. An
        open kafka_txn stays open: the next writer with its transactional id aborts it.
        """

    def __len__(self) -> int:
        """Return how many records have no acknowledgement, or a callback that was not served."""


class TransactionalWriter(Writer, Protocol):
    """A writer with a transactional id."""

    def init(self, timeout_s: float) -> None:
        """Take over the id (new epoch), and abort its open kafka_txn; KafkaFailure: no answer."""

    def begin(self) -> None:
        """Begin a kafka_txn."""

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        """Add (topic, partition, offset, metadata); may never return (librdkafka #5456)."""

    def commit(self, timeout_s: float) -> None:
        """Commit; after a retriable failure the outcome is unknown: only `commit` may follow."""

    def abort(self, timeout_s: float) -> None:
        """Abort."""


TopicPartition = tuple[str, int]
T_co = TypeVar("T_co", covariant=True)


class SeenTopic(NamedTuple):
    """A topic as the brokers' metadata describe it.

    Attributes:
        replicas: The lowest number of replicas that a partition has.
        leaderless: The partitions without a leader: they take no records for now.
        out_of_sync: The highest number of replicas of a partition that have not caught up.
        in_sync: How many replicas of each partition have caught up; empty: not known.
    """

    partitions: int
    replicas: int
    leaderless: frozenset[int] = frozenset()
    out_of_sync: int = 0
    in_sync: tuple[int, ...] = ()

    @property
    def is_led(self) -> bool:
        """Whether every partition has a leader."""
        return not self.leaderless

    def unavailable(self, min_in_sync: int | None) -> dict[int, str]:
        """Return the partitions that take no records, each with the reason, as in "has no leader".

        Brokers require the lower of `min.insync.replicas` (None: not known) and the number of
        replicas to be in sync (since Kafka 3.7: `Partition.effectiveMinIsr`): a topic whose setting
        is above its number of replicas takes records while every replica is in sync.
        """
        found = dict.fromkeys(sorted(self.leaderless), "has no leader")
        required = min(min_in_sync or 1, self.replicas)
        for number, count in enumerate(self.in_sync):
            if count < required and number not in found:
                found[number] = (
                    f"has {count} of {required} required replicas in sync"
                    f" (min.insync.replicas={min_in_sync})"
                )
        return found


class SeenPartition(NamedTuple):
    """Where a partition is, by the ids of brokers.

    Attributes:
        leader: The broker that takes records; None: there is none for now.
        replicas: The brokers that keep the log, the preferred leader first.
        in_sync: Those of them that have caught up.
    """

    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class SeenCluster(NamedTuple):
    """A cluster as a broker describes it.

    Attributes:
        brokers: Id of each broker -> host:port.
        operations: Kafka's names of what this client may do to the cluster; None: not known.
    """

    brokers: Mapping[int, str]
    operations: frozenset[str] | None


class NewTopic(NamedTuple):
    """A topic to be created."""

    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


class Edge(Enum):
    """Log start, high watermark, or last stable offset, where read_committed readers end."""

    START = "start"
    END = "end"
    STABLE_END = "stable end"


class Answer(Protocol[T_co]):
    """The future answer of a broker to one question."""

    def done(self) -> bool:
        """Return whether `result` returns without waiting."""

    def result(self, timeout_s: float | None = None) -> T_co:
        """Wait for the answer; KafkaFailure: an error, or TIMED_OUT if there is neither.

        `timeout_s` None: a moment longer than the question's own time-out, because the client's
        error then says why there is no answer.
        """

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(self)` once this is done, in any thread."""


class Admin(Protocol):
    """Asks brokers, and creates topics."""

    def poll(self, wait_s: float) -> None:
        """Serve the client's error callback (`error_cb`)."""

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return every topic that this client may see."""

    def partitions(
        self, topics: Iterable[str], timeout_s: float
    ) -> dict[str, tuple[SeenPartition, ...]]:
        """Return where each partition is of those of `topics` that exist."""

    def broker_count(self, timeout_s: float) -> int:
        """Return the number of brokers in the metadata."""

    def ask_ends(
        self, places: Iterable[TopicPartition], edge: Edge, timeout_s: float
    ) -> Mapping[TopicPartition, Answer[int]]:
        """Ask where logs begin or end."""

    def ask_settings(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[dict[str, str]]]:
        """Ask for the settings of at least one topic: name of the setting -> value."""

    def ask_rights(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[bool | None]]:
        """Ask whether this client may write to topics; None: the broker does not say."""

    def ask_operations(
        self, topics: Iterable[str], timeout_s: float
    ) -> Mapping[str, Answer[frozenset[str] | None]]:
        """Ask what this client may do to topics, as `Read`, `DescribeConfigs`; None: not known."""

    def ask_topic_ids(self, topics: Iterable[str], timeout_s: float) -> Mapping[str, Answer[str]]:
        """Ask for the ids that topics got when they were created; empty: they have none."""

    def ask_cluster(self, timeout_s: float) -> Answer[SeenCluster]:
        """Ask which brokers there are."""

    def ask_broker_settings(self, broker: int, timeout_s: float) -> Answer[dict[str, str]]:
        """Ask for the settings of a broker: Kafka's name of each to its value."""

    def ask_members(self, group: str, timeout_s: float) -> Answer[list[str]]:
        """Ask for a group's live members: `<group.instance.id or client.id> on <host>`."""

    def create_topics(
        self, topics: Sequence[NewTopic], timeout_s: float
    ) -> Mapping[str, Answer[None]]:
        """Create topics; the answer for a topic that exists is TOPIC_ALREADY_EXISTS."""

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float
    ) -> Mapping[TopicPartition, Answer[None]]:
        """Have the records of each place below an offset deleted; its log then starts there."""

    def add_partitions(self, topic: str, partitions: int, timeout_s: float) -> Answer[None]:
        """Grow a topic to `partitions` partitions in all."""

    def alter_settings(
        self, topic: str, settings: Mapping[str, str], timeout_s: float
    ) -> Answer[None]:
        """Change some settings of a topic: all of them, or none."""


class Clock(Protocol):
    """The clock of a client or worker."""

    def monotonic(self) -> float:
        """Return seconds since some moment; never goes back."""

    def time_ms(self) -> int:
        """Return milliseconds since 1970, by a clock that can be set."""


class Event(Protocol):
    """A flag that can be waited for; `threading.Event` is one."""

    def set(self) -> None:
        """Set the flag and wake the waiting threads."""

    def clear(self) -> None:
        """Clear the flag."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set; return whether it is."""


class Waker(Protocol):
    """A lock that one thread acquires twice and another releases; `_thread.lock` is one."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  (as threading and queue have it)
        """Acquire the lock, waiting for it; return whether it was acquired."""

    def release(self) -> None:
        """Release the lock."""


class CallQueue(Protocol):
    """A queue between concurrent calls; `queue.Queue` is one."""

    def put_nowait(self, item: Any) -> None:
        """Add an item; raises queue.Full."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002  (as threading and queue have it)
        """Take an item, waiting for it; raises queue.Empty."""

    def get_nowait(self) -> Any:
        """Take an item; raises queue.Empty."""


class Running(Protocol):
    """A call that runs concurrently; `threading.Thread` is one."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the call has ended."""

    def is_alive(self) -> bool:
        """Return whether the call has begun and not ended."""

    @property
    def ident(self) -> int | None:
        """What `Concurrency.current` returns inside the call; None before it has begun."""


class Call(Protocol):
    """A call in a side thread; `concurrent.futures.Future` is one."""

    def done(self) -> bool:
        """Return whether the call has returned or raised."""

    def result(self, timeout: float | None = None) -> None:
        """Wait for the call's end; raises its exception, or TimeoutError."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end and return its exception; raises TimeoutError."""


class SideThread(Protocol):
    """Runs calls one after the other, concurrently to the caller; can be left behind."""

    def submit(self, call: Callable[..., None], *arguments: Any) -> Call:
        """Run `call(*arguments)`."""

    def leave(self) -> None:
        """End the thread once the running call returns, if it ever does."""


class Concurrency(Protocol):
    """Runs calls concurrently, and makes the objects by which they wait for each other."""

    def start(self, call: Callable[[], None], name: str) -> Running:
        """Run `call` concurrently; it never delays the process's end.

        RuntimeError: no more threads; the operator lets the process have more.
        """

    def current(self) -> int:
        """Return the identity of the calling thread, unique among those that run."""

    def is_main(self) -> bool:
        """Return whether this is the main thread, in which Python raises KeyboardInterrupt."""

    def event(self) -> Event:
        """Return a flag that is not set."""

    def waker(self) -> Waker:
        """Return a free lock."""

    def queue(self, items_max: int = 0) -> CallQueue:
        """Return an empty queue; 0: without a limit."""

    def side_thread(self, name: str) -> SideThread:
        """Return a new side thread; raises RuntimeError as `start`."""

    def close_clients(self, *clients: Any) -> None:
        """Close clients, for a limited time; RuntimeError: too many did not close: restart."""

    def pause(self, seconds: float) -> None:
        """Wait."""
