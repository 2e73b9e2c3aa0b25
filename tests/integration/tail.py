"""What an independent reader sees of a topic."""

from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, TopicPartition

from halfbridge.serde import headers as names
from halfbridge.serde.avro import CHECK_REQUEST, DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.records import CheckRequest, DeadLetter, HalfMetadata, Op
from tests.kit.waiting import CALL_S, SETTLED_S, until

Headers = list[tuple[str, "bytes | None"]]


class Stored(NamedTuple):
    """Partition, offset and time of a record of the test."""

    transaction_id: str
    partition: int
    offset: int
    append_ms: int


@dataclass(frozen=True)
class Record:
    """One record as an independent consumer sees it."""

    topic: str
    partition: int
    offset: int
    is_append_time: bool
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        return next(value for given, value in reversed(self.headers) if given == name)

    @property
    def transaction_id(self) -> str:
        """The id that a real record carries."""
        return (self.header(names.TRANSACTION_ID) or b"").decode()

    @property
    def half(self) -> HalfMetadata:
        return HALF_METADATA.decode(self.header(names.HALF) or b"")

    @property
    def dead(self) -> DeadLetter:
        return DEAD_LETTER.decode(self.header(names.DEAD) or b"")

    @property
    def check(self) -> CheckRequest:
        return CHECK_REQUEST.decode(self.header(names.CHECK) or b"")

    @property
    def op(self) -> Op:
        return OP.decode(self.value or b"")


class Tail:
    """Everything a `read_committed` consumer sees of a topic, from its start."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.records: list[Record] = []
        self._ended: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "tail",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 4_194_304,
            }
        )
        known = self._consumer.list_topics(topic, CALL_S).topics[topic]
        assert known.error is None, f"{topic}: {known.error}"
        self._next = dict.fromkeys(known.partitions, 0)
        self._assign()

    @property
    def partitions(self) -> list[int]:
        return sorted(self._next)

    def until(self, count: int, *, within_s: float = SETTLED_S) -> list[Record]:
        """Return the records once there are `count`; more are not waited for."""
        deadline = monotonic() + within_s
        while len(self.records) < count:
            assert monotonic() < deadline, (
                f"{self.topic}: {len(self.records)} of {count} records within {within_s:g} s"
            )
            self._take()
        return list(self.records)

    def to_end(self) -> list[Record]:
        """Return all records there are now."""
        self._ended.clear()
        self._assign()
        until(f"end of {self.topic}", self._took_all)
        return list(self.records)

    def beside(self, markers: set[bytes]) -> list[Record]:
        """Return all records but `markers`, values that come once each, when all these were read.

        What stands behind the last one by then is returned too, as is a marker that comes again.
        """
        until(
            f"{len(markers)} markers in {self.topic}",
            lambda: self._take() or markers <= {each.value for each in self.records},
        )
        awaited = set(markers)
        return [each for each in self.to_end() if not _remove(awaited, each.value)]

    def close(self) -> None:
        self._consumer.close()

    def _assign(self) -> None:
        places = [TopicPartition(self.topic, number, at) for number, at in self._next.items()]
        self._consumer.assign(places)

    def _took_all(self) -> bool:
        self._take()
        return len(self._ended) == len(self._next)

    def _take(self) -> None:
        for message in self._consumer.consume(1000, 0.02):
            if message.error() is not None:
                self._ended.add(message.partition())
                continue
            kind, timestamp_ms = message.timestamp()
            self._next[message.partition()] = message.offset() + 1
            self.records.append(
                Record(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    kind == TIMESTAMP_LOG_APPEND_TIME,
                    timestamp_ms,
                    message.key(),
                    message.value(),
                    list(message.headers() or ()),
                )
            )


def _remove(values: set[bytes], value: bytes | None) -> bool:
    """Remove a value from a set; tell whether it was there."""
    if value not in values:
        return False
    values.remove(value)
    return True
