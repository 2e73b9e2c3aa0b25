"""The topics of an installation in memory: made, and read without a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.shape import Layout, wanted_topics
from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.avro import DEAD_LETTER, OP
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.headers import DEAD, parse_half
from halfbridge.serde.progress import START
from halfbridge.serde.records import OpKind
from halfbridge.testkit.history import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.kafka.ports import Place
    from halfbridge.serde.records import DeadLetter, Op
    from halfbridge.serde.topics import TopicNames
    from halfbridge.testkit.memory.broker import Broker
    from halfbridge.testkit.memory.log import Record

_DECISIONS = frozenset((OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD))


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A record of the dead-letter topic.

    Attributes:
        transaction_id: Of the transaction that was given up; empty where none can be read.
        letter: Why the record stands there.
        record: Key, value and headers as they were given, and the daemon's own headers.
    """

    transaction_id: str
    letter: DeadLetter
    record: ReadRecord


class Installation:
    """Topics of one installation on brokers in memory.

    Args:
        broker: The brokers.
        names: Of the topics.
        partitions: Of half and op topic.
    """

    def __init__(self, broker: Broker, names: TopicNames, *, partitions: int) -> None:
        self._broker = broker
        self._names = names
        self._numbers = range(partitions)
        for shape in wanted_topics(names, Layout(partitions=partitions, replication_factor=1)):
            settings = {each.key: each.value for each in shape.settings}
            broker.create_topic(NewTopic(shape.name, shape.partitions, 1, settings))
        group = broker.group(names.daemon_group)
        group.store(
            group.next_commit(),
            {
                **{(names.half, number): (START.half, "") for number in self._numbers},
                **{(names.op, number): (START.op, START.metadata()) for number in self._numbers},
            },
        )

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Make a real topic."""
        self._broker.create_topic(NewTopic(name, partitions, 1, {}))

    def read(self, topic: str) -> list[ReadRecord]:
        """Return what read_committed readers see of a topic, per partition in offset order."""
        return [_read(record) for record in self._records(topic)]

    def dead_letters(self) -> list[DeadMessage]:
        """Return what stands in the dead-letter topic, without an operator's marks."""
        return [
            DeadMessage(_life(record)[0], _letter(record), _read(record))
            for record in self._records(self._names.dead)
            if (record.headers() or [("", None)])[-1][0] == DEAD
        ]

    def undecided(self) -> list[str]:
        """Return the ids of transactions that nobody has decided, in the order of half offsets.

        These have a half message behind the offset up to which the daemon is done, and no COMMIT,
        ROLLBACK or DISCARD in the op topic.
        """
        decided = {
            (op.transaction_id, op.resume_count)
            for record in self._records(self._names.op)
            if (op := _op(record)) is not None and op.kind in _DECISIONS
        }
        lives = dict.fromkeys(
            life
            for record in self._records(self._names.half)
            if (record.offset() or 0) >= self._done((self._names.half, record.partition() or 0))
            if (life := _life(record))[0]
        )
        return [life[0] for life in lives if life not in decided]

    def left(self) -> list[str]:
        """Return one line for each partition with something undecided, or not yet visible."""
        return [
            f"{topic}[{number}] is done up to {done} of {end}"
            for topic in (self._names.half, self._names.op)
            for number in self._numbers
            if (done := self._done((topic, number)))
            < (end := self._broker.partition((topic, number)).end)
        ]

    def _done(self, place: Place) -> int:
        return self._broker.group(self._names.daemon_group).committed[place][1]

    def _records(self, topic: str) -> Iterator[Record]:
        for partition in self._broker.topic(topic).partitions:
            records, _ = partition.read(partition.start, partition.end)
            yield from records


def _read(record: Record) -> ReadRecord:
    return ReadRecord(
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        key=record.key(),
        value=record.value(),
        headers=tuple(record.headers() or ()),
    )


def _letter(record: Record) -> DeadLetter:
    return DEAD_LETTER.decode(dict(record.headers() or ()).get(DEAD) or b"")


def _op(record: Record) -> Op | None:
    try:
        return OP.decode(record.value() or b"")
    except SerdeError:
        return None


def _life(record: Record) -> tuple[str, int]:
    """Return id and resume count of a half record's transaction; an empty id: it cannot be read."""
    try:
        half = parse_half(record.headers())[0]
    except SerdeError:
        return "", 0
    return half.transaction_id, half.resume_count
