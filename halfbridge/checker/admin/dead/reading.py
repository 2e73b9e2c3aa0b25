"""Reads the dead-letter topic, and the records that dead letters name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.admin.dead.letters import (
    Body,
    ExaminedLetter,
    Found,
    Letter,
    LetterPosition,
    Source,
    body_of,
    examined,
    parse_record,
)
from halfbridge.checker.errors import AdminRetriableError, AdminSetupError
from halfbridge.serde.records import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.topics import TopicNames

# A gap between wanted offsets up to which they are read together: a separate reader costs
# as much as some hundreds of records.
_RUN_GAP_MAX = 200
_PROGRESS_EVERY = 10_000  # records, a fraction of a second's reading


class DeadTopic:
    """The dead-letter topic of an installation, read once from its start, and on from there.

    Attributes:
        starts: Partition -> log start, when the partition was read last.
        ends: Partition -> offset below which all was read.
    """

    def __init__(
        self,
        cluster: Cluster,
        names: TopicNames,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster, self._names, self._on_progress = cluster, names, on_progress
        self.found = Found()
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self._records = 0

    @property
    def partitions(self) -> range:
        """Return the numbers of the partitions.

        Raises AdminSetupError: there is no such topic; the operator follows the text.
        """
        count = self._cluster.partition_count(self._names.dead)
        if not count:
            raise AdminSetupError(
                f"there is no topic {self._names.dead}: check --topic-prefix and the right to"
                " DESCRIBE the topic, or run `halfbridge topics create`",
                topics=(self._names.dead,),
            )
        return range(count)

    def read_on(self, ends: Mapping[int, int] | None = None) -> None:
        """Read the new records, up to `ends` or to the ends of now."""
        for partition in self.partitions if ends is None else ends:
            low, now = self._cluster.watermarks(self._names.dead, partition)
            end = now if ends is None else ends[partition]
            self.starts[partition] = low
            start = max(low, self.ends.get(partition, 0))
            for record in self._cluster.read(self._names.dead, partition, start=start, end=end):
                self.found.add(parse_record(record))
                self._records += 1
                if not self._records % _PROGRESS_EVERY:
                    self._on_progress(f"{self._records:,} records of {self._names.dead} read")
            self.ends[partition] = max(end, start)


def examine(cluster: Cluster, names: TopicNames, letters: Sequence[Letter]) -> list[ExaminedLetter]:
    """Return letters with their bodies and standing, in the given order.

    Letters that name another topic than the installation's half or op topic name nothing.
    """
    places = [each.place for each in letters]
    stored = read_at(cluster, names.dead, places)
    sources = {
        topic: read_at(
            cluster,
            topic,
            [_source_place(each) for each in letters if each.dead.source_topic == topic],
        )
        for topic in (names.half, names.op)
    }
    ops = read_at(
        cluster, names.op, [_op_place(each) for each in letters if _op_place(each).offset >= 0]
    )
    nothing = Source()
    return [
        examined(
            each,
            _body(each, stored[each.place]),
            sources.get(each.dead.source_topic, {}).get(_source_place(each), nothing),
            ops.get(_op_place(each), nothing),
            cluster.signatures.verifier,
        )
        for each in letters
    ]


def read_at(
    cluster: Cluster, topic: str, places: Iterable[LetterPosition]
) -> dict[LetterPosition, Source]:
    """Return the records at some offsets of a topic; none for offsets that never existed."""
    found: dict[LetterPosition, Source] = {}
    wanted: dict[int, list[int]] = {}
    for place in set(places):
        wanted.setdefault(place.partition, []).append(place.offset)
        found[place] = Source()
    known = cluster.partition_count(topic)
    for partition, offsets in wanted.items():
        if not 0 <= partition < known:
            continue
        low, end = cluster.watermarks(topic, partition)
        for offset in offsets:
            if offset < low:
                found[LetterPosition(partition, offset)] = Source(is_deleted=True)
        there = sorted(offset for offset in offsets if low <= offset < end)
        for run in _runs(there):
            for record in cluster.read(topic, partition, start=run[0], end=run[-1] + 1):
                place = LetterPosition(partition, record.offset)
                if place in found:
                    found[place] = Source(record)
    return found


def _runs(offsets: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and offset - runs[-1][-1] <= _RUN_GAP_MAX:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    return runs


def _body(letter: Letter, stored: Source) -> Body | None:
    if letter.dead.is_stub:
        return None
    record: LogRecord | None = stored.record
    if record is None:
        partition, offset = letter.place
        raise AdminRetriableError(
            f"dead letter {partition}:{offset} was deleted meanwhile; try again"
        )
    return body_of(record)


def _source_place(letter: Letter) -> LetterPosition:
    return LetterPosition(letter.dead.source_partition, letter.dead.source_offset)


def _op_place(letter: Letter) -> LetterPosition:
    offset = letter.dead.op_offset
    return LetterPosition(letter.dead.source_partition, max(offset, NO_OFFSET))
