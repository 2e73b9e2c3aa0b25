"""Implements the reading ports by the client library's Consumer."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition

from halfbridge.bridge.failure import Code, KafkaFailure
from halfbridge.bridge.kafka.closed import Closed
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.bridge.ports import Committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.bridge.ports import Place


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
        second thread looks once a millisecond whether it may call, and needs the interpreter's
        lock for each look. A thread that polls on and on gives that lock up only while it polls,
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
        (`enable.auto.commit`) once more. The last commit of the interval stands.
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
        """Read an assigned partition from an offset on; what was fetched of it is dropped."""
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
