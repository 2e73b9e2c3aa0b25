"""Finds Kafka transactions that Kafka itself tore, in the brokers' logs.

Torn: a partition has a COMMIT marker for records of a kafka_txn whose other records were aborted.
The signature has two parts, both needed. An ABORT marker follows the COMMIT with no record of the
producer in between: the coordinator counted the partition among those of the aborted kafka_txn.
Elsewhere, records of the same producer and epoch were aborted although they are older than that
COMMIT: they belonged to the committed kafka_txn, as a producer begins none before the last one has
its markers.

`python -m halfbridge.testkit.torn DIRECTORY...` lists those in brokers' data directories.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.serde.avro import read_long

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Record batches, version 2: base offset, length | leader epoch, magic, checksum, attributes, last
# offset delta, first and last time, producer id, epoch, base sequence, count.
_HEAD = struct.Struct(">qi")
_BATCH = struct.Struct(">ibIhiqqqhii")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_MARKER = struct.Struct(">hh")  # key of a control record: version, type
_COMMIT = 1  # the marker's type: 0 aborts (KIP-98)


class Batch(NamedTuple):
    """The header of a record batch; `is_commit` is None where it is no marker."""

    first: int
    last: int
    timestamp_ms: int
    producer: int
    epoch: int
    is_commit: bool | None


@dataclass(frozen=True, slots=True)
class EndedRecords:
    """Records of one producer in one partition, and the marker that ended them."""

    producer: int
    epoch: int
    first: int
    last: int
    newest_ms: int
    is_commit: bool
    ended_ms: int
    is_contradicted: bool = False


@dataclass(frozen=True, slots=True)
class TornTransaction:
    """A kafka_txn: `<topic>-<partition>` -> first and last offset that was committed, aborted."""

    producer: int
    epoch: int
    committed: Mapping[str, tuple[int, int]]
    aborted: Mapping[str, tuple[int, int]]


def batches(segment: bytes) -> Iterator[Batch]:
    """Yield the transactional batches of a log segment, markers too."""
    at = 0
    while at + _HEAD.size + _BATCH.size <= len(segment):
        first, length = _HEAD.unpack_from(segment, at)
        end = at + _HEAD.size + length
        if length <= 0 or end > len(segment):
            return  # preallocated space, or a batch that is being written
        (_, _, _, attributes, last_delta, _, newest_ms, producer, epoch, _, _) = _BATCH.unpack_from(
            segment, at + _HEAD.size
        )
        if attributes & _TRANSACTIONAL:
            is_commit = _is_commit(segment[at:end]) if attributes & _CONTROL else None
            yield Batch(first, first + last_delta, newest_ms, producer, epoch, is_commit)
        at = end


def ended(found: Iterable[Batch]) -> list[EndedRecords]:
    """Return the records that each marker of a partition ended, in the order of markers."""
    open_: dict[int, list[Batch]] = {}
    newest: dict[int, int] = {}  # producer -> index of its last entry in `done`
    done: list[EndedRecords] = []
    for batch in found:
        if batch.is_commit is None:
            open_.setdefault(batch.producer, []).append(batch)
            continue
        data = open_.pop(batch.producer, None)
        if data is not None:
            newest[batch.producer] = len(done)
            done.append(
                EndedRecords(
                    batch.producer,
                    data[0].epoch,
                    data[0].first,
                    data[-1].last,
                    max(each.timestamp_ms for each in data),
                    batch.is_commit,
                    batch.timestamp_ms,
                )
            )
            continue
        place = newest.get(batch.producer)
        if place is not None and done[place].is_commit and not batch.is_commit:
            done[place] = replace(done[place], is_contradicted=True)
    return done


def torn(partitions: Mapping[str, Iterable[EndedRecords]]) -> list[TornTransaction]:
    """Return the torn kafka_txns, from the ended records of each `<topic>-<partition>`."""
    every = [(name, each) for name, all_ in partitions.items() for each in all_]
    found = []
    for producer, epoch in sorted({(each.producer, each.epoch) for _, each in every}):
        mine = [(name, e) for name, e in every if (e.producer, e.epoch) == (producer, epoch)]
        committed = [(name, each) for name, each in mine if each.is_contradicted]
        aborted = [
            (name, each)
            for name, each in mine
            if not each.is_commit and any(each.newest_ms < one.ended_ms for _, one in committed)
        ]
        if committed and aborted:
            found.append(TornTransaction(producer, epoch, _offsets(committed), _offsets(aborted)))
    return found


def read(directory: Path) -> dict[str, list[EndedRecords]]:
    """Return `ended` of each partition in a broker's data directory, by `<topic>-<partition>`."""
    partitions = {}
    for each in sorted(directory.iterdir()):
        segments = sorted(each.glob("*.log")) if each.is_dir() else []
        content = [batch for segment in segments for batch in batches(segment.read_bytes())]
        if content:
            # A topic that is being deleted: `<topic>-<partition>.<id>-delete`.
            name = each.name.rpartition(".")[0] if each.name.endswith("-delete") else each.name
            partitions[name] = ended(content)
    return partitions


def _is_commit(batch: bytes) -> bool:
    at = _HEAD.size + _BATCH.size
    # Kafka's varints are Avro's longs.
    _, at = read_long(batch, at)  # length
    _, at = read_long(batch, at + 1)  # behind the attributes: time
    _, at = read_long(batch, at)  # offset
    _, at = read_long(batch, at)  # length of the key
    return bool(_MARKER.unpack_from(batch, at)[1] == _COMMIT)


def _offsets(ranges: Iterable[tuple[str, EndedRecords]]) -> dict[str, tuple[int, int]]:
    return {name: (each.first, each.last) for name, each in ranges}


def main(arguments: list[str]) -> int:
    """Print the torn kafka_txns; return 1 if there are any."""
    found = [each for directory in arguments for each in torn(read(Path(directory)))]
    for each in found:
        sys.stdout.write(
            f"producer {each.producer} epoch {each.epoch}:"
            f" committed {dict(each.committed)}, aborted {dict(each.aborted)}\n"
        )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
