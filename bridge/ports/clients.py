"""The ports for reading from Kafka and writing to Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.bridge.ports.admin import Place, SeenTopic
    from halfbridge.serde.headers import Headers


NO_COMMITTED_OFFSET = -1001  # librdkafka's RD_KAFKA_OFFSET_INVALID


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

    def error(self) -> Any:
        """Return an error for `failure_of`; None for a record."""

    def __len__(self) -> int:
        """Return the size of the value in bytes."""


class Committed(NamedTuple):
    """A committed offset; NO_COMMITTED_OFFSET if there is none.

    Attributes:
        offset: The offset.
        metadata: The metadata that was committed with the offset.
    """

    offset: int
    metadata: str | None


class Reader(Protocol):
    """Reads the partitions that it is told to read."""

    def read_from(self, offsets: Mapping[Place, int]) -> None:
        """Read exactly these partitions from these offsets on (assign); empty: read nothing."""

    def poll(self, wait_s: float) -> Record | None:
        """Return the next record, or an error in its place; None if neither came in time."""

    def take(self, records_max: int) -> list[Record]:
        """Return records that were fetched already; never waits."""

    def pause(self, places: Iterable[Place]) -> None:
        """Stop fetching these partitions; their fetched records are dropped."""

    def resume(self, places: Iterable[Place]) -> None:
        """Fetch these partitions again."""

    def positions(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the offset after the last returned record; negative if there was none."""

    def assignment(self) -> list[Place]:
        """Return the partitions that are read at present."""

    def committed(self, places: Iterable[Place], timeout_s: float) -> dict[Place, Committed]:
        """Return the group's committed offsets; with read_committed, stable ones."""

    def commit(self, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Commit offsets of the group outside any kafka_txn, in one request; waits."""

    def ends(self, place: Place, timeout_s: float) -> tuple[int, int]:
        """Ask a broker for log start and high watermark, and return them."""

    def offsets_at(
        self, times_ms: Mapping[Place, int], timeout_s: float
    ) -> dict[Place, int | None]:
        """Return the first offset whose record is not older than a time; None: there is none.

        Times are milliseconds since 1970. With read_committed only records below the last stable
        offset are found.
        """

    def topic_failure(self, topic: str, timeout_s: float) -> Any:
        """Return why a topic cannot be read (missing, no right); None if it can."""

    def close(self) -> None:
        """Close; in a broken client this may never return: see `Concurrency.let_go`.

        Later calls raise RuntimeError, but for `close`.
        """


class Member(Reader, Protocol):
    """A reader that shares partitions with the other members of its group."""

    def join(
        self,
        topics: Sequence[str],
        on_assigned: Callable[[Member, frozenset[Place]], None],
        on_revoked: Callable[[Member], None],
    ) -> None:
        """Join the group (subscribe).

        `on_assigned` and `on_revoked` are called inside `poll` and `take`. If the member leaves the
        group, `close` may call them too. They must not raise: the client would drop the records
        that it has fetched.
        """

    def join_and_read(self, topics: Sequence[str]) -> None:
        """Join the group, and read the assigned partitions from the committed offsets on."""

    def skip_to(self, place: Place, offset: int) -> None:
        """Read an assigned partition from an offset on (seek); fetched records are dropped."""

    def membership(self) -> object:
        """Return the member's id and generation, for `send_offsets` and `commit_as`."""

    def commit_as(self, offsets: Mapping[Place, tuple[int, str]], membership: object) -> None:
        """Commit offsets outside any kafka_txn, as the member that `membership` names; waits.

        Another thread may poll meanwhile: a poll that has not begun waits until the commit ends.

        Args:
            offsets: Place -> offset and metadata; all are committed, or none is.
            membership: From `membership`, as it was when the offsets were this member's to commit.

        Raises:
            KafkaFailure: with ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or FATAL
                nothing is committed, because the group has gone on without this member. After a
                retriable failure the outcome is unknown, and the same call may be repeated.
        """

    def leave(self) -> None:
        """Leave the group (unsubscribe); closing a static member does not leave the group.

        Raises:
            KafkaFailure: FATAL if another member has this member's place; nothing is left to do.
        """


class Writer(Protocol):
    """Writes records; `poll` and `flush` serve acknowledgements."""

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
        """Hand a record to the client.

        Args:
            topic: The record's topic.
            value: None: a tombstone.
            key: None: no key.
            partition: -1: by the key, as the Java client does; without a key, any partition.
            on_delivery: Called with an error for `failure_of` or None, and with the record.
            timestamp_ms: CreateTime; 0: the client's clock.
            headers: The headers, in order.

        Raises:
            BufferError: the queue is full; `poll` makes room.
            KafkaFailure: the client refuses the record.
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

        Later calls raise RuntimeError. A call that another thread is in goes on, and the client is
        freed with the end of that call. An open kafka_txn stays open: the next writer with its
        transactional id aborts the kafka_txn.
        """

    def __len__(self) -> int:
        """Return how many records have no acknowledgement, or a callback that was not served."""


class TransactionalWriter(Writer, Protocol):
    """A writer with a transactional id."""

    def init(self, timeout_s: float) -> None:
        """Take over the transactional id (new epoch); an open kafka_txn of the id is aborted.

        Raises KafkaFailure if no coordinator answers in time.
        """

    def begin(self) -> None:
        """Begin a kafka_txn."""

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        """Add offsets (topic, partition, offset, metadata) to the kafka_txn.

        May never return if a broker disconnects during the call (librdkafka #5456).
        """

    def commit(self, timeout_s: float) -> None:
        """Commit; after a retriable failure the outcome is unknown: only `commit` may follow."""

    def abort(self, timeout_s: float) -> None:
        """Abort."""
