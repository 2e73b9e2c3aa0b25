"""The job itself: one streaming query from real topics to a sink, to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.spark_jobs.checkpoints import Checkpoint
from halfbridge.spark_jobs.ingest.rows import table_rows
from halfbridge.spark_jobs.ingest.sinks import make_sink
from halfbridge.spark_jobs.io import ISOLATION, stream_topics
from halfbridge.spark_jobs.options import AVAILABLE_NOW, Trigger
from halfbridge.spark_jobs.positions import EARLIEST, Position
from halfbridge.spark_jobs.progress import OBSERVED, run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from halfbridge.spark_jobs.cluster import Brokers
    from halfbridge.spark_jobs.io import Topics
    from halfbridge.spark_jobs.progress import Totals
    from halfbridge.spark_jobs.schemas import WriterSchema

JOB = "ingest"
# Raised when a checkpoint of the version before must not be continued.
JOB_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What is ingested, and where to.

    Attributes:
        topics: Real topics.
        bootstrap_servers: `host:port`, separated by commas.
        output: Absolute path or URI of the table.
        checkpoint: Absolute path or URI of the progress.
        kafka: Consumer properties by their Kafka names.
        format: One of sinks.FORMATS.
        app_id: Under which name a Delta table knows this job; empty: made of the topics.
        schemas: Schemas of the values; none: values are not looked into.
        start: Where a new checkpoint begins.
        max_offsets: Offsets a batch takes at most; None: all there are.
        trigger: When to look for new rows.
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

    @property
    def name(self) -> str:
        """The application's id, which a Delta table keeps."""
        return self.app_id or f"halfbridge-ingest {self.topics}"

    def identity(self, cluster_id: str) -> dict[str, Any]:
        """Return what job.json says: with any of it changed, rows would be lost or repeated.

        Schemas are not part of it: new ones come with time. Neither are the servers, whose names
        change while the cluster stays.
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
    """Run `job` until its trigger ends, or a signal does.

    Args:
        spark: A session with the Kafka connector.
        job: What to ingest.
        cluster: The same cluster.
        show: Takes a line about each batch.

    Raises:
        JobError: checkpoint and output do not belong to this job, or not together; the user must
            act.
        PySparkException: Spark cannot do it.
        ValueError: `kafka` sets what makes the read right; the caller's mistake.
    """
    sink = make_sink(spark, job.format, job.output, job.name, show)
    checkpoint = Checkpoint(spark, job.checkpoint)
    checkpoint.claim(job.identity(cluster.cluster_id()))
    sink.check(checkpoint)
    records = stream_topics(
        spark,
        job.topics,
        bootstrap_servers=job.bootstrap_servers,
        kafka=job.kafka,
        start=job.start,
        max_offsets=job.max_offsets,
    )
    # Counted on the way: Spark's own count is of what was read, which a batch that is run again
    # reads again.
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
    return run_to_end(writer.start, show, not_added=sink.not_added)
