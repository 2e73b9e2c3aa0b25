"""What is read from Kafka, and what is written to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.bridge.ports.admin import SeenTopic
    from halfbridge.serde.headers import Headers

Place = tuple[str, int]

NO_COMMITTED_OFFSET = -1001


class Record(Protocol):
    """A consumed record, or in its place an error: `error()` tells."""

    def topic(self) -> str | None:
        """Return the topic; None in an error about the group."""

    def partition(self) -> int | None:
        """Return the partition's number."""

    def offset(self) -> int | None:
        """Return the offset; of the end of a partition (PARTITION_EOF) where that is."""

    def key(self) -> bytes | None:
        """Return the key."""

    def value(self) -> bytes | None:
        """Return the value."""

    def headers(self) -> Headers | None:
        """Return the headers, in order."""

    def timestamp(self) -> tuple[int, int]:
        """Return the kind (0 none, 1 CreateTime, 2 LogAppendTime) and the time, ms since 1970."""

    def error(self) -> Any:
        """Return what `failure_of` takes; None for a record."""

    def __len__(self) -> int:
        """Return the bytes of the value."""


class Committed(NamedTuple):
    """A committed offset; NO_COMMITTED_OFFSET where there is none.

    Attributes:
        offset: The offset.
        metadata: What stands beside it.
    """

    offset: int
    metadata: str | None


class Reader(Protocol):
    """Reads the partitions that it is told to read."""

    def read_from(self, offsets: Mapping[Place, int]) -> None:
        """Read exactly these partitions from these offsets on (assign); nothing when empty."""

    def poll(self, wait_s: float) -> Record | None:
        """Return the next record, or error in place of one; None when none came in time."""

    def take(self, records_max: int) -> list[Record]:
        """Return the records that are here already; never waits."""

    def pause(self, places: Iterable[Place]) -> None:
        """Fetch no more of these; what was fetched of them is dropped."""

    def resume(self, places: Iterable[Place]) -> None:
        """Fetch these again."""

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the offset behind the last record handed over; negative before any."""

    def assignment(self) -> list[Place]:
        """Return what is read at present."""

    def committed(self, places: Iterable[Place], timeout_s: float) -> dict[Place, Committed]:
        """Return the group's committed offsets, stable ones with read_committed."""

    def commit(self, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Commit offsets of the group outside any kafka_txn, in one request; waits for it."""

    def ends(self, place: Place, timeout_s: float) -> tuple[int, int]:
        """Return log start and high watermark, asked now."""

    def topic_failure(self, topic: str, timeout_s: float) -> Any:
        """Return why a topic cannot be read (missing, no right); None: it can."""

    def close(self) -> None:
        """Close. May never return in a client that is not well: see `Concurrency.let_go`."""


class Member(Reader, Protocol):
    """A reader that shares partitions with the other members of its group."""

    def join(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Member, frozenset[Place]], None],
        on_revoked: Callable[[Member], None],
    ) -> None:
        """Take part in the group (subscribe).

        `on_assigned` and `on_revoked` are called inside `poll`, `take` and `close`, and must not
        raise: the client would throw away the records that it has taken.
        """

    def join_and_read(self, topics: Sequence[str]) -> None:
        """Take part in the group, and read what it assigns from the committed offsets on."""

    def membership(self) -> object:
        """Return id and generation of the member, for `TransactionalWriter.send_offsets`."""

    def leave(self) -> None:
        """Leave the group (unsubscribe), which closing a static member does not do."""


class Writer(Protocol):
    """Writes records; acknowledgements come in `poll` and `flush`."""

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
        """Hand a record over.

        Args:
            topic: Where to.
            value: None: a tombstone.
            key: None: none.
            partition: -1: by the key, as the Java client does; any, without a key.
            on_delivery: Called with an error (see `failure_of`) or None, and with the record.
            timestamp_ms: CreateTime; 0: the client's clock.
            headers: In order.

        Raises:
            BufferError: the queue is full; `poll` makes room.
            KafkaFailure: refused at once; the record was not taken.
        """

    def poll(self, wait_s: float) -> int:
        """Serve acknowledgements, waiting for the first of them; return how many came."""

    def flush(self, timeout_s: float) -> int:
        """Serve acknowledgements until none is awaited; return how many still are."""

    def purge(self) -> None:
        """Give up what is not acknowledged: it fails with one of `failure.PURGED`."""

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """As `Admin.topics`."""

    def __len__(self) -> int:
        """Return how many records are not acknowledged, or their callbacks not served."""


class TransactionalWriter(Writer, Protocol):
    """A writer with a transactional id."""

    def init(self, timeout_s: float) -> None:
        """Take the transactional id over (a new epoch); what its predecessor left is aborted.

        Raises KafkaFailure when no coordinator answers in time.
        """

    def begin(self) -> None:
        """Begin a kafka_txn."""

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        """Have (topic, partition, offset, metadata) committed with the kafka_txn.

        May never return when a broker goes away in the middle of it (librdkafka #5456).
        """

    def commit(self, timeout_s: float) -> None:
        """Commit; a retriable failure leaves the outcome unknown, and only `commit` may follow."""

    def abort(self, timeout_s: float) -> None:
        """Abort."""
