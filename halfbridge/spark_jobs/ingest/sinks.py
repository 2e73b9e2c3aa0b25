"""The outputs of an ingestion, and how each writes every batch once.

Spark stores the offsets of a batch before it runs the batch, and a commit after the batch is done.
If Spark is killed in between, it runs the batch again under the same number. So a sink that
remembers the numbers of its batches writes each batch once. Spark's file sink keeps them in
`_spark_metadata`, a Delta table in the application's version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as F

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.reading.schemas import with_payload
from halfbridge.spark_jobs.reading.wire import with_identity
from halfbridge.spark_jobs.tables.delta import DELTA_LOG, DeltaWriter, is_delta
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from halfbridge.spark_jobs.reading.schemas import WriterSchema
    from halfbridge.spark_jobs.tables.checkpoints import Checkpoint

FORMATS = ("parquet", "delta")
_FILE_LOG = "_spark_metadata"
# INT96, Spark's default for timestamps, is deprecated, and some readers misread it.
_PARQUET_TIMES = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
# A task that writes at most this many partitions keeps one file open for each, and does not sort
# its rows. A batch seldom has more than 4 partitions, and each open file takes memory.
_OPEN_FILES = ("spark.sql.maxConcurrentOutputFileWriters", "4")
# Parquet collects a dictionary for each column before it finds that the dictionary is useless. The
# values of these columns are unique, or almost.
_NO_DICTIONARY = tuple(
    (f"parquet.enable.dictionary#{column}", "false")
    for column in ("offset", "transaction_id", "headers.list.element.value")
)


class Sink(Protocol):
    """An output of the job."""

    # Numbers of the batches of this run that were not added, because the output had them already.
    not_added: set[int]

    def newest(self) -> int | None:
        """Return the number of the newest batch that the output has; None: it has none."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that checkpoint and output belong together; JobError if one was replaced."""

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """Return a writer that puts each batch of `rows` into the output once."""


def make_sink(
    spark: SparkSession, kind: str, output: str, app_id: str, show: Callable[[str], None]
) -> Sink:
    """Return the sink for one of FORMATS, and set the session's options for its files.

    `app_id` is the name of the job in a Delta table; `show` is called with a line about a batch
    that is not added.
    """
    for name, value in (_PARQUET_TIMES, _OPEN_FILES, *_NO_DICTIONARY):
        spark.conf.set(name, value)
    return _Delta(spark, output, app_id, show) if kind == "delta" else _Parquet(spark, output)


class _Parquet:
    """Spark's own file sink. Spark's readers of the directory see whole batches only."""

    def __init__(self, spark: SparkSession, output: str) -> None:
        self.not_added: set[int] = set()  # Spark's sink does not report them
        self._output = output
        self._storage = Storage(spark)

    def newest(self) -> int | None:
        batches = [
            int(number)
            for name in self._storage.names(join(self._output, _FILE_LOG))
            if (number := name.partition(".")[0]).isdigit()
        ]
        return max(batches, default=None)

    def check(self, checkpoint: Checkpoint) -> None:
        """Compare the batch numbers of both: Spark skips a batch whose number the output has."""
        newest = self.newest()
        if checkpoint.is_new and newest is None:
            _refuse_strangers(self._storage, self._output, DELTA_LOG)
        if checkpoint.is_new and newest is not None:
            raise JobError(
                f"{self._output} has {newest + 1} batches and the checkpoint {checkpoint.path} is"
                " new: rows would be left out. Give the checkpoint that the output was made with,"
                " or an empty --output."
            )
        done = checkpoint.batches_done - 1
        if done >= 0 and (newest is None or newest < done):
            raise JobError(
                f"the checkpoint {checkpoint.path} has done batch {done}, which {self._output}"
                " does not have: the output was removed or replaced. Bring it back, or begin with"
                " a new --checkpoint and an empty --output."
            )

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        return (
            rows.writeStream.format("parquet")
            .partitionBy(*PARTITION_COLUMNS)
            .option("path", self._output)
        )


class _Delta:
    """A Delta table. Each batch is one transaction of the table, with the batch's number."""

    def __init__(
        self, spark: SparkSession, output: str, app_id: str, show: Callable[[str], None]
    ) -> None:
        self.not_added: set[int] = set()
        self._show = show
        self._spark = spark
        self._output = output
        self._app_id = app_id
        self._table = DeltaWriter(spark, output, PARTITION_COLUMNS)

    def newest(self) -> int | None:
        return self._table.version_of(self._app_id)

    def check(self, checkpoint: Checkpoint) -> None:
        if checkpoint.is_new and not is_delta(self._spark, self._output):
            _refuse_strangers(Storage(self._spark), self._output, _FILE_LOG)
        newest = self.newest()
        if checkpoint.is_new and newest is not None:
            raise JobError(
                f"the table {self._output} has batch {newest} of {self._app_id!r} and the"
                f" checkpoint {checkpoint.path} is new: rows would be left out. Give the"
                " checkpoint that the table was made with, or another --app-id to write all of it"
                " once more."
            )
        done = checkpoint.batches_done - 1
        if done >= 0 and (newest is None or newest < done):
            raise JobError(
                f"the checkpoint {checkpoint.path} has done batch {done}, which the table"
                f" {self._output} does not have: it was removed, replaced or restored. Bring it"
                " back, or begin with a new --checkpoint and another --output."
            )

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """Return a writer to the table. A batch without rows is a transaction of the table too."""

        def write(batch: DataFrame, number: int) -> None:
            if not self._table.append(batch, app_id=self._app_id, version=number):
                self.not_added.add(number)
                self._show(
                    f"batch {number}: the table has it already, from an earlier run or from a"
                    " concurrent one; nothing was added"
                )

        return rows.writeStream.foreachBatch(write)


def _refuse_strangers(storage: Storage, output: str, other_log: str) -> None:
    """Refuse a directory with other files: readers would see either those or the new rows."""
    hidden = ("_", ".")  # Spark's readers ignore names that begin so
    for name in storage.names(output):
        if not name.startswith(hidden) or name == other_log:
            raise JobError(
                f"{output} is not empty, and not a table of this job: it has {name}. Readers see"
                " either that or the new rows, not both. Give an empty --output."
            )


# Rows are partitioned by day, and within a day by quarantined, so that a query that skips the
# quarantined rows does not read them.
PARTITION_COLUMNS = ("publish_date", "quarantined")
_DAY_S = 86_400  # a publish date is a day of UTC, which has no leap seconds here


def table_rows(records: DataFrame, schemas: Sequence[WriterSchema] = ()) -> DataFrame:
    """Return the rows of the ingested table: one for each row of Spark's Kafka source.

    Returns:
        topic string, partition int, offset long, timestamp timestamp (publish time), timestamp_type
        int (0: the daemon's, 1: the broker's append time), key binary, value binary, headers
        array<struct<key string, value binary>>, transaction_id string (null: the record is of
        another producer), born_timestamp timestamp (null: none), with `schemas` also schema_name
        string and payload struct, then quarantine_reason string (null: not quarantined),
        publish_date date (in UTC), quarantined boolean.
    """
    checked = with_payload(records, schemas) if schemas else records
    reason = F.col("quarantine_reason") if schemas else F.lit(None).cast("string")
    decoded = ("schema_name", "payload") if schemas else ()
    return with_identity(checked).select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        "transaction_id",
        "born_timestamp",
        *decoded,
        reason.alias("quarantine_reason"),
        _publish_date().alias("publish_date"),
        reason.isNotNull().alias("quarantined"),
    )


def _publish_date() -> Column:
    """Return the day in UTC, whatever the session's time zone: a rerun must find the same day."""
    return F.date_from_unix_date(F.floor(F.unix_seconds("timestamp") / F.lit(_DAY_S)).cast("int"))
