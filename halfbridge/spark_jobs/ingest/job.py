"""Runs an ingestion: one streaming query from real topics to a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.spark_jobs.ingest.rows import table_rows
from halfbridge.spark_jobs.ingest.sinks import make_sink
from halfbridge.spark_jobs.jobs.options import AVAILABLE_NOW, Trigger
from halfbridge.spark_jobs.jobs.progress import OBSERVED, run_to_end
from halfbridge.spark_jobs.reading.positions import EARLIEST, Position
from halfbridge.spark_jobs.reading.topics import ISOLATION, stream_topics
from halfbridge.spark_jobs.tables.checkpoints import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from halfbridge.spark_jobs.jobs.progress import Totals
    from halfbridge.spark_jobs.reading.cluster import Brokers
    from halfbridge.spark_jobs.reading.schemas import WriterSchema
    from halfbridge.spark_jobs.reading.topics import Topics

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
    """What an ingestion reads, and where it writes to.

    Attributes:
        topics: Real topics.
        bootstrap_servers: `host:port`, separated by commas.
        output: Absolute path or URI of the table.
        checkpoint: Absolute path or URI of the progress.
        kafka: Consumer properties, with the names of the Java client.
        format: One of sinks.FORMATS.
        app_id: Name of this job in a Delta table; empty: derived from the topics.
        schemas: Schemas of the values; empty: values are not decoded.
        start: Position where a new checkpoint begins.
        max_offsets: Most offsets in a batch; None: no limit.
        trigger: When to look for new rows.
        accept_deleted: Topics whose offsets are forgotten if they were deleted since the last run.
    """

    topics: Topics
    bootstrap_servers: str
    output: str
    checkpoint: str
    kafka: Mapping[str, str]
    format: str = "parquet"
    app_id: str = ""
    schemas: tuple[WriterSchema, ...] = ()
    start: Position = EARLIEST
    max_offsets: int | None = None
    trigger: Trigger = AVAILABLE_NOW
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
    """Run `job` until its trigger ends or a signal stops it.

    Args:
        spark: A session with the Kafka connector.
        job: What to ingest.
        cluster: The cluster of `job`.
        show: Is called with a line about each batch.

    Raises:
        JobError: Checkpoint and output do not belong to this job, or not to each other; or a
            topic of the checkpoint was deleted. The user must act.
        PySparkException: Spark failed.
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
