"""A reader without a group, as `ports.Reader`: records, errors in their place, offsets, ends."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import NO_COMMITTED_OFFSET, Committed, Edge
from halfbridge.testkit.memory.client import Client, Kind, RequestTimeoutError
from halfbridge.testkit.memory.group import NO_GENERATION, Membership
from halfbridge.testkit.memory.log import OutOfRangeError, Placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.kafka.ports import Record, TopicPartition
    from halfbridge.testkit.memory.log import Partition

# librdkafka's logical offsets.
_BEGINNING, _END, _STORED = -2, -1, -1000
# How long a fetch waits for its answer (socket.timeout.ms).
_ANSWER_S = 60.0
_FETCH_BACKOFF_MS = 500  # fetch.error.backoff.ms


class GroupOffsets(Client):
    """A consumer's requests other than fetches."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = self.text("group.id")
        self._is_committed = self.text("isolation.level", "read_committed") == "read_committed"

    def committed(
        self, places: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Committed]:
        self._check_open()
        asked, deadline_ns = list(places), self._deadline(timeout_s)
        while True:
            found = self._persist(
                Kind.FETCH_OFFSETS,
                self._group,
                lambda: self._broker.group(self._group).fetch(asked, is_stable=self._is_committed),
                deadline_ns,
            )
            if found is not None:
                none = (NO_COMMITTED_OFFSET, None)
                return {place: Committed(*found.get(place, none)) for place in asked}
            left_s = self._left_s(deadline_ns)
            if not left_s:
                raise KafkaFailure(
                    Code.TIMED_OUT, "Failed to get committed offsets: Local: Timed out"
                )
            self._wait_for_change(left_s)

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str | None]]) -> None:
        self._check_open()
        self._commit(self._committer(), offsets)

    def _commit(
        self, member: Membership, offsets: Mapping[TopicPartition, tuple[int, str | None]]
    ) -> None:
        wanted = dict(offsets)
        self._request(
            Kind.COMMIT_OFFSETS,
            self._group,
            lambda: self._broker.commit_offsets(member, wanted),
            _ANSWER_S,
        )

    def ends(self, place: TopicPartition, timeout_s: float) -> tuple[int, int]:
        self._check_open()

        def ask() -> tuple[int, int]:
            return self._broker.end(place, Edge.START), self._broker.end(place, Edge.END)

        try:
            return self._persist(Kind.ENDS, place, ask, self._deadline(timeout_s))
        except KafkaFailure as failure:
            if failure.code != Code.UNKNOWN_TOPIC_OR_PART:
                raise
            raise KafkaFailure(
                Code.UNKNOWN_PARTITION, "Failed to get watermark offsets: Local: Unknown partition"
            ) from failure

    def offsets_at(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        self._check_open()
        deadline_ns = self._deadline(timeout_s)

        def ask(place: TopicPartition, at_ms: int) -> int | None:
            partition = self._broker.partition(place)
            return partition.offset_at(at_ms, is_committed=self._is_committed)

        return {
            place: self._persist(Kind.ENDS, place, partial(ask, place, at_ms), deadline_ns)
            for place, at_ms in times_ms.items()
        }

    def topic_failure(self, topic: str, timeout_s: float) -> KafkaFailure | None:
        self._check_open()

        def ask() -> KafkaFailure | None:
            try:
                self._broker.topic(topic)
                self._broker.check_read(self.process.name, topic)
            except KafkaFailure as failure:
                return failure
            return None

        return self._persist(Kind.METADATA, topic, ask, self._deadline(timeout_s))

    def _check_open(self) -> None:
        self._scheduler.check(self.process)
        if self.is_closed:
            raise RuntimeError("Consumer closed")

    def _committer(self) -> Membership:
        return Membership(self._group, "", 0, NO_GENERATION)

    def _wait_for_change(self, timeout_s: float) -> None:
        version = self._broker.version
        self._wait(lambda: self._broker.version != version, timeout_s)


class MemoryReader(GroupOffsets):
    """Reads partitions of the brokers in memory."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self._tells_ends = self.flag("enable.partition.eof", default=False)
        self._reset = self.text("auto.offset.reset", "latest")
        self._fetch_backoff_s = self.number("fetch.error.backoff.ms", _FETCH_BACKOFF_MS) / 1000
        self._next: dict[
            TopicPartition, int
        ] = {}  # next offset to fetch; negative: a logical offset
        self._positions: dict[TopicPartition, int] = {}
        self._reported_ends: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._stopped: set[TopicPartition] = set()  # after an error, until `read_from` or `skip_to`
        self._fetched: deque[Any] = deque()
        self._silent_until_ns = 0
        self._seen_version = -1

    # --- what is read -----------------------------------------------------------------------

    def read_from(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._check_open()
        self._next = dict(offsets)
        self._positions.clear()
        self._reported_ends.clear()
        self._stopped.clear()
        # Errors without a partition are reported too.
        kept = (one for one in self._fetched if one.partition() < 0 or not one.topic())
        self._fetched = deque(kept)
        self._seen_version = -1

    def poll(self, wait_s: float) -> Any:
        self._check_open()
        deadline_ns = self._deadline(wait_s)
        while True:
            self._serve()
            if not self._fetched and not self.is_closed:
                self._fetch()
            while self._fetched:
                record = self._hand_over()
                if record is not None:
                    return record
            left_s = self._left_s(deadline_ns)
            silent_s = self._left_s(self._silent_until_ns)
            self._wait(self._has_news, min(left_s, silent_s) if silent_s else left_s)
            if not left_s and not self._news:
                return None

    def take(self, records_max: int) -> list[Record]:
        self._check_open()
        self._serve()
        if len(self._fetched) < records_max:
            self._fetch()
        taken: list[Record] = []
        while self._fetched and len(taken) < records_max:
            record = self._hand_over()
            if record is not None:
                taken.append(record)
        return taken

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._check_open()
        paused = set(places)
        self._paused |= paused
        for one in reversed(self._fetched):
            place = one.topic(), one.partition()
            if place in paused and one.error() is None:
                self._next[place] = one.offset()
        self._drop(paused)

    def skip_to(self, place: TopicPartition, offset: int) -> None:
        self._check_open()
        self._drop({place})
        self._next[place] = offset
        self._stopped.discard(place)
        self._reported_ends.pop(place, None)
        self._seen_version = -1

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._check_open()
        for place in places:
            self._paused.discard(place)
            self._reported_ends.pop(place, None)
        self._seen_version = -1

    def positions(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._check_open()
        return {place: self._positions.get(place, NO_COMMITTED_OFFSET) for place in places}

    def assignment(self) -> list[TopicPartition]:
        self._check_open()
        return sorted(self._next)

    def close(self) -> None:
        self._next, self._fetched = {}, deque()
        self.is_closed = True

    # --- parts ------------------------------------------------------------------------------

    def _drop(self, places: set[TopicPartition]) -> None:
        kept = (one for one in self._fetched if (one.topic(), one.partition()) not in places)
        self._fetched = deque(kept)

    def _serve(self) -> None:
        self._serve_news()

    def _hand_over(self) -> Any:
        """Return the next record or error; None: a marker, which only moves the position."""
        record = self._fetched.popleft()
        if record.error() is None:
            self._positions[record.topic(), record.partition()] = record.offset() + 1
        return None if isinstance(record, MarkerPassed) else record

    def _has_news(self) -> bool:
        if self._news or self._fetched:
            return True
        version = self._broker.version
        if version == self._seen_version or self._silent_until_ns > self._scheduler.now_ns:
            return False
        if any(self._is_fetchable(place, at) for place, at in self._next.items()):
            return True
        self._seen_version = version
        return False

    def _is_fetchable(self, place: TopicPartition, at: int) -> bool:
        if place in self._paused or place in self._stopped:
            return False
        topic = self._broker.topics.get(place[0])
        if topic is None or place[1] >= len(topic.partitions):
            return False
        partition = topic.partitions[place[1]]
        end = partition.lso if self._is_committed else partition.end
        is_end_unreported = self._tells_ends and self._reported_ends.get(place) != at
        return at < end or at > partition.end or is_end_unreported

    def _fetch(self) -> None:
        if self._silent_until_ns > self._scheduler.now_ns:
            return
        for place, at in [*self._next.items()]:
            if self._is_fetchable(place, at):
                try:
                    self._fetch_one(place, at)
                except RequestTimeoutError:
                    self._silent_until_ns = self._deadline(self._fetch_backoff_s)
                    return

    def _fetch_one(self, place: TopicPartition, at: int) -> None:
        network, count = self._network, self._network.records_max(self, place)

        def read() -> tuple[list[Any], int, int]:
            self._broker.check_read(self.process.name, place[0])
            partition = self._broker.partition(place)
            begin = self._resolved(place, at, partition) if at < 0 else at
            records, then = partition.read(begin, count, is_committed=self._is_committed)
            found: list[Any] = [*records]
            if then > begin and partition.slots[then - 1] is None:
                found.append(MarkerPassed(*place, then - 1))
            return found, then, partition.lso if self._is_committed else partition.end

        try:
            records, then, end = network.request(self, Kind.FETCH, place, read, _ANSWER_S)
        except OutOfRangeError:
            self._out_of_range(place, at)
        except KafkaFailure as failure:
            self._stop(place, failure, None)
        else:
            if self._next.get(place) != at or place in self._paused:
                return  # it was paused or moved while the answer was under way
            self._next[place] = then
            self._fetched += records
            if self._tells_ends and then >= end and self._reported_ends.get(place) != then:
                self._reported_ends[place] = then
                text = f"Fetch from broker 1 reached end of partition at offset {then}"
                self._put_error(KafkaFailure(Code.PARTITION_EOF, text), place, then)

    def _resolved(self, place: TopicPartition, at: int, partition: Partition) -> int:
        if at == _BEGINNING:
            return partition.start
        if at == _END:
            return partition.lso if self._is_committed else partition.end
        found = self._broker.group(self._group).fetch([place], is_stable=False) or {}
        if place in found:
            return found[place][0]
        why = "no previously committed offset available: Local: No offset stored"
        return self._reset_to(partition, why)

    def _out_of_range(self, place: TopicPartition, at: int) -> None:
        text = (
            "fetch failed due to requested offset not available on the broker:"
            " Broker: Offset out of range (broker 1)"
        )
        try:
            self._next[place] = self._reset_to(self._broker.partition(place), text)
        except KafkaFailure as failure:
            self._stop(place, failure, at)

    def _reset_to(self, partition: Partition, why: str) -> int:
        if self._reset in {"earliest", "beginning", "smallest"}:
            return partition.start
        if self._reset in {"latest", "end", "largest"}:
            return partition.lso if self._is_committed else partition.end
        raise KafkaFailure(Code.AUTO_OFFSET_RESET, why)

    def _stop(self, place: TopicPartition, failure: KafkaFailure, at: int | None) -> None:
        self._stopped.add(place)
        self._put_error(failure, place, at)

    def _put_error(self, failure: KafkaFailure, place: TopicPartition, at: int | None) -> None:
        self._fetched.append(ErrorRecord(failure, *place, at))


class ErrorRecord(Placed):
    """An error in place of a record."""

    __slots__ = ("_error",)

    def __init__(
        self, error: KafkaFailure, topic: str | None, partition: int, offset: int | None = None
    ) -> None:
        super().__init__(topic, partition, offset)
        self._error = error

    def error(self) -> KafkaFailure:
        return self._error

    def value(self) -> bytes:
        return self._error.text.encode()


class MarkerPassed(Placed):
    """A marker at the end of a fetch: it moves the position, and is not returned."""

    __slots__ = ()
