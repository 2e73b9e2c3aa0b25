"""Events that wait for their real topics, and the offsets that are committed meanwhile. Pure.

A real topic may be unavailable. Its events are held in memory; those of other topics continue.
The committed offset of a partition is that of its first held event; the metadata say how far the
partition is relayed, and which offsets below are still due:

    c1;<id of the change topic>;<end>;<due>       without <end> and <due>: nothing below is due

So a relay that begins at the committed offset takes exactly what is due, whatever its mapping says
by then. An event leaves <due> in the kafka_txn that writes its message or its dead letter.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfbridge.changes.decide import Event

_MARK = "c1"
_SHOWN_CHARS_MAX = 80  # of what cannot be read: a line
# Kafka takes 4,096 bytes of metadata by default (offset.metadata.max.bytes).
METADATA_CHARS_MAX = 4_000
# Held events of a relay, and the bytes of their keys and values. Packing this many offsets takes
# some 10 ms of a kafka_txn.
HELD_MAX = 10_000
HELD_BYTES_MAX = 64 * 1024 * 1024  # 64 events of Kafka's default largest size
# Events that a restart may have to read again, a partition: some ten seconds.
REREAD_MAX = 1_000_000
# What unpacked metadata may take, which somebody else may have written: each offset once, 16 bytes
# for each of REREAD_MAX.
_UNPACKED_MAX = 16 * 1024 * 1024


@dataclass(frozen=True)
class Position:
    """How far a partition is relayed: all below `end`, except the offsets in `due`, which ascend.

    `topic_id` is that of the change topic; empty: not known.
    """

    topic_id: str
    end: int
    due: tuple[int, ...] = ()

    @property
    def offset(self) -> int:
        """The offset to commit, and to read from."""
        return self.due[0] if self.due else self.end

    @cached_property
    def metadata(self) -> str:
        """The metadata to commit with `offset`. Packing takes long where many offsets are due."""
        known = f"{_MARK};{self.topic_id}"
        return f"{known};{self.end};{_packed(self.due)}" if self.due else known


def position_of(offset: int, metadata: str | None) -> Position:
    """Return the committed position.

    Raises ValueError: the metadata are damaged, or a later version's; an operator acts.
    """
    if not metadata:
        return Position("", offset)
    mark, _, rest = metadata.partition(";")
    topic_id, *more = rest.split(";")
    if mark != _MARK or len(more) not in (0, 2):
        raise ValueError(f"not metadata of a relay: {metadata[:_SHOWN_CHARS_MAX]!r}")
    if not more:
        return Position(topic_id, offset)
    return Position(topic_id, int(more[0]), _unpacked(more[1]))


class Held:
    """The held events of a relay, in the order in which each topic takes them.

    `were_passed`: whether an event of another topic was relayed since the first one was held.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Event]] = {}
        self._count = self._size_bytes = 0
        self.were_passed = False

    def __len__(self) -> int:
        return self._count

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are waited for; the one whose first event came first is the first."""
        return tuple(self._queues)

    @property
    def is_full(self) -> bool:
        """Whether no further event may be held."""
        return self._count >= HELD_MAX or self._size_bytes >= HELD_BYTES_MAX

    def holds(self, topic: str) -> bool:
        """Return whether events wait for a topic: each later one must wait after them."""
        return topic in self._queues

    def add(self, topic: str, event: Event) -> None:
        """Hold an event; those of a partition come in the order of their offsets."""
        self._queues.setdefault(topic, deque()).append(event)
        self._count += 1
        self._size_bytes += size_of(event)

    def first(self, topic: str) -> Event:
        """Return the event that a topic takes first."""
        return self._queues[topic][0]

    def take(self, topic: str) -> Event:
        """Remove and return the event that a topic takes first."""
        queue = self._queues[topic]
        event = queue.popleft()
        if not queue:
            del self._queues[topic]
        self._count -= 1
        self._size_bytes -= size_of(event)
        self.were_passed = self.were_passed and bool(self._queues)
        return event

    def offsets(self) -> dict[int, tuple[int, ...]]:
        """Return partition -> offsets of its held events, ascending."""
        found: dict[int, list[int]] = {}
        for queue in self._queues.values():
            for event in queue:
                found.setdefault(event.partition, []).append(event.offset)
        return {number: tuple(sorted(offsets)) for number, offsets in found.items()}


def size_of(event: Event) -> int:
    """Return how many bytes key and value have."""
    return len(event.key or b"") + len(event.value or b"")


def _packed(due: Iterable[int]) -> str:
    """Return ascending offsets as text: runs, each by its distance and length, compressed."""
    text = ",".join(f"{gap}" if length == 1 else f"{gap}+{length}" for gap, length in _runs(due))
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def _runs(due: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (distance from the end of the last run, length) of each run of offsets."""
    end, begin, length = 0, 0, 0
    for offset in due:
        if length and offset == begin + length:
            length += 1
            continue
        if length:
            yield begin - end, length
            end = begin + length
        begin, length = offset, 1
    if length:
        yield begin - end, length


def _unpacked(text: str) -> tuple[int, ...]:
    try:
        unpacker = zlib.decompressobj()
        runs = unpacker.decompress(b64decode(text, validate=True), _UNPACKED_MAX)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"damaged metadata of a relay: {error}") from error
    if not unpacker.eof:
        raise ValueError("damaged metadata of a relay: they do not end")
    due: list[int] = []
    at = 0
    for run in runs.decode().split(","):
        gap, _, length = run.partition("+")
        begin, at = at + int(gap), at + int(gap) + int(length or 1)
        if at - begin + len(due) > REREAD_MAX:
            raise ValueError("damaged metadata of a relay: too many offsets")
        due.extend(range(begin, at))
    return tuple(due)
