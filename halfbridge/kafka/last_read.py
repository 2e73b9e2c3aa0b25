"""What this process reads, for the process that guards it. Imports no Kafka client.

A damaged record may abort a process (docs/evidence/librdkafka-crc-report.md). An operator's command
runs in a child of a guard (`halfbridge.cli.guard`), which finds out afterwards by what was read
last. Only then are checksums verified: a wrong one would abort a process that has no guard.
"""

from __future__ import annotations

import json
import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.kafka.ports import TopicPartition

# Size of the memory that guard and child share: some 5,000 partitions with names of usual length.
_BYTES_MAX = 1 << 19
_LENGTH_BYTES = 4  # of the text after it: 32 bits


class Reading(NamedTuple):
    """Properties of a reader, and where it began: (topic, partition, offset)."""

    properties: dict[str, Any]
    starts: list[tuple[str, int, int]]


# Partition -> offset of a damaged record there, and why: those which have ended an earlier child.
DAMAGED: dict[tuple[str, int], tuple[int, str]] = {}

_shared: list[mmap.mmap] = []  # one when this process is guarded
_verifies: list[bool] = []


def share(*, verifies: bool) -> None:
    """Begin to keep the positions that are read in memory that a forked child shares."""
    _shared[:] = [mmap.mmap(-1, _BYTES_MAX)]
    _verifies[:] = [verifies]


def verifies() -> bool:
    """Return whether checksums are verified: a guard survives this process."""
    return any(_verifies)


def note(properties: Mapping[str, Any], starts: Mapping[TopicPartition, int]) -> None:
    """Keep what a reader is about to read; nothing where it takes too much memory."""
    if not _shared or not starts:
        return
    plain = {
        name: value
        for name, value in properties.items()
        if isinstance(value, (str, int, float))  # a callback cannot be kept
    }
    data = json.dumps(Reading(plain, [(*place, at) for place, at in starts.items()])).encode()
    memory = _shared[0]
    memory[:_LENGTH_BYTES] = bytes(_LENGTH_BYTES)
    if len(data) <= _BYTES_MAX - _LENGTH_BYTES:
        memory[_LENGTH_BYTES : _LENGTH_BYTES + len(data)] = data
        memory[:_LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "big")


def last() -> Reading | None:
    """Return the last positions of this process or the child; None: nothing, or too much."""
    if not _shared:
        return None
    memory = _shared[0]
    size = int.from_bytes(memory[:_LENGTH_BYTES], "big")
    if not size:
        return None
    return Reading(*json.loads(memory[_LENGTH_BYTES : _LENGTH_BYTES + size]))
