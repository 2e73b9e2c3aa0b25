"""The command `ingest`: one streaming query from real topics to a sink."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as F

from halfbridge.spark_jobs.ingest.sinks import FORMATS, make_sink, table_rows
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
from halfbridge.spark_jobs.reading.schemas import load_schema
from halfbridge.spark_jobs.reading.topics import ISOLATION, Topics, source_options, stream_topics
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.tables.checkpoints import Checkpoint
from halfbridge.spark_jobs.tables.storage import absolute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.spark_jobs.jobs.progress import Totals
    from halfbridge.spark_jobs.reading.cluster import Brokers
    from halfbridge.spark_jobs.reading.schemas import WriterSchema


def _schemas(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> tuple[WriterSchema, ...]:
    try:
        return tuple(load_schema(each) for each in given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(cls=JobCommand)
@common_options
@topics_option
@click.option(
    "--topic-pattern",
    default="",
    metavar="REGEX",
    help="All topics whose whole name matches, also topics created later. Instead of --topic.",
)
@click.option("--output", required=True, metavar="PATH", help="Directory or URI of the table.")
@checkpoint_option
@click.option("--format", "kind", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option(
    "--app-id",
    default="",
    metavar="TEXT",
    help="Name of this job in a Delta table.  [default: derived from the topics]",
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
def main(**values: Any) -> int:
    """Write the records of real topics to a table of raw rows, each record exactly once.

    The table is partitioned by publish date (UTC) and by quarantined. It contains each committed
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


def _job(values: dict[str, Any]) -> Ingest:
    """Return the job that the command line describes. Errors are found before the JVM starts."""
    try:
        topics = Topics.of(*values["topics"], pattern=values["topic_pattern"])
        source_options(topics, bootstrap_servers=values["bootstrap_servers"], kafka=values["kafka"])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return Ingest(
        topics=topics,
        bootstrap_servers=values["bootstrap_servers"],
        output=absolute(values["output"]),
        checkpoint=absolute(values["checkpoint"]),
        kafka=values["kafka"],
        format=values["kind"],
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
        f" {job.output}, {totals.quarantined:,} of them quarantined;"
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
    "With --accept-deleted TOPIC, once for each of them, the job goes on: it reads a topic that was"
    " created again from its first offset{gone}. Records that it had not read are lost. Or begin"
    " with a new --checkpoint and an empty --output."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What an ingestion reads, and where it writes to."""

    topics: Topics
    bootstrap_servers: str
    output: str  # absolute path or URI of the table
    checkpoint: str
    kafka: Mapping[str, str]  # consumer properties, with the names of the Java client
    format: str = "parquet"  # one of sinks.FORMATS
    app_id: str = ""  # name of this job in a Delta table; empty: derived from the topics
    schemas: tuple[WriterSchema, ...] = ()
    start: Position = EARLIEST
    max_offsets: int | None = None
    trigger: Trigger = AVAILABLE_NOW
    # Topics whose offsets are forgotten if they were deleted since the last run.
    accept_deleted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of this job in a Delta table."""
        return self.app_id or f"halfbridge-ingest {self.topics}"

    def identity(self, cluster_id: str) -> dict[str, Any]:
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
            "output": self.output,
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
    sink = make_sink(spark, job.format, job.output, job.name, show)
    checkpoint = Checkpoint(spark, job.checkpoint)
    checkpoint.claim(job.identity(cluster.cluster_id()))
    sink.check(checkpoint)
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
    writer = (
        sink.writer(rows)
        .queryName(job.name)
        .option("checkpointLocation", job.checkpoint)
        .trigger(**job.trigger.arguments())
    )
    return run_to_end(writer.start, show, check=check_topics, not_added=sink.not_added)
