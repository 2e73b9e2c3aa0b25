"""Ingests real topics: one streaming query to a table of raw rows, each record exactly once.

Spark stores the offsets of a batch before it runs the batch, and a commit after the batch is done.
If Spark is killed in between, it runs the batch again under the same number. So a sink that
remembers the numbers of its batches writes each batch once. Spark's file sink keeps them in
`_spark_metadata`, a Delta table in the application's version, an Iceberg table in its snapshots.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import click
from pyspark.sql import functions as F

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.jobs.options import (
    AVAILABLE_NOW,
    EXIT_DONE,
    JobCommand,
    Trigger,
    checkpoint_option,
    common_options,
    max_offsets_option,
    metrics_port_option,
    report_option,
    topics_option,
    trigger_option,
    write_report,
)
from halfbridge.spark_jobs.jobs.progress import OBSERVED, metrics_served, run_to_end
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.offsets import EARLIEST, Position, from_option
from halfbridge.spark_jobs.reading.schemas import load_schema, with_payload
from halfbridge.spark_jobs.reading.topics import ISOLATION, Topics, source_options, stream_topics
from halfbridge.spark_jobs.reading.wire import with_identity
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.tables.catalogs import DeltaCatalogTable, IcebergTable
from halfbridge.spark_jobs.tables.checkpoints import Checkpoint
from halfbridge.spark_jobs.tables.delta import DELTA_LOG
from halfbridge.spark_jobs.tables.storage import Storage, absolute, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from typing_extensions import Unpack

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.spark_jobs.jobs.progress import Totals
    from halfbridge.spark_jobs.reading.cluster import Brokers
    from halfbridge.spark_jobs.reading.schemas import WriterSchema
    from halfbridge.spark_jobs.tables.batches import BatchTable

FORMATS = ("parquet", "delta")  # of a directory; the first one is the default
TABLE_FORMATS = ("iceberg", "delta")  # of a table of a catalog; likewise
# Columns by whose day an Iceberg table may be partitioned.
DAYS_OF = ("timestamp", "born_timestamp")


def _schemas(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> tuple[WriterSchema, ...]:
    try:
        return tuple(load_schema(each) for each in given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


class _Given(TypedDict):
    """The values of the command's options."""

    bootstrap_servers: str
    kafka: dict[str, str]
    spark_options: dict[str, str]
    as_json: bool
    topics: tuple[str, ...]
    topic_pattern: str
    output: str
    table: str
    checkpoint: str
    kind: str | None
    partition_by: str
    app_id: str
    schemas: tuple[WriterSchema, ...]
    start: Position
    accept_deleted: tuple[str, ...]
    trigger: Trigger
    max_offsets: int | None
    metrics_port: int | None
    report: Path | None


@click.command(cls=JobCommand)
@common_options
@topics_option
@click.option(
    "--topic-pattern",
    default="",
    metavar="REGEX",
    help="All topics whose whole name matches, also topics created later. Instead of --topic.",
)
@click.option("--output", default="", metavar="PATH", help="Directory or URI of the table.")
@click.option(
    "--table",
    default="",
    metavar="CATALOG.SCHEMA.NAME",
    help="A table of a catalog of the session, made if need be. Instead of --output.",
)
@checkpoint_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(sorted({*FORMATS, *TABLE_FORMATS})),
    help="delta; or parquet, with --output; or iceberg, with --table."
    "  [default: parquet; iceberg with --table]",
)
@click.option(
    "--partition-by",
    type=click.Choice(DAYS_OF),
    default=DAYS_OF[0],
    show_default=True,
    help="The column by whose day a new Iceberg table is partitioned: publish time, or the time at"
    " which the transaction began. Other formats: publish_date.",
)
@click.option(
    "--app-id",
    default="",
    metavar="TEXT",
    help="Name of this job in a Delta or Iceberg table.  [default: derived from the topics]",
)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    callback=_schemas,
    metavar="FILE|ID=FILE",
    help="An Avro schema of the values: FILE for single-object encoding, ID=FILE for a Confluent"
    " schema id. May be repeated, with the newest schema last. Values with other schemas are"
    " quarantined.",
)
@from_option
@click.option(
    "--accept-deleted",
    "accept_deleted",
    multiple=True,
    metavar="TOPIC",
    help="If the topic was deleted since the last run, go on without it, or read it from its first"
    " offset if it was created again. Records that were not read are lost. May be repeated.",
)
@trigger_option
@max_offsets_option
@metrics_port_option
@report_option
def main(**values: Unpack[_Given]) -> int:
    """Write the records of real topics to a table of raw rows, each record exactly once.

    The table is partitioned by day (UTC) and by quarantined. It contains each committed
    record unchanged: key, value, headers, topic, partition, offset, timestamp. Further columns are
    transaction_id, born_timestamp and, with --schema, the decoded payload. Records that cannot be
    decoded are quarantined: they are in the table too, with the reason.

    A job that is started again with the same --checkpoint continues where it ended. --from has an
    effect only with a new checkpoint.
    """
    job = _job(values)
    say: Callable[[str], None] = lambda line: click.echo(line, err=True)  # noqa: E731  (of one type with others)
    with ExitStack() as stack:
        spark = stack.enter_context(
            spark_session("halfbridge-ingest", options=values["spark_options"])
        )
        cluster = stack.enter_context(connect(spark, job.bootstrap_servers, job.kafka))

        def stalls() -> dict[TopicPartition, int]:
            return cluster.stalls(job.topics)

        stack.enter_context(metrics_served(spark, values["metrics_port"], say=say, stalls=stalls))
        totals = ingest(spark, job, cluster, say)
        hidden = stalls()
        report = {
            **job.identity(cluster.cluster_id()),
            **totals.to_json(),
            "hidden": [
                {"topic": topic, "partition": partition, "offsets": offsets}
                for (topic, partition), offsets in sorted(hidden.items())
            ],
        }
    write_report(values["report"], report)
    click.echo(json.dumps(report) if values["as_json"] else _text(job, totals, hidden))
    return EXIT_DONE


def _job(values: _Given) -> Ingest:
    """Return the job that the command line describes. Errors are found before the JVM starts."""
    try:
        topics = Topics.of(*values["topics"], pattern=values["topic_pattern"])
        source_options(topics, bootstrap_servers=values["bootstrap_servers"], kafka=values["kafka"])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    output, table = values["output"], values["table"]
    if bool(output) == bool(table):
        raise click.UsageError("give either --output or --table")
    option, other = ("--table", "--output") if table else ("--output", "--table")
    formats = TABLE_FORMATS if table else FORMATS
    kind = values["kind"] or formats[0]
    if kind not in formats:
        raise click.UsageError(
            f"--format {kind} needs {other}; formats of {option} are {' and '.join(formats)}"
        )
    return Ingest(
        topics=topics,
        bootstrap_servers=values["bootstrap_servers"],
        output=absolute(output) if output else "",
        table=table,
        checkpoint=absolute(values["checkpoint"]),
        kafka=values["kafka"],
        format=kind,
        partition_by=values["partition_by"],
        app_id=values["app_id"],
        schemas=values["schemas"],
        start=values["start"],
        max_offsets=values["max_offsets"],
        trigger=values["trigger"],
        accept_deleted=values["accept_deleted"],
    )


def _text(job: Ingest, totals: Totals, hidden: dict[TopicPartition, int]) -> str:
    ended = "stopped" if totals.interrupted else "done"
    text = (
        f"{ended}: {totals.rows:,} rows of {job.topics} in {totals.batches} batches to"
        f" {job.output or job.table}, {totals.quarantined:,} of them quarantined;"
        f" {totals.seconds:.1f} s, {totals.rows_per_s:,.0f} rows/s"
    )
    if hidden:  # Spark itself does not report them
        where = ", ".join(f"{topic} {partition}" for topic, partition in sorted(hidden))
        text += (
            f"\nnot read: {sum(hidden.values()):,} offsets that open kafka_txns hide, in {where};"
            " the next run reads them if the kafka_txns have ended by then"
        )
    return text


JOB = "ingest"
# Increased whenever checkpoints of the version before must not be continued.
JOB_VERSION = 1
_REMEDY = (
    "With --accept-deleted TOPIC, once for each of them, the job continues: it reads a topic that"
    " was created again from its first offset{gone}. Records that it had not read are lost. Or"
    " begin with a new --checkpoint and an empty --output."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What an ingestion reads, and where it writes to."""

    topics: Topics
    bootstrap_servers: str
    output: str = ""  # absolute path or URI of the table; empty: it is one of a catalog
    table: str = ""  # its name with the catalog's, in place of `output`
    checkpoint: str
    kafka: Mapping[str, str]  # consumer properties, with the names of the Java client
    format: str = "parquet"  # one of FORMATS, or with `table` one of TABLE_FORMATS
    partition_by: str = DAYS_OF[0]
    app_id: str = ""  # name of this job in the table; empty: derived from the topics
    schemas: tuple[WriterSchema, ...] = ()
    start: Position = EARLIEST
    max_offsets: int | None = None
    trigger: Trigger = AVAILABLE_NOW
    # Topics whose offsets are forgotten if they were deleted since the last run.
    accept_deleted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of this job in a table that knows its batches by it."""
        return self.app_id or f"halfbridge-ingest {self.topics}"

    def identity(self, cluster_id: str) -> dict[str, object]:
        """Return the content of job.json: settings whose change would lose or repeat rows.

        Schemas are left out, because new schemas are added over time. The servers are left out,
        because their names may change while the cluster stays the same.
        """
        return {
            "job": JOB,
            "job_version": JOB_VERSION,
            "cluster_id": cluster_id,
            "topics": list(self.topics.names),
            "topic_pattern": self.topics.pattern,
            "isolation": ISOLATION,
            "app_id": self.name,
            "format": self.format,
            **({"table": self.table} if self.table else {"output": self.output}),
        }


def ingest(
    spark: SparkSession, job: Ingest, cluster: Brokers, show: Callable[[str], None]
) -> Totals:
    """Run `job` until its trigger ends or a signal stops it; `show` is called with a line a batch.

    Raises:
        JobError: Checkpoint and output do not belong to this job, or not to each other; or a topic
            of the checkpoint was deleted. The user must act.
        ValueError: `kafka` sets a property that the job itself must set; the caller's mistake.
    """
    sink = make_sink(spark, job, show)
    checkpoint = Checkpoint(spark, job.checkpoint)
    checkpoint.claim(job.identity(cluster.cluster_id()))
    if job.output and checkpoint.is_new:
        _refuse_strangers(Storage(spark), job)
    check_together(checkpoint, sink, job)
    # Spark reads none of the topics given by name while one of them is missing.
    gone = (
        ", and leaves out one that is gone" if job.topics.pattern else " (create it, if it is gone)"
    )

    def ids() -> dict[str, str]:
        return cluster.topic_ids(job.topics)

    def check_topics() -> None:
        checkpoint.check_topics(ids, remedy=_REMEDY.format(gone=gone))

    def starts(topic: str) -> dict[str, int]:
        found = cluster.starts(cluster.partitions([topic]))
        return {str(number): offset for (_, number), offset in found.items()}

    if job.accept_deleted:
        checkpoint.accept_deleted(
            job.accept_deleted, ids, starts, newest_written=sink.newest(), show=show
        )
    check_topics()
    records = stream_topics(
        spark,
        job.topics,
        bootstrap_servers=job.bootstrap_servers,
        kafka=job.kafka,
        start=job.start,
        max_offsets=job.max_offsets,
    )
    # Counted in the query: Spark's own count is of rows read, and a repeated batch reads its rows
    # again.
    rows = table_rows(records, job.schemas).observe(
        OBSERVED,
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("quarantined")).alias("quarantined"),
    )
    writer = job.trigger.set_in(
        sink.writer(rows).queryName(job.name).option("checkpointLocation", job.checkpoint)
    )
    return run_to_end(writer.start, show, check=check_topics, not_added=sink.not_added)


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


class Sink(ABC):
    """An output of the job, which has each batch once."""

    # How to continue without the checkpoint that the output was made with.
    afresh = "an empty --output"

    def __init__(self) -> None:
        # Numbers of the batches of this run that were not added, for the output had them already.
        self.not_added: set[int] = set()

    @abstractmethod
    def newest(self) -> int | None:
        """Return the number of the newest batch that the output knows of; None: of none."""

    def known_since_ms(self) -> int:
        """Return since when `newest` knows all batches, milliseconds since 1970; 0: always."""
        return 0

    @abstractmethod
    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """Return a writer that puts each batch of `rows` into the output once."""


def check_together(checkpoint: Checkpoint, sink: Sink, job: Ingest) -> None:
    """Check that checkpoint and output belong together: their batches have the same numbers.

    Raises JobError: one was replaced; the user must act.
    """
    output, newest, done = job.output or job.table, sink.newest(), checkpoint.batches_done - 1
    problem = ""
    if checkpoint.is_new and newest is not None:
        problem = (
            f"{output} has batch {newest} of {job.name!r} and the checkpoint {checkpoint.path} is"
            " new: rows would be left out. Give the checkpoint that the output was made with, or"
            f" {sink.afresh}."
        )
    elif newest is None and (since_ms := sink.known_since_ms()):
        # The table has forgotten its oldest commits: was the batch that is run again among them?
        if (batch := checkpoint.unfinished()) is not None and batch[1] < since_ms:
            problem = (
                f"whether {output} has batch {batch[0]} of {job.name!r} is not known: the snapshots"
                " of that time were expired. Look in it for a row at the offsets of"
                f" {checkpoint.path}/offsets/{batch[0]}; then begin with a new --checkpoint,"
                " another --app-id, and --from at the offsets that the table lacks."
            )
    elif done >= 0 and (newest is None or newest < done):
        problem = (
            f"the checkpoint {checkpoint.path} has done batch {done}, which {output} does not have:"
            " it was removed, replaced or restored. Bring it back, or begin with a new --checkpoint"
            " and another output."
        )
    if problem:
        raise JobError(problem)


def _refuse_strangers(storage: Storage, job: Ingest) -> None:
    """Refuse a directory with other files: readers would see either those or the new rows."""
    logs = (DELTA_LOG, _FILE_LOG) if job.format == "delta" else (_FILE_LOG, DELTA_LOG)
    names = storage.names(job.output)
    if logs[0] in names:
        return
    hidden = ("_", ".")  # Spark's readers ignore names that begin so
    for name in names:
        if not name.startswith(hidden) or name == logs[1]:
            raise JobError(
                f"{job.output} is not empty, and not a table of this job: it has {name}. Readers"
                " see either that or the new rows, not both. Give an empty --output."
            )


def make_sink(spark: SparkSession, job: Ingest, show: Callable[[str], None]) -> Sink:
    """Return the sink of a job, and set the session's options for its files.

    `show` is called with a line about a batch that is not added.
    """
    for name, value in (_PARQUET_TIMES, _OPEN_FILES, *_NO_DICTIONARY):
        spark.conf.set(name, value)
    if job.format == "parquet":
        return _Parquet(spark, job.output)
    return _Batches(_table(spark, job), job.name, show)


def _table(spark: SparkSession, job: Ingest) -> BatchTable:
    if job.format == "iceberg":
        days = f"days({job.partition_by})"
        return IcebergTable(spark, job.table, (days, PARTITION_COLUMNS[-1]))
    if job.table:
        return DeltaCatalogTable(spark, job.table, PARTITION_COLUMNS)
    from halfbridge.spark_jobs.tables.delta_rs import DeltaWriter  # noqa: PLC0415  # needs an extra

    return DeltaWriter(spark, job.output, PARTITION_COLUMNS)


class _Parquet(Sink):
    """Spark's own file sink. Spark's readers of the directory see whole batches only.

    It skips a batch whose number the output has, and does not report it.
    """

    def __init__(self, spark: SparkSession, output: str) -> None:
        super().__init__()
        self._output = output
        self._storage = Storage(spark)

    def newest(self) -> int | None:
        names = self._storage.names(join(self._output, _FILE_LOG))
        numbers = (name.partition(".")[0] for name in names)
        return max((int(number) for number in numbers if number.isdigit()), default=None)

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        return (
            rows.writeStream.format("parquet")
            .partitionBy(*PARTITION_COLUMNS)
            .option("path", self._output)
        )


class _Batches(Sink):
    """A table that keeps the numbers of its batches. Each batch is one commit of the table."""

    afresh = "another --app-id to write all of it once more"

    def __init__(self, table: BatchTable, app_id: str, show: Callable[[str], None]) -> None:
        super().__init__()
        self._table = table
        self._app_id = app_id
        self._show = show

    def newest(self) -> int | None:
        return self._table.version_of(self._app_id)

    def known_since_ms(self) -> int:
        return self._table.known_since_ms()

    def writer(self, rows: DataFrame) -> DataStreamWriter:
        """Return a writer to the table. A batch without rows is a commit of the table too."""

        def write(batch: DataFrame, number: int) -> None:
            if not self._table.append(batch, app_id=self._app_id, version=number):
                self.not_added.add(number)
                self._show(
                    f"batch {number}: the table has it already, from an earlier run or from a"
                    " concurrent one; nothing was added"
                )

        return rows.writeStream.foreachBatch(write)


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


if __name__ == "__main__":
    main()
