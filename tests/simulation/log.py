"""A model of Kafka's partitioned log: what a partition keeps, and what a reader is shown.

Records of a kafka_txn become visible, or never do, when its marker arrives in their partition; the
marker takes an offset of its own. `read_committed` stops at the last stable offset (LSO), the
first record of the oldest kafka_txn whose marker has not arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfbridge.serde.headers import Headers

LOG_APPEND_TIME = 2  # as the client's TIMESTAMP_LOG_APPEND_TIME


class OutOfRangeError(Exception):
    """A reader asked for an offset that was deleted or never was (`auto.offset.reset=error`)."""


class Fate:
    """What becomes of one kafka_txn's records in one partition: open until the marker comes."""

    __slots__ = ("first", "is_aborted")

    def __init__(self, first: int) -> None:
        self.first = first
        self.is_aborted = False


class Record:
    """A stored record, in the words of the client's `Message`."""

    __slots__ = ("_append_ms", "_headers", "_key", "_offset", "_value", "fate", "partition_of")

    def __init__(  # noqa: PLR0917 (one of these is made for every record)
        self,
        partition_of: Partition,
        offset: int,
        append_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        fate: Fate | None,
    ) -> None:
        self.partition_of = partition_of
        self._offset = offset
        self._append_ms = append_ms
        self._key = key
        self._value = value
        self._headers = headers
        self.fate = fate

    def topic(self) -> str:
        """Return the topic."""
        return self.partition_of.topic

    def partition(self) -> int:
        """Return the partition's number."""
        return self.partition_of.number

    def offset(self) -> int:
        """Return the offset."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of timestamp and the broker's append time."""
        return LOG_APPEND_TIME, self._append_ms

    def key(self) -> bytes | None:
        """Return the key."""
        return self._key

    def value(self) -> bytes | None:
        """Return the value."""
        return self._value

    def headers(self) -> Headers | None:
        """Return the headers; None without any."""
        return self._headers

    def error(self) -> None:
        """Return None: this is a record."""

    def __len__(self) -> int:
        return len(self._value or b"")


class Partition:
    """One partition.

    Attributes:
        slots: Offset -> record; None where a marker stands. Deleted ones stay for the judge.
        start: Log start: what is below cannot be read any more.
        skew_ms: How far the clock of this partition's leader is off.
    """

    __slots__ = ("number", "open", "skew_ms", "slots", "start", "topic")

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.slots: list[Record | None] = []
        self.open: list[Fate] = []
        self.start = 0
        self.skew_ms = 0

    @property
    def end(self) -> int:
        """The high watermark: what ListOffsets says, read_uncommitted."""
        return len(self.slots)

    @property
    def lso(self) -> int:
        """Up to where read_committed readers come."""
        return self.open[0].first if self.open else len(self.slots)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        now_ms: int,
        fate: Fate | None = None,
    ) -> int:
        """Store a record and return its offset."""
        offset = len(self.slots)
        self.slots.append(
            Record(self, offset, now_ms + self.skew_ms, key, value, headers or None, fate)
        )
        return offset

    def begin(self) -> Fate:
        """Take that a kafka_txn's first record comes next."""
        fate = Fate(len(self.slots))
        self.open.append(fate)
        return fate

    def mark(self, fate: Fate | None, *, is_aborted: bool) -> None:
        """Take a kafka_txn's marker; it comes also where none of its records did."""
        if fate is not None:
            fate.is_aborted = is_aborted
            self.open.remove(fate)
        self.slots.append(None)

    def read(
        self, position: int, count: int, *, is_committed: bool = True
    ) -> tuple[list[Record], int]:
        """Return at most `count` records from `position` on, and where to go on.

        Raises:
            OutOfRangeError: `position` was deleted, or never was.
        """
        slots = self.slots
        if not self.start <= position <= len(slots):
            raise OutOfRangeError(f"{self.topic}[{self.number}]@{position}")
        end = self.lso if is_committed else len(slots)
        found: list[Record] = []
        while position < end:
            record = slots[position]
            if record is not None:
                fate = record.fate
                if fate is None or not (is_committed and fate.is_aborted):
                    if len(found) == count:
                        break
                    found.append(record)
            position += 1
        return found, position

    def delete_before(self, offset: int) -> None:
        """Delete what is below `offset` (DeleteRecords, retention); no LSO is looked at."""
        self.start = max(self.start, min(offset, len(self.slots)))
