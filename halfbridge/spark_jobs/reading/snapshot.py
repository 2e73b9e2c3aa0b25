"""What a job read, as offsets: a record that can be written down and read again. Pure.

Every range is of one partition, from the log's start to the last stable offset when it was asked.
With the same snapshot a job reads the same rows, bit for bit, as long as the log holds them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.jobs.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_VERSION = 1
# Append time of the first record where none is left that has one: anything may have been deleted.
NOTHING_LEFT_MS = 2**62


@dataclass(frozen=True, slots=True)
class Range:
    """What was read of one partition.

    Attributes:
        start: The log's start: below it, records were deleted.
        end: Behind the last offset read.
        first_ms: Where the log does not begin at 0, the time of the first record left: append
            time, of a real or dead-letter topic the time of the daemon's records. Else -1.
    """

    start: int
    end: int
    first_ms: int = -1

    @property
    def is_cut(self) -> bool:
        """Tell whether records below the start are gone."""
        return self.start > 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Offsets of an installation's topics at one time, and how the daemon stood.

    Attributes:
        prefix: Prefix of the installation's internal topics.
        taken_ms: When it was taken, by the clock of the machine that took it.
        topics: Topic -> partition -> what was read.
        real_topics: Which of them are real topics.
        applied: Op partition -> O: the ops below it had their effect before the real topics'
            ends were asked. Without a partition: not known.
        positions: Half partition -> P: unreadable half records below it were buried before that.
        hidden: Topics in which an open kafka_txn hides rows that were there when their ends were
            asked: for an audit real topics and dead letters, otherwise half and op topic.
        gone: Real topics that half messages name and the cluster does not have.
        others: Half topics of other installations -> partition -> what was read, after the real
            topics; nothing where no real record asked for it.
    """

    prefix: str
    taken_ms: int
    topics: Mapping[str, Mapping[int, Range]]
    real_topics: tuple[str, ...]
    applied: Mapping[int, int] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    others: Mapping[str, Mapping[int, Range]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> TopicNames:
        """Return the names of the installation's topics."""
        return TopicNames(self.prefix)

    @property
    def half(self) -> Mapping[int, Range]:
        """Return what was read of the half topic."""
        return self.topics[self.names.half]

    @property
    def op(self) -> Mapping[int, Range]:
        """Return what was read of the op topic."""
        return self.topics[self.names.op]

    @property
    def dead(self) -> Mapping[int, Range]:
        """Return what was read of the dead-letter topic; nothing where it was not."""
        return self.topics.get(self.names.dead, {})

    def ranges(self, *topics: str) -> dict[str, Mapping[int, Range]]:
        """Return what was read of these topics, all of which it names."""
        return {topic: self.topics[topic] for topic in topics}

    def kept_ids(self) -> dict[str, str]:
        """Return topic -> id of all topics of which anything was read; empty: not known."""
        return {
            topic: self.topic_ids.get(topic, "")
            for topic, read in {**self.topics, **self.others}.items()
            if any(each.start < each.end for each in read.values())
        }

    def cut_until_ms(self, topic: str) -> int:
        """Return the append time up to which records of `topic` may be deleted; -1: none is."""
        read = self.topics.get(topic) or self.others.get(topic, {})
        return max((each.first_ms for each in read.values() if each.is_cut), default=-1)

    def records(self, topics: Iterable[str] | None = None) -> int:
        """Return how many offsets were read; transaction markers count too."""
        wanted = self.topics if topics is None else topics
        return sum(
            each.end - each.start for topic in wanted for each in self.topics[topic].values()
        )

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {"version": _VERSION, **asdict(self)}


def from_json(data: Any) -> Snapshot:
    """Return the snapshot that `as_json` made; a report that holds one under `snapshot` is taken.

    Raises:
        JobError: it is no such thing; the user must give another file.
    """
    try:
        given = data.get("snapshot", data)
        if given["version"] != _VERSION:
            raise JobError(f"snapshot of version {given['version']}, this job reads {_VERSION}")
        return Snapshot(
            prefix=given["prefix"],
            taken_ms=int(given["taken_ms"]),
            topics=_topics(given["topics"]),
            real_topics=tuple(given["real_topics"]),
            applied=_numbers(given["applied"]),
            positions=_numbers(given["positions"]),
            hidden=tuple(given["hidden"]),
            gone=tuple(given["gone"]),
            others=_topics(given["others"]),
            topic_ids=dict(given.get("topic_ids", {})),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JobError(f"this is no snapshot: {type(error).__name__}: {error}") from error


def read_snapshot(text: str) -> Snapshot:
    """Return the snapshot in a file's text.

    Raises:
        JobError: as `from_json`.
    """
    try:
        return from_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise JobError(f"this is no snapshot: {error}") from error


def _topics(given: Any) -> dict[str, dict[int, Range]]:
    return {
        str(topic): {int(number): Range(**each) for number, each in ranges.items()}
        for topic, ranges in given.items()
    }


def _numbers(given: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in given.items()}
