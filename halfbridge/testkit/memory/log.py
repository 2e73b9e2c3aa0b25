"""Topics: their settings, and the log of each partition, as stored and as readers see it.

The transaction marker in a partition decides whether a kafka_txn's records there become visible; it
takes an offset of its own. `read_committed` stops at the last stable offset (LSO), the first record
of the oldest kafka_txn whose marker has not been written.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.kafka.errors import Code, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.serde.headers import Headers

# The log's timestamp types, as confluent_kafka numbers them.
NO_TIMESTAMP = 0
CREATE_TIME = 1
LOG_APPEND_TIME = 2
# How many of a producer's last batches a broker remembers, to detect duplicates.
_BATCHES_REMEMBERED = 5
_OUT_OF_ORDER_SEQUENCE = 45  # Kafka's error code
_DUPLICATE_SEQUENCE = 46  # likewise


class OutOfRangeError(Exception):
    """A reader requested an offset that was deleted or never existed."""


class Row(NamedTuple):
    """A record on its way to a partition, with its CreateTime; without a value: a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int


class BatchNumber(NamedTuple):
    """Producer id and epoch of a batch, and its first sequence number in the partition."""

    producer_id: int
    epoch: int
    first: int


class PartitionTxn:
    """One kafka_txn's records in one partition: open until the marker is written."""

    __slots__ = ("first", "is_aborted", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.first = partition.end
        self.is_aborted = False


class Placed:
    """A record or error for a client, as `ports.Record`; this class has only a position.

    An error about a group has no topic, and one about a whole partition no offset.
    """

    __slots__ = ("_offset", "_partition", "_timestamp", "_topic")

    def __init__(self, topic: Any, partition: int, offset: Any) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._timestamp = (NO_TIMESTAMP, -1)

    def topic(self) -> Any:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> Any:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return None

    def headers(self) -> Headers | None:
        return None

    def error(self) -> KafkaFailure | None:
        return None

    def __len__(self) -> int:
        return len(self.value() or b"")


class Record(Placed):
    """A stored record."""

    __slots__ = ("_row", "txn")

    def __init__(
        self,
        partition: Partition,
        offset: int,
        row: Row,
        timestamp: tuple[int, int],
        txn: PartitionTxn | None,
    ) -> None:
        super().__init__(partition.topic, partition.number, offset)
        self._row = row
        self._timestamp = timestamp
        self.txn = txn

    def key(self) -> bytes | None:
        return self._row.key

    def value(self) -> bytes | None:
        return self._row.value

    def headers(self) -> Headers | None:
        return self._row.headers


class _Sender:
    """A partition's state of an idempotent producer."""

    __slots__ = ("batches", "epoch", "next")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next = 0
        self.batches: deque[tuple[int, int]] = deque(maxlen=_BATCHES_REMEMBERED)


class Partition:
    """One partition.

    Attributes:
        slots: Offset -> record; None for a marker. Deleted records stay, for judges of a history.
        start: Log start offset: records below it can no longer be read.
        skew_ms: How far the clock of this partition's leader is ahead of true time.
    """

    __slots__ = ("_senders", "number", "open", "skew_ms", "slots", "start", "topic")

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.slots: list[Record | None] = []
        self.open: list[PartitionTxn] = []
        self.start = 0
        self.skew_ms = 0
        self._senders: dict[int, _Sender] = {}

    @property
    def end(self) -> int:
        """The high watermark: the end offset for read_uncommitted."""
        return len(self.slots)

    @property
    def lso(self) -> int:
        """The last stable offset, where read_committed readers stop."""
        return self.open[0].first if self.open else len(self.slots)

    def repeated(self, sequence: BatchNumber) -> int | None:
        """Return the offset of a batch that is stored already; None: it is not.

        Raises:
            KafkaFailure: an old epoch, or a batch is missing before this one; the caller acts as on
                Kafka's error of this code.
        """
        producer_id, epoch, first = sequence
        sender = self._senders.get(producer_id)
        if sender is None:
            return None
        if epoch > sender.epoch:
            if first:
                raise KafkaFailure(_OUT_OF_ORDER_SEQUENCE, name="OUT_OF_ORDER_SEQUENCE_NUMBER")
            return None
        if epoch < sender.epoch:
            raise KafkaFailure(Code.INVALID_PRODUCER_EPOCH)
        if first == sender.next:
            return None
        if first > sender.next:
            raise KafkaFailure(_OUT_OF_ORDER_SEQUENCE, name="OUT_OF_ORDER_SEQUENCE_NUMBER")
        for known, offset in sender.batches:
            if known == first:
                return offset
        raise KafkaFailure(_DUPLICATE_SEQUENCE, name="DUPLICATE_SEQUENCE_NUMBER")

    def note_batch(self, sequence: BatchNumber, count: int, offset: int) -> None:
        sender = self._senders.get(sequence.producer_id)
        if sender is None or sender.epoch < sequence.epoch:
            sender = self._senders[sequence.producer_id] = _Sender(sequence.epoch)
        sender.next = sequence.first + count
        sender.batches.append((sequence.first, offset))

    def fence(self, producer_id: int, epoch: int) -> None:
        """Reject from now on batches of a producer with an epoch older than its marker's."""
        sender = self._senders.get(producer_id)
        if sender is None or sender.epoch < epoch:
            self._senders[producer_id] = _Sender(epoch)

    def append(
        self,
        rows: Sequence[Row],
        now_ms: int,
        *,
        is_stamped: bool = False,
        txn: PartitionTxn | None = None,
    ) -> int:
        """Store records and return the offset of the first one; `now_ms` is true time."""
        slots = self.slots
        first = offset = len(slots)
        stamp = (LOG_APPEND_TIME, now_ms + self.skew_ms)
        for row in rows:
            timestamp = stamp if is_stamped else (CREATE_TIME, row.timestamp_ms)
            slots.append(Record(self, offset, row, timestamp, txn))
            offset += 1
        return first

    def begin(self) -> PartitionTxn:
        """Open a kafka_txn at the current end of the log."""
        txn = PartitionTxn(self)
        self.open.append(txn)
        return txn

    def mark(self, txn: PartitionTxn | None, *, is_aborted: bool) -> None:
        """Append a kafka_txn's marker, even if the partition has none of its records."""
        if txn is not None:
            txn.is_aborted = is_aborted
            self.open.remove(txn)
        self.slots.append(None)

    def read(
        self, position: int, count: int, *, is_committed: bool = True
    ) -> tuple[list[Record], int]:
        """Return at most `count` records from `position` on, and the next position.

        Raises:
            OutOfRangeError: `position` was deleted or never existed; the reader resets or fails, by
                its settings.
        """
        slots = self.slots
        if not self.start <= position <= len(slots):
            raise OutOfRangeError(f"{self.topic}[{self.number}]@{position}")
        end = self.lso if is_committed else len(slots)
        found: list[Record] = []
        while position < end:
            record = slots[position]
            if record is not None:
                txn = record.txn
                if txn is None or not (is_committed and txn.is_aborted):
                    if len(found) == count:
                        break
                    found.append(record)
            position += 1
        return found, position

    def offset_at(self, at_ms: int, *, is_committed: bool) -> int | None:
        end = self.lso if is_committed else len(self.slots)
        for offset in range(self.start, end):
            record = self.slots[offset]
            if record is not None and record.timestamp()[1] >= at_ms:
                return offset
        return None

    def delete_before(self, offset: int) -> None:
        """Delete records below `offset` (DeleteRecords, retention), whatever the LSO."""
        self.start = max(self.start, min(offset, len(self.slots)))


# Kafka 4.2's defaults of the settings that halfbridge reads; an operator's command shows them.
DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
_NAME_CHARS_MAX = 249  # Kafka's own limit
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_NAME_CHARS_MAX}}}")
# Overhead in bytes, at most: of a batch, of a record, and of a header.
_BATCH_BYTES = 61
_RECORD_BYTES = 12
_HEADER_BYTES = 4
_INVALID_PARTITIONS = 37  # Kafka's error code
_INVALID_CONFIG = 40  # likewise


class Topic:
    """A topic; its `topic_id` is unique, also among topics created under the same name."""

    __slots__ = (
        "bytes_max",
        "is_stamped",
        "name",
        "partitions",
        "replicas",
        "settings",
        "topic_id",
    )

    def __init__(
        self, name: str, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> None:
        self.name = name
        self.replicas = replicas
        self.partitions = [Partition(name, number) for number in range(partitions)]
        self.settings: dict[str, str] = {}
        self.is_stamped = False
        self.bytes_max = 0
        self.topic_id = ""
        self.alter({**DEFAULTS, **settings})

    def alter(self, settings: Mapping[str, str]) -> None:
        self.settings.update(settings)
        self.is_stamped = self.settings["message.timestamp.type"] == "LogAppendTime"
        self.bytes_max = int(self.settings["max.message.bytes"])

    def grow(self, partitions: int) -> None:
        """Increase the number of partitions to `partitions`."""
        known = len(self.partitions)
        if partitions <= known:
            raise KafkaFailure(
                _INVALID_PARTITIONS,
                f"The topic {self.name} currently has {known} partition(s);"
                f" {partitions} would not be an increase.",
                name="INVALID_PARTITIONS",
            )
        self.partitions += [Partition(self.name, number) for number in range(known, partitions)]

    def check(self, rows: Sequence[Row], now_ms: int) -> None:
        """Validate a batch as a broker does.

        Raises KafkaFailure: none of it is stored; the caller acts by its code.
        """
        if batch_bytes(rows) > self.bytes_max:
            raise KafkaFailure(Code.MSG_SIZE_TOO_LARGE, "Broker: Message size too large")
        settings = self.settings
        if "compact" in settings["cleanup.policy"] and any(row.key is None for row in rows):
            raise KafkaFailure(Code.INVALID_RECORD, "Broker: Broker failed to validate record")
        if not self.is_stamped:
            first = now_ms - int(settings["message.timestamp.before.max.ms"])
            last = now_ms + int(settings["message.timestamp.after.max.ms"])
            if not all(first <= row.timestamp_ms <= last for row in rows):
                raise KafkaFailure(Code.INVALID_TIMESTAMP, "Broker: Invalid timestamp")

    def expire(self, now_ms: int) -> None:
        """Delete records older than retention.ms, up to the first younger record."""
        keeps_ms = int(self.settings["retention.ms"])
        if keeps_ms < 0 or "delete" not in self.settings["cleanup.policy"]:
            return
        for partition in self.partitions:
            start = partition.start
            while start < partition.lso:
                record = partition.slots[start]
                if record is not None and record.timestamp()[1] >= now_ms - keeps_ms:
                    break
                start += 1
            partition.delete_before(start)


def batch_bytes(rows: Sequence[Row]) -> int:
    """Return the approximate uncompressed size of a batch of these records, in bytes."""
    size = _BATCH_BYTES
    for key, value, headers, _ in rows:
        size += _RECORD_BYTES + len(key or b"") + len(value or b"")
        for name, text in headers or ():
            size += _HEADER_BYTES + len(name) + len(text or b"")
    return size


def check_name(name: str) -> None:
    """Reject an invalid topic name. KafkaFailure: the caller chooses another one."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise KafkaFailure(Code.TOPIC_EXCEPTION, "Broker: Invalid topic")


def check_settings(settings: Mapping[str, str]) -> None:
    """Reject an unknown setting or a malformed number. KafkaFailure: the caller corrects it."""
    for name, value in settings.items():
        if name not in DEFAULTS:
            raise KafkaFailure(
                _INVALID_CONFIG, f"Unknown topic config name: {name}", name="INVALID_CONFIG"
            )
        if DEFAULTS[name].lstrip("-").isdigit() and not value.lstrip("-").isdigit():
            raise KafkaFailure(
                _INVALID_CONFIG,
                f"Invalid value {value} for configuration {name}: Not a number",
                name="INVALID_CONFIG",
            )
