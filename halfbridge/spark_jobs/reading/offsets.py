"""Where a read of topics begins and ends, and the snapshot of what was read. Pure.

A position is an offset or a publish time. A snapshot has offsets only; it can be written to a file
and read again. Every range is of one partition, from the log's start to the last stable offset when
it was asked. With the same snapshot a job reads the same rows, bit for bit, as long as the log
holds them.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import click

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_AGO = re.compile(r"-(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# What Spark's JSON says for them.
_EARLIEST = -2
_LATEST = -1


@dataclass(frozen=True, slots=True)
class Position:
    """One end of a range: exactly one of the two is given."""

    # `earliest`, `latest`, or JSON with an offset for every partition of every topic, in Spark's
    # form: `{"orders": {"0": 17, "1": -2}}` (-2 earliest, -1 latest).
    offsets: str = ""
    # A publish time; the range has the rows published at or after it (start), or before it (end).
    timestamp_ms: int | None = None

    def starting(self) -> dict[str, str]:
        """Return the options of Spark's source for a read that starts here."""
        if self.timestamp_ms is None:
            return {"startingOffsets": self.offsets}
        # Without the strategy a partition that has nothing so new fails the read.
        return {
            "startingTimestamp": str(self.timestamp_ms),
            "startingOffsetsByTimestampStrategy": "latest",
        }

    def ending(self) -> dict[str, str]:
        """Return the options of Spark's source for a read that ends here."""
        if self.timestamp_ms is None:
            return {"endingOffsets": self.offsets}
        return {"endingTimestamp": str(self.timestamp_ms)}

    def __str__(self) -> str:
        return self.offsets or f"{self.timestamp_ms} ms"


EARLIEST = Position("earliest")
LATEST = Position("latest")


def check_batch(start: Position, end: Position) -> None:
    """Raise ValueError where a batch starts at latest or ends at earliest; the user corrects it.

    Spark refuses such a read, with a text that does not say what to give.
    """
    for verb, position, wrong, number, instead in (
        ("start", start, LATEST, _LATEST, EARLIEST),
        ("end", end, EARLIEST, _EARLIEST, LATEST),
    ):
        if position == wrong or number in _numbers_in(position):
            raise ValueError(
                f"a batch cannot {verb} at {wrong}: give {instead}, a time such as"
                " 2026-11-01T12:00Z or -24h, or offsets as JSON"
            )


def parse_position(text: str) -> Position:
    """Return the position that `text` names.

    `earliest`, `latest`, offsets as JSON, milliseconds since 1970, an ISO 8601 time (UTC where it
    names no zone), or `-24h` for 24 hours ago.

    Raises:
        ValueError: it is none of these; the user corrects it.
    """
    text = text.strip()
    if text in (EARLIEST.offsets, LATEST.offsets):
        return Position(text)
    if text.startswith("{"):
        return Position(_offsets(text))
    if text.isascii() and text.isdigit():
        return Position(timestamp_ms=int(text))
    return Position(timestamp_ms=round(_time(text).timestamp() * 1000))


def _time(text: str) -> datetime:
    if ago := _AGO.fullmatch(text):
        try:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise ValueError(f"{text!r} is before the year 1") from None
    try:
        time = datetime.fromisoformat(re.sub("Z$", "+00:00", text))  # Python 3.10 knows no Z
    except ValueError:
        raise ValueError(
            f"{text!r} is no position: give earliest, latest, a time such as 2026-11-01T12:00Z"
            " or -24h, or offsets as JSON"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def _numbers_in(position: Position) -> set[int]:
    if not position.offsets.startswith("{"):
        return set()
    return {offset for of in json.loads(position.offsets).values() for offset in of.values()}


def _offsets(text: str) -> str:
    wrong = ValueError(f"{text} is not like {{'orders': {{'0': 17, '1': -2}}}} (as JSON)")
    try:
        given = json.loads(text)
    except ValueError:
        raise wrong from None
    partitions: list[tuple[str, object]] = []
    for topic in given.values():
        if not isinstance(topic, dict) or not topic:
            raise wrong
        partitions += topic.items()
    for number, offset in partitions:
        if not number.isdigit() or not isinstance(offset, int) or offset < _EARLIEST:
            raise wrong
    return json.dumps(given, sort_keys=True)


def _position(_context: click.Context, _option: click.Parameter, given: str) -> Position:
    try:
        return parse_position(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


# Keyword `start`, of type `Position`.
from_option = click.option(
    "--from",
    "start",
    default=EARLIEST.offsets,
    show_default=True,
    callback=_position,
    metavar="POSITION",
    help="Where to begin: earliest, latest, a publish time (2026-11-01T12:00Z, or -24h), or"
    " offsets as JSON.",
)
# Keyword `end`, of type `Position`.
to_option = click.option(
    "--to",
    "end",
    default=LATEST.offsets,
    show_default=True,
    callback=_position,
    metavar="POSITION",
    help="Where to end, likewise; a publish time is not part of the range itself.",
)
_VERSION = 1  # of the file's form; another form gets another number
# Append time of the first record where none is left that has one: anything may have been deleted.
NOTHING_LEFT_MS = 2**62


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets that were read of one partition."""

    start: int  # the log's start: below it, records were deleted
    end: int  # after the last offset read
    # Where the log does not begin at 0, the time of the first record left: append time, of a real
    # or dead-letter topic the time of the daemon's records. Else -1.
    first_ms: int = -1

    @property
    def is_cut(self) -> bool:
        """Tell whether records below the start are gone."""
        return self.start > 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Offsets of an installation's topics at one time, and the daemon's positions."""

    prefix: str
    taken_ms: int  # when the snapshot was made, by the clock of that machine, ms since 1970
    topics: Mapping[str, Mapping[int, Range]]  # topic -> partition -> its range
    real_topics: tuple[str, ...]  # which of them are real topics
    # Op partition -> O: the ops below it had their effect before the real topics' ends were asked.
    # Without a partition: not known.
    applied: Mapping[int, int] = field(default_factory=dict)
    # Half partition -> P: unreadable half records below it were dead-lettered before that.
    positions: Mapping[int, int] = field(default_factory=dict)
    # Topics in which an open kafka_txn hides rows that were there when their ends were asked: for
    # an audit real topics and dead letters, otherwise half and op topic.
    hidden: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()  # real topics that half messages name and the cluster does not have
    # Half topics of other installations -> partition -> its range, read after the real topics;
    # empty where no real record needed it.
    others: Mapping[str, Mapping[int, Range]] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> TopicNames:
        """Return the names of the installation's topics."""
        return TopicNames(self.prefix)

    @property
    def half(self) -> Mapping[int, Range]:
        """The ranges of the half topic."""
        return self.topics[self.names.half]

    @property
    def op(self) -> Mapping[int, Range]:
        """The ranges of the op topic."""
        return self.topics[self.names.op]

    @property
    def dead(self) -> Mapping[int, Range]:
        """The ranges of the dead-letter topic; empty if it was not read."""
        return self.topics.get(self.names.dead, {})

    def ranges(self, *topics: str) -> dict[str, Mapping[int, Range]]:
        """Return the ranges of topics, all of which the snapshot names."""
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

    def as_json(self) -> dict[str, object]:
        """Return what `read_snapshot` reads."""
        return {"version": _VERSION, **asdict(self)}


def continued(former: Snapshot, fresh: Snapshot) -> Snapshot:
    """Return a snapshot of all that `former` has, and of what was appended until `fresh`.

    Each range begins where it began in `former`, because the records that were deleted since then
    have been read.

    Raises JobError: records between the two are not there; the user follows the text.
    """
    return replace(
        fresh,
        topics=continued_ranges(former.topics, fresh.topics),
        others=former.others,
        topic_ids={**former.topic_ids, **fresh.topic_ids},
    )


def unread(former: Snapshot | None, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot of what `snapshot`, which continues `former`, has more than that."""
    if former is None:
        return snapshot
    return replace(snapshot, topics=unread_ranges(former.topics, snapshot.topics))


def continued_ranges(
    former: Mapping[str, Mapping[int, Range]], fresh: Mapping[str, Mapping[int, Range]]
) -> dict[str, dict[int, Range]]:
    """Return `fresh` with the starts of `former`. Raises JobError as `continued` does."""
    for topic, number, read in _each(former):
        now = fresh.get(topic, {}).get(number)
        if now is None or now.end < read.end:
            is_now = f"ends at {now.end}" if now else "is not there"
            raise JobError(
                f"{topic}[{number}] was read to offset {read.end}, and now {is_now}: records were"
                " lost, or this is another topic. Begin with a new --state."
            )
        if now.start > read.end:
            raise JobError(
                f"{topic}[{number}] was read to offset {read.end}, and now begins at {now.start}:"
                " records were deleted before they were audited. Begin with a new --state."
            )
    return {
        topic: {
            number: replace(former.get(topic, {}).get(number, each), end=each.end)
            for number, each in ranges.items()
        }
        for topic, ranges in fresh.items()
    }


def unread_ranges(
    former: Mapping[str, Mapping[int, Range]], ranges: Mapping[str, Mapping[int, Range]]
) -> dict[str, dict[int, Range]]:
    """Return those parts of `ranges`, which continue `former`, that are not in `former`."""
    ends = {(topic, number): read.end for topic, number, read in _each(former)}
    return {
        topic: {
            number: replace(each, start=ends.get((topic, number), each.start))
            for number, each in of.items()
        }
        for topic, of in ranges.items()
    }


def _each(ranges: Mapping[str, Mapping[int, Range]]) -> Iterator[tuple[str, int, Range]]:
    for topic, of in ranges.items():
        for number, each in of.items():
            yield topic, number, each


def read_snapshot(text: str) -> Snapshot:
    """Return the snapshot of `as_json`, or of a report that has it as `snapshot`.

    Raises JobError: it is neither; the user gives another file.
    """
    try:
        data = json.loads(text)
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
    except json.JSONDecodeError as error:
        raise JobError(f"this is no snapshot: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JobError(f"this is no snapshot: {type(error).__name__}: {error}") from error


def _topics(given: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, dict[int, Range]]:
    return {
        str(topic): {int(number): Range(**each) for number, each in ranges.items()}
        for topic, ranges in given.items()
    }


def _numbers(given: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in given.items()}
