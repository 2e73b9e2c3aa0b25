"""The two ways in: `format("txn_half")`, whose classes Spark calls, and `publish`.

Spark 3.5 has no data sources in Python. There `publish`, called in `foreachBatch`, sends each
partition's rows in a `mapInArrow`, which returns the report of its task as its only row. The driver
collects the reports of the tasks that succeeded, and commits them by the same manifests.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark import TaskContext

from halfbridge.spark_jobs.capabilities import (
    STREAMS_ARROW,
    DataSource,
    DataSourceArrowWriter,
    StreamWriterBase,
    WriterCommitMessage,
)
from halfbridge.spark_jobs.sink.attempt import AttemptReport, write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.checkpoint import DriverAddress, address_of, plan_of
from halfbridge.spark_jobs.sink.clients import LOG, check_age, ensure_topics
from halfbridge.spark_jobs.sink.errors import SinkError, SinkOptionError
from halfbridge.spark_jobs.sink.options import FORMAT, SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import sink_process
from halfbridge.spark_jobs.sink.rows import batches_of, check_schema
from halfbridge.spark_jobs.sink.sender import read_signer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

    from halfbridge.spark_jobs.sink.process import SinkProcess

_BATCH_PROPERTY = "streaming.sql.batchId"
_QUERY_PROPERTY = "sql.streaming.queryId"
_REPORT = "report"


def publish(frame: DataFrame, batch_id: int, options: Mapping[str, str]) -> None:
    """Do what `write_batch` of the package says; raises as `write_batch`."""
    for name in options:
        if name.lower() == "batch.id":
            raise SinkOptionError("option batch.id is the argument batch_id of write_batch")
    checked = _checked_options(options, frame.schema)
    task = partial(_send_partition, checked, batch_id)
    rows = frame.mapInArrow(task, f"{_REPORT} binary").collect()
    reports: list[WriterCommitMessage | None] = [
        pickle.loads(row[0])  # noqa: S301  (made by this query's own tasks)
        for row in rows
    ]
    if any(each.query_id for each in _reports(reports)):
        StreamWriter(checked, address_of(frame.sparkSession)).commit(reports, batch_id)
    else:
        BatchWriter(replace(checked, batch_id=batch_id)).commit(reports)


def _send_partition(
    options: SinkOptions, batch_id: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Send a partition's rows as half messages (on an executor), and yield the report."""
    query_id = _local_property(_QUERY_PROPERTY)
    report = write_attempt(options, batch_id, iter(batches), query_id=query_id)
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], [_REPORT])


def _local_property(name: str) -> str:
    """Return a property of the task that runs in this process; empty: it is not set."""
    if (context := TaskContext.get()) is None:
        raise RuntimeError("no task of Spark's runs here")
    return context.getLocalProperty(name) or ""


def _checked_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Return the options of a query whose columns, key file and topics are checked."""
    options = parse_options(given)
    check_schema(schema, topic=options.topic)
    process = sink_process()
    # Not once, but for each batch: a key may end while the query runs.
    read_signer(options, options.producer_group, process.ports.clock.time_ms())
    _check_once(options, process)
    return options


class TxnHalf(DataSource):
    """Kafka, exactly once: rows become visible when their batch is committed, all or none."""

    # Address of the driver's JVM, for questions about checkpoints; set by `register`.
    driver: ClassVar[DriverAddress | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802  (Spark's signature)
        """Return the writer of micro-batches; Spark calls this many times in a query."""
        del overwrite  # output modes append and update both add records
        self._refuse("batch.id", "is of batch writes: a stream has Spark's own")
        return StreamWriter(_checked_options(self.options, schema), self.driver)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001  (Spark's signature)
        """Return the writer of a batch write.

        Raises SinkOptionError: the author of the query corrects the option.
        """
        if overwrite:
            raise SinkOptionError(f'format("{FORMAT}") only adds records: use mode("append")')
        self._refuse("first.batch", "is of streams: a write has its batch.id")
        self._refuse("on.mismatch", "is of streams: a write has no plan that tells it is the same")
        options = _checked_options(self.options, schema)
        if options.batch_id is None:
            raise SinkOptionError(
                f'a batch write with format("{FORMAT}") needs the option batch.id: a whole number'
                " that grows from write to write of the same app.id, and is the same when a write"
                " is repeated"
            )
        return BatchWriter(options)

    def _refuse(self, option: str, why: str) -> None:
        if self.options.get(option):
            raise SinkOptionError(f"option {option} {why}")


class _Writer:
    """A writer. Pickled to executors, which have a `sink_process()` of their own."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def committer(self) -> BatchCommitter:
        """Return what commits and aborts."""
        return BatchCommitter(self.options)


class StreamWriter(_Writer, StreamWriterBase):
    """Writes micro-batches. Executors do not get the driver's address, which gives access to it."""

    def __init__(self, options: SinkOptions, driver: DriverAddress | None = None) -> None:
        super().__init__(options)
        self.driver = driver

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "driver": None}

    def write(self, iterator: Iterator[pa.RecordBatch] | Iterator[Row]) -> AttemptReport:
        """Send a task's rows as half messages (on an executor)."""
        batches = iterator if STREAMS_ARROW else batches_of(iterator)
        return write_attempt(
            self.options,
            int(_local_property(_BATCH_PROPERTY)),
            batches,
            query_id=_local_property(_QUERY_PROPERTY),
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's signature)
        """Publish the batch, or find it published (on the driver)."""
        reports = _all_reports(messages, batchId)
        query_id = next((each.query_id for each in reports), "")
        plan = plan_of(query_id, batchId, address=self.driver, location=self.options.checkpoint)
        self.committer().commit(batchId, reports, plan)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's signature)
        """Roll the batch back, unless it is published already (on the driver)."""
        _abort(self.committer(), messages, batchId)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes one batch."""

    @property
    def batch_id(self) -> int:
        """The option batch.id; `TxnHalf.writer` has checked that it is set."""
        return self.options.batch_id or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> AttemptReport:
        """Send a task's rows as half messages (on an executor)."""
        return write_attempt(self.options, self.batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the batch unless it is published already (on the driver)."""
        self.committer().commit(self.batch_id, _all_reports(messages, self.batch_id))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll the batch back, unless it is published already (on the driver)."""
        _abort(self.committer(), messages, self.batch_id)


def _all_reports(messages: list[WriterCommitMessage | None], batch_id: int) -> list[AttemptReport]:
    """Return the reports of all tasks of the batch.

    A task without a report, or with one of another batch, is a bug in Spark: its rows would be left
    out.
    """
    reports = _reports(messages)
    others = {report.batch_id for report in reports} - {batch_id}
    if len(reports) < len(messages) or others:
        raise SinkError(
            f"Spark commits batch {batch_id} with {len(reports)} reports of {len(messages)} tasks"
            f"{f', some of them of batch {min(others)}' if others else ''}: nothing was published"
        )
    return reports


def _reports(messages: list[WriterCommitMessage | None]) -> list[AttemptReport]:
    return [message for message in messages if isinstance(message, AttemptReport)]


def _abort(
    committer: BatchCommitter, messages: list[WriterCommitMessage | None], batch_id: int
) -> None:
    try:
        committer.abort(batch_id, _reports(messages))
    except SinkError as error:  # not raised: Spark shows the error that made the query fail
        LOG.warning("abort of batch %d is left to the check: %s", batch_id, error)


def _check_once(options: SinkOptions, process: SinkProcess) -> None:
    key = (options.producer_group, options.age_ms_max, *options.client_key())
    if not process.checked.get(key):
        ensure_topics(options, process.ports)
        check_age(options, process.ports)
        process.checked.put(key, True)  # noqa: FBT003 (a mark)
