"""The manifest topic: a log that is searched backwards and appended to."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.threads import locked
from halfbridge.serde.manifest import BATCH_MANIFEST
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.serde.units import MS_PER_S
from halfbridge.spark_jobs.sink.clients import (
    KAFKA_TIMEOUT_S,
    LOG,
    alter_command,
    manifest_bytes_max,
    new_reader,
    new_topics,
)
from halfbridge.spark_jobs.sink.errors import (
    CommitInDoubtError,
    SearchLimitError,
    SendError,
    SinkSetupError,
    failing_as,
)
from halfbridge.spark_jobs.sink.manifest import Entry, Found, Search
from halfbridge.spark_jobs.sink.sender import Record, Sender

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Ports, StoredRecord, TopicPartition
    from halfbridge.serde.manifest import BatchManifest
    from halfbridge.spark_jobs.sink.options import SinkOptions

# Most records of one call of the client; the client's queue of 64 MiB bounds their bytes.
_READ_MAX = 10_000
_MESSAGE_BYTES_LEAST = 1_000  # the lowest value that the client accepts
_ROOM = 2  # times the size needed now, because the next batch may be larger
_FRAME_BYTES = 1_000  # the topic's limit applies to a batch of one record
_POLL_S = 0.5  # how late the end of a read is noticed
_RETRY_S = 0.1  # a broker that elects a leader answers again within seconds
# The default, which the query may override. A manifest is mostly ids, whose first halves repeat:
# one of 12,800 transactions shrinks from 518 KB to 235 KB, in 0.1 s.
_COMPRESSION = {"compression.type": "zstd"}


class ManifestLog:
    """The app's partition of the manifest topic. Thread-safe: one caller at a time.

    Raises:
        SinkSetupError: the topic is missing or has the wrong shape; an operator runs the command
            that the text names.
    """

    def __init__(self, options: SinkOptions, ports: Ports) -> None:
        self._options = options
        self._ports = ports
        self._now = ports.clock.monotonic
        self._timeout_s = options.commit_timeout_ms / MS_PER_S
        self._topic = options.names.manifest
        self._topics = new_topics(options, ports)
        self._bytes_max = manifest_bytes_max(self._topics, options)
        self._sender = self._new_sender()
        self._reader = new_reader(options, ports)
        self._lock = ports.run.waker()

    def find(self, app_id: str, batch_id: int, *, records_max: int | None = None) -> Found:
        """Return all records of a batch in the log, after reading at most `records_max`.

        Raises:
            CommitInDoubtError: brokers do not answer in time; repeat the call.
            SinkSetupError: the beginning of the log was deleted, perhaps with the answer; an
                operator corrects the retention.
            SearchLimitError: the answer lies further back than `records_max`; nobody acts, it
                passes with the next batch.
        """
        with locked(self._lock):
            return self._find(app_id, batch_id, beyond=-1, records_max=records_max)

    def append(self, manifest: BatchManifest) -> Found:
        """Append a record and return all records of its batch.

        Raises:
            CommitInDoubtError: no acknowledgement in time; the record may be stored
                nevertheless, and a new run finds it.
            SinkSetupError: the record is larger than the topic allows; an operator follows the
                text.
        """
        data = BATCH_MANIFEST.encode(manifest)
        key = manifest.app_id.encode()
        with locked(self._lock):
            self._make_room(manifest, len(data) + len(key) + _FRAME_BYTES)
            try:
                offset = self._append(key, data)
            except CommitInDoubtError:
                self._sender = self._new_sender()  # the old one was given up; a responder continues
                raise
            return self._find(manifest.app_id, manifest.batch_id, beyond=offset)

    def _make_room(self, manifest: BatchManifest, size_bytes: int) -> None:
        """Check that the topic accepts so large a record, by its present setting."""
        if size_bytes <= self._bytes_max:
            return
        bytes_max = manifest_bytes_max(self._topics, self._options)
        if bytes_max != self._bytes_max:
            self._bytes_max = bytes_max
            self._sender.give_up()
            self._sender = self._new_sender()
        if size_bytes > bytes_max:
            transactions = sum(len(each.transactions) for each in manifest.attempts)
            command = alter_command(self._options, "max.message.bytes", _ROOM * size_bytes)
            raise SinkSetupError(
                f"batch {manifest.batch_id} has {transactions} transactions, whose manifest of"
                f" {size_bytes} bytes is larger than max.message.bytes ({bytes_max}) of"
                f" {self._topic}. Run: {command} and start the query again. A batch that is planned"
                " in a checkpoint stays as it is; maxOffsetsPerTrigger and fewer tasks make later"
                " ones smaller",
                topics=(self._topic,),
            )

    def _new_sender(self) -> Sender:
        return Sender(
            self._options,
            self._ports,
            message_bytes_max=max(self._bytes_max, _MESSAGE_BYTES_LEAST),
            defaults=_COMPRESSION,
            changes={"linger.ms": 0},
        )

    def _append(self, key: bytes, data: bytes) -> int:
        partition = partition_of(key, MANIFEST_PARTITIONS)
        try:
            record = Record(data, key, partition)
            return self._sender.store(self._topic, [record], self._timeout_s)[partition]
        except SendError as error:
            raise CommitInDoubtError(
                f"the manifest was not acknowledged ({error}); start the query again"
            ) from error

    def _find(
        self, app_id: str, batch_id: int, *, beyond: int, records_max: int | None = None
    ) -> Found:
        """Search the log once it reaches beyond an offset (of the record just appended)."""
        key = app_id.encode()
        place = self._topic, partition_of(key, MANIFEST_PARTITIONS)
        start, end = self._ends(place, beyond)
        search = Search(batch_id, start=start, end=end)
        while (window := search.window()) is not None:
            if records_max is not None and end - window[0] > records_max:
                raise SearchLimitError(
                    f"the newest {records_max} records of partition {place[1]} of"
                    f" {self._topic} do not tell how far {app_id} has come",
                    app_id=app_id,
                )
            search.feed(self._read(place, *window, key, batch_id))
        found = search.result()
        if found.is_cut:
            raise SinkSetupError(
                f"{self._topic} begins at offset {start}: older manifests were deleted, and whether"
                f" batch {batch_id} of {app_id} was published is not known. Its retention must be"
                " -1; use an app.id that was never used, and whose partition of the topic"
                f" is not {place[1]}",
                topics=(self._topic,),
            )
        return found

    def _ends(self, place: TopicPartition, beyond: int) -> tuple[int, int]:
        """Ask brokers for a partition's start and high watermark, and return them.

        A new leader may report a high watermark that is too low. So the question is repeated until
        the log reaches beyond the offset, within the time-out of a commit.
        """
        deadline = self._now() + self._timeout_s
        while (left_s := deadline - self._now()) > 0:
            try:
                start, end = self._reader.ends(place, min(left_s, KAFKA_TIMEOUT_S))
            except KafkaFailure as failure:
                LOG.info("the end of %s could not be read; trying again: %s", self._topic, failure)
            else:
                if end > beyond:
                    return start, end
            self._poll(_RETRY_S)
        raise CommitInDoubtError(
            f"no broker reported the end of {self._topic} in {self._timeout_s:g} s; start the query"
            " again"
        )

    def _read(
        self, place: TopicPartition, low: int, high: int, key: bytes, batch_id: int
    ) -> list[Entry]:
        """Return the app's records in [low, high), without a time limit while records come.

        Records of other batches come without their attempts, which would not fit into memory for a
        busy app.
        """
        entries: list[Entry] = []
        deadline = self._now() + self._timeout_s
        try:
            with failing_as(CommitInDoubtError, "manifests cannot be read"):
                self._reader.read_from({place: low})
                while self._now() < deadline:
                    for record in self._batch():
                        offset = record.offset()
                        if record.error() is not None:
                            failure = failure_of(record.error())
                            # A new leader may report an earlier end for a moment.
                            if failure.code == Code.PARTITION_EOF and offset >= high:
                                return entries
                            LOG.info("manifests could not be fetched; trying again: %s", failure)
                            continue
                        deadline = self._now() + self._timeout_s
                        if offset >= high:
                            return entries
                        # A record without a value means nothing, in any version.
                        value = record.value()
                        if record.key() == key and value is not None:
                            entries.append(_entry(record, value, batch_id))
                        if offset == high - 1:
                            return entries
        finally:
            with suppress(KafkaFailure):  # the first error says more
                self._reader.read_from({})
        raise CommitInDoubtError(
            f"reading manifests [{low}, {high}) of {self._topic}, nothing came for"
            f" {self._timeout_s:g} s"
        )

    def _batch(self) -> list[StoredRecord]:
        """Wait for the first record, and return all that are there; `take` alone does not wait."""
        first = self._reader.poll(_POLL_S)
        found = [] if first is None else [first, *self._reader.take(_READ_MAX - 1)]
        return cast("list[StoredRecord]", found)  # of other errors no place is asked

    def _poll(self, seconds: float) -> None:
        with failing_as(CommitInDoubtError, "manifests cannot be read"):
            self._reader.poll(seconds)


def _entry(record: StoredRecord, value: bytes, batch_id: int) -> Entry:
    manifest = BATCH_MANIFEST.decode_head(value)
    if manifest.batch_id == batch_id:
        manifest = BATCH_MANIFEST.decode(value)
    return Entry(record.offset(), record.timestamp()[1], manifest)
