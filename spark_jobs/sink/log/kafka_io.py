"""The manifest topic as a log that is searched backwards and appended to."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from halfbridge.serde.manifest import BATCH_MANIFEST
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.spark_jobs.sink.clients.kafka_io import (
    LOG,
    admin_for,
    made,
    not_proven,
    producer_settings,
    reader_settings,
    text_of,
)
from halfbridge.spark_jobs.sink.cluster.kafka_io import (
    KAFKA_TIMEOUT_S,
    LOOK_AGAIN_S,
    MS_PER_S,
    altered,
    check_manifest_topic,
    ends_of,
)
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, SearchLimitError, SinkSetupError
from halfbridge.spark_jobs.sink.kept import CLIENTS_MAX, Kept
from halfbridge.spark_jobs.sink.manifest import Entry, Found, Search

if TYPE_CHECKING:
    from halfbridge.serde.records import BatchManifest
    from halfbridge.spark_jobs.sink.options import SinkOptions

_READ_MAX = 10_000
_MESSAGE_BYTES_LEAST = 1_000  # that the client can be told
_ROOM = 2  # times what is needed now: the next batch may be a little larger
_FRAME_BYTES = 1_000  # a record's limit is on the whole batch of one record
_POLL_S = 0.5
# Unless the query sets another one: a manifest is mostly ids, whose first half repeats. One of
# 12,800 transactions has 235 KB in place of 518 KB, in 0.1 s.
_COMPRESSION = "zstd"


class ManifestLog:
    """The app's partition of the manifest topic. Thread-safe: one caller at a time.

    Raises:
        SinkSetupError: the topic is missing or has the wrong shape; the text names the command.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._timeout_s = options.commit_timeout_ms / MS_PER_S
        self._topic = options.names.manifest
        self._bytes_max = check_manifest_topic(admin_for(options), options)
        self._producer = self._new_producer()
        self._consumer = made(Consumer, reader_settings(options))
        self._lock = Lock()

    def find(self, app_id: str, batch_id: int, *, records_max: int | None = None) -> Found:
        """Return all records of a batch that stand in the log now.

        Args:
            app_id: The app.
            batch_id: The batch.
            records_max: Records of all apps that are read at most; None: as many as it takes.

        Raises:
            CommitInDoubtError: the brokers do not answer in time; repeat it.
            SinkSetupError: the log has lost its beginning, and with it perhaps the answer.
            SearchLimitError: the answer stands further back than `records_max`.
        """
        with self._lock:
            return self._find(app_id, batch_id, beyond=-1, records_max=records_max)

    def append(self, manifest: BatchManifest) -> Found:
        """Append a record and return what stands in the log with it.

        Raises:
            CommitInDoubtError: no acknowledgement in time; it may stand all the same.
            SinkSetupError: the record is larger than the topic allows; the text says what to do.
        """
        data = BATCH_MANIFEST.encode(manifest)
        key = manifest.app_id.encode()
        with self._lock:
            self._make_room(manifest, len(data) + len(key) + _FRAME_BYTES)
            try:
                offset = self._append(key, data)
            except CommitInDoubtError:
                # It may still hold the record, or take no other: a responder has more to write.
                self._producer.purge()
                self._producer = self._new_producer()
                raise
            return self._find(manifest.app_id, manifest.batch_id, beyond=offset)

    def close(self) -> None:
        """Close the clients."""
        with self._lock:
            self._consumer.close()
            self._producer.flush(KAFKA_TIMEOUT_S)

    def _make_room(self, manifest: BatchManifest, size_bytes: int) -> None:
        """Find out whether the topic takes so large a record; it may have been told to meanwhile.

        Raises:
            SinkSetupError: it does not; the text says what to do.
        """
        if size_bytes <= self._bytes_max:
            return
        bytes_max = check_manifest_topic(admin_for(self._options), self._options)
        if bytes_max != self._bytes_max:
            self._bytes_max = bytes_max
            self._producer = self._new_producer()
        if size_bytes > bytes_max:
            transactions = sum(len(each.transactions) for each in manifest.attempts)
            command = altered(self._options, "max.message.bytes", _ROOM * size_bytes)
            raise SinkSetupError(
                f"batch {manifest.batch_id} has {transactions} transactions, whose manifest of"
                f" {size_bytes} bytes is larger than max.message.bytes ({bytes_max}) of"
                f" {self._topic}. Run: {command} and start the query again. A batch that is planned"
                " in a checkpoint stays as it is; maxOffsetsPerTrigger and fewer tasks make later"
                " ones smaller"
            )

    def _new_producer(self) -> Any:
        settings = producer_settings(
            self._options, message_bytes_max=max(self._bytes_max, _MESSAGE_BYTES_LEAST)
        )
        return made(Producer, {"compression.type": _COMPRESSION, **settings, "linger.ms": 0})

    def _append(self, key: bytes, data: bytes) -> int:
        told: list[tuple[Any, Any]] = []
        partition = partition_of(key, MANIFEST_PARTITIONS)
        try:
            self._producer.produce(
                self._topic,
                data,
                key,
                partition,
                on_delivery=lambda error, record: told.append((error, record)),
            )
            self._producer.flush(self._timeout_s)
        except (KafkaException, BufferError, SystemError) as error:
            raise CommitInDoubtError(f"the manifest was not written: {text_of(error)}") from error
        if not told:
            raise CommitInDoubtError(
                f"the manifest was not acknowledged in {self._timeout_s:g} s; start the query again"
            )
        refusal, record = told[0]
        refusal = refusal or not_proven(record)
        if refusal is not None:
            raise CommitInDoubtError(
                f"the manifest was not acknowledged ({text_of(refusal)}); start the query again"
            )
        return int(record.offset())

    def _find(
        self, app_id: str, batch_id: int, *, beyond: int, records_max: int | None = None
    ) -> Found:
        """Search a log that reaches beyond an offset (one that was just appended)."""
        key = app_id.encode()
        place = TopicPartition(self._topic, partition_of(key, MANIFEST_PARTITIONS))
        deadline = monotonic() + self._timeout_s
        start, end = ends_of(self._consumer, place, deadline)
        while end <= beyond:  # a new leader may not have heard yet how far the log is committed
            self._consumer.poll(LOOK_AGAIN_S)
            start, end = ends_of(self._consumer, place, deadline)
        search = Search(batch_id, start=start, end=end)
        while (window := search.window()) is not None:
            if records_max is not None and end - window[0] > records_max:
                raise SearchLimitError(
                    f"the newest {records_max} records of partition {place.partition} of"
                    f" {self._topic} do not tell how far {app_id} has come"
                )
            search.feed(self._read(place, *window, key, batch_id))
        found = search.result()
        if found.is_cut:
            raise SinkSetupError(
                f"{self._topic} begins at offset {start}: older manifests were deleted, and whether"
                f" batch {batch_id} of {app_id} was published cannot be told. Its retention must be"
                " -1; take an app.id that was never used, and is not kept in partition"
                f" {place.partition} of it as this one is"
            )
        return found

    def _read(
        self, place: TopicPartition, low: int, high: int, key: bytes, batch_id: int
    ) -> list[Entry]:
        """Return the app's records in [low, high), however long that takes while records come.

        Those of other batches are without their attempts: of a busy app, all of them would not fit
        into memory.
        """
        entries: list[Entry] = []
        deadline = monotonic() + self._timeout_s
        try:
            self._consumer.assign([TopicPartition(place.topic, place.partition, low)])
            while monotonic() < deadline:
                for record in self._batch():
                    if record.error() is not None:
                        # A leader that has just taken over may see an earlier end for a moment.
                        is_end = record.error().code() == KafkaError._PARTITION_EOF
                        if is_end and record.offset() >= high:
                            return entries
                        LOG.info("reading manifests: %s", record.error())
                        continue
                    deadline = monotonic() + self._timeout_s
                    if record.offset() >= high:
                        return entries
                    # A record without a value says nothing, in any version: all pass it over.
                    if record.key() == key and record.value() is not None:
                        entries.append(_entry(record, batch_id))
                    if record.offset() == high - 1:
                        return entries
        except KafkaException as error:
            raise CommitInDoubtError(f"manifests cannot be read: {text_of(error)}") from error
        finally:
            with suppress(KafkaException):  # what went wrong before says more
                self._consumer.unassign()
        raise CommitInDoubtError(
            f"reading manifests [{low}, {high}) of {place.topic}, nothing came for"
            f" {self._timeout_s:g} s"
        )

    def _batch(self) -> list[Any]:
        """Return what is there, once there is something; `consume` alone waits for all it may."""
        first = self._consumer.poll(_POLL_S)
        return [] if first is None else [first, *self._consumer.consume(_READ_MAX - 1, 0)]


_LOGS: Kept[ManifestLog] = Kept(CLIENTS_MAX)


def log_for(options: SinkOptions) -> ManifestLog:
    """Return this process's ManifestLog for the options.

    Raises: as ManifestLog.
    """
    key = (options.commit_timeout_ms, *options.client_key())
    return _LOGS.get(key) or _LOGS.put(key, ManifestLog(options))


def _entry(record: Any, batch_id: int) -> Entry:
    manifest = BATCH_MANIFEST.decode_head(record.value())
    if manifest.batch_id == batch_id:
        manifest = BATCH_MANIFEST.decode(record.value())
    return Entry(int(record.offset()), int(record.timestamp()[1]), manifest)
