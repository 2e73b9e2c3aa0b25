"""What every check of the ports is given: ports, a prefix of its own, and helpers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import Edge, NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.kafka.ports import Ports, TopicPartition

LIMIT_S = 30.0
# Of one poll; a check looks at other things in between.
SLICE_S = 0.05
BEGINNING = -2


class World:
    """Kafka behind the ports, and what belongs to one check.

    Args:
        ports: To meet.
        common: Properties of all clients.
        prefix: Of all names.
        delete_before: Deletes the records of a place below an offset.
    """

    def __init__(
        self,
        ports: Ports,
        common: Mapping[str, Any],
        prefix: str,
        delete_before: Callable[[TopicPartition, int], None],
    ) -> None:
        self.ports, self.prefix, self.delete_before = ports, prefix, delete_before
        self.common = {
            **common,
            "allow.auto.create.topics": False,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
        self.group = self.name("group")
        self.admin = ports.kafka.admin(self.common)
        self._writer = self.writer()
        self._open: list[Any] = []

    # --- names and topics -------------------------------------------------------------------

    def name(self, text: str) -> str:
        """Return a name that no other check has."""
        return self.prefix + text

    def topic(self, name: str = "topic", partitions: int = 1, **settings: str) -> str:
        """Make a topic; settings have `_` in place of dots."""
        wanted = {key.replace("_", "."): value for key, value in settings.items()}
        made = NewTopic(self.name(name), partitions, 1, wanted)
        self.admin.create_topics([made], LIMIT_S)[made.name].result()
        self.until(lambda: made.name in self.admin.topics(LIMIT_S))
        # A broker may know the topic before it knows that it leads its partitions.
        self.until(lambda: self._tells_ends([(made.name, number) for number in range(partitions)]))
        return made.name

    def edges(self, topic: str, partition: int = 0) -> tuple[int, int, int]:
        """Return the log start, the last stable offset and the high watermark."""
        place = topic, partition
        edges = (Edge.START, Edge.STABLE_END, Edge.END)
        start, stable, end = (
            self.admin.ask_ends([place], edge, LIMIT_S)[place].result() for edge in edges
        )
        return start, stable, end

    def _tells_ends(self, places: list[TopicPartition]) -> bool:
        try:
            for answer in self.admin.ask_ends(places, Edge.END, LIMIT_S).values():
                answer.result()
        except KafkaFailure:
            return False
        return True

    def settle(self, topic: str) -> None:
        """Wait until no marker is under way."""
        self.until(lambda: self.edges(topic)[1] == self.edges(topic)[2])

    # --- clients ----------------------------------------------------------------------------

    def writer(self, **properties: Any) -> Any:
        """Return an idempotent writer; properties have `_` in place of dots."""
        more = {"enable.idempotence": True, "linger.ms": 0, **dotted(properties)}
        return self.ports.kafka.writer({**self.common, **more})

    def transactional(self, name: str = "a", **properties: Any) -> Any:
        """Return a transactional writer that has taken its id over."""
        more = {"transactional.id": self.name(name), "linger.ms": 0, **dotted(properties)}
        writer = self.ports.kafka.transactional_writer({**self.common, **more})
        writer.init(LIMIT_S)
        return writer

    def reader(self, **properties: Any) -> Any:
        """Return a reader that belongs to no group."""
        reader = self.ports.kafka.reader(self._reading(properties))
        self._open.append(reader)
        return reader

    def member(self, **properties: Any) -> Any:
        """Return a member of the group, which has not joined."""
        quick = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
        member = self.ports.kafka.member({**self._reading(properties), **quick})
        self._open.append(member)
        return member

    def _reading(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self.common,
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "range",
            "fetch.wait.max.ms": 20,
            **dotted(properties),
        }

    def close(self) -> None:
        """Let all readers and members go."""
        for one in self._open:
            with suppress(KafkaFailure):
                one.close()

    # --- what checks do all the time --------------------------------------------------------

    def until(self, is_so: Callable[[], Any]) -> None:
        """Wait until something is so."""
        clock = self.ports.clock
        deadline = clock.monotonic() + LIMIT_S
        while not is_so():
            assert clock.monotonic() < deadline, "it does not come"
            self.ports.run.pause(SLICE_S)

    def put(self, topic: str, *values: bytes | None, **more: Any) -> list[int]:
        """Store records in partition 0 by an idempotent writer; return their offsets."""
        reported = [self.send(self._writer, topic, value, **more) for value in values]
        return [record.offset() for _, record in reported]

    def send(
        self, writer: Any, topic: str, value: bytes | None = b"v", **more: Any
    ) -> tuple[KafkaFailure | None, Any]:
        """Hand one record over and wait for what becomes of it."""
        reported: list[tuple[KafkaFailure | None, Any]] = []
        self.produce(writer, topic, value, reported, **more)
        with suppress(KafkaFailure):
            writer.flush(LIMIT_S)
        assert reported, "no acknowledgement"
        return reported[0]

    def produce(
        self,
        writer: Any,
        topic: str,
        value: bytes | None,
        reported: list[tuple[KafkaFailure | None, Any]],
        *,
        key: bytes | None = None,
        partition: int = 0,
        timestamp_ms: int = 0,
        headers: Any = None,
    ) -> None:
        """Hand one record over; its report is added to `reported`."""

        def note(error: Any, record: Any) -> None:
            reported.append((None if error is None else failure_of(error), record))

        writer.produce(topic, value, key, partition, note, timestamp_ms, headers)

    def to_the_end(self, reader: Any, ends: int = 1) -> list[Any]:
        """Return what a reader hands over until so many partitions have come to their end."""
        records: list[Any] = []
        deadline = self.ports.clock.monotonic() + LIMIT_S
        while ends:
            assert self.ports.clock.monotonic() < deadline, "the end is not reached"
            record = reader.poll(SLICE_S)
            if record is not None and record.error() is None:
                records.append(record)
            elif record is not None:
                assert failure_of(record.error()).code == Code.PARTITION_EOF
                ends -= 1
        return records

    def read(self, topic: str, *, is_committed: bool = True) -> list[tuple[int, bytes | None]]:
        """Return offset and value of what a reader is shown of partition 0."""
        level = "read_committed" if is_committed else "read_uncommitted"
        reader = self.reader(isolation_level=level)
        reader.read_from({(topic, 0): BEGINNING})
        return [(record.offset(), record.value()) for record in self.to_the_end(reader)]

    def next_error(self, reader: Any) -> Any:
        """Return the next error in place of a record."""
        found: list[Any] = []

        def look() -> bool:
            record = reader.poll(SLICE_S)
            if record is not None and record.error() is not None:
                found.append(record)
            return bool(found)

        self.until(look)
        return found[0]

    def committed(self, topic: str, **properties: Any) -> tuple[int, str | None]:
        """Return the group's committed offset of partition 0, and its metadata."""
        place = topic, 0
        found = self.reader(**properties).committed([place], LIMIT_S)[place]
        return found.offset, found.metadata


def dotted(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with dots in place of `_`."""
    return {name.replace("_", "."): value for name, value in properties.items()}


def refused(call: Callable[..., object], *arguments: Any) -> KafkaFailure:
    """Return the KafkaFailure that a call raises."""
    try:
        call(*arguments)
    except KafkaFailure as failure:
        return failure
    raise AssertionError("it was not refused")


class Joined:
    """A member in a group, and what its callbacks noted.

    Attributes:
        member: The client.
        assigned: What it was assigned, one after the other; None where it was revoked.
        memberships: As of each assignment.
    """

    def __init__(self, world: World, topics: list[str], **properties: Any) -> None:
        self.world = world
        self.member = world.member(**properties)
        self.assigned: list[frozenset[TopicPartition] | None] = []
        self.memberships: list[object] = []
        self.reads_from: dict[TopicPartition, int] = {}
        self.member.join(topics, self._on_assigned, self._on_revoked)

    def wait(self, count: int = 1, *others: Joined) -> Joined:
        """Poll until so many assignments came; others take part."""

        def look() -> bool:
            for one in (self, *others):
                one.member.poll(SLICE_S)
            return len(self.memberships) >= count

        self.world.until(look)
        return self

    def _on_assigned(self, member: Any, places: frozenset[TopicPartition]) -> None:
        self.assigned.append(places)
        self.memberships.append(member.membership())
        member.read_from(self.reads_from)

    def _on_revoked(self, _member: Any) -> None:
        self.assigned.append(None)
