"""Runs a replay: sends one slice after the other, each as one batch of the sink."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.jobs.topic_ids import refuse_changed
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.positions import EARLIEST, LATEST, Position
from halfbridge.spark_jobs.reading.snapshot import Range
from halfbridge.spark_jobs.reading.topics import Topics, cluster_options, read_ranges, read_topics
from halfbridge.spark_jobs.replay.plan import Bounds, Place, ReplayPlan, make_plan, read_plan
from halfbridge.spark_jobs.replay.rows import COLUMNS, replayed, selected, within
from halfbridge.spark_jobs.sink import register
from halfbridge.spark_jobs.sink.options import FORMAT, SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import here
from halfbridge.spark_jobs.sink.topics import ensure_topics
from halfbridge.spark_jobs.tables.checkpoints import check_same, count_done
from halfbridge.spark_jobs.tables.read import read_table
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

PLAN_FILE = "plan.json"
_DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay sends, and where to.

    Attributes:
        replay_id: Name of the replay; a name can be used once.
        bootstrap_servers: `host:port`, separated by commas.
        to_topic: Real topic that the rows are sent to.
        table: Absolute path or URI of a table to read; empty: `from_topic` is read.
        from_topic: Topic to read.
        start: Position in `from_topic` where reading begins.
        end: Position in `from_topic` where reading ends.
        where: SQL condition on the source's columns; empty: all rows.
        checkpoint: Absolute path or URI of the progress.
        prefix: Prefix of the installation's topics.
        keep_partition: Whether each row keeps the number of its source partition.
        rows_per_s: Most rows a second; None: no limit.
        slice_rows: Approximate number of rows in a slice.
        kafka: Properties of Spark's consumer, with the names of the Java client.
        sink_kafka: Properties of the sink's producer, with the names of librdkafka.
        key_file: The sink's option key.file; empty: the rows are not signed.
    """

    replay_id: str
    bootstrap_servers: str
    to_topic: str
    table: str = ""
    from_topic: str = ""
    start: Position = EARLIEST
    end: Position = LATEST
    where: str = ""
    checkpoint: str = ""
    prefix: str = ""
    keep_partition: bool = False
    rows_per_s: int | None = None
    slice_rows: int = 100_000
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    sink_kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_file: str = ""

    @property
    def app_id(self) -> str:
        """The sink's app.id."""
        return f"replay-{self.replay_id}"

    def identity(self) -> dict[str, Any]:
        """Return the settings that must not change when the replay is resumed."""
        return {
            "replay_id": self.replay_id,
            "to_topic": self.to_topic,
            "table": self.table,
            "from_topic": self.from_topic,
            "where": self.where,
            "prefix": self.prefix,
            "keep_partition": self.keep_partition,
        }

    def sink_options(self) -> dict[str, str]:
        """Return the options of the sink without batch.id."""
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "halfbridge.prefix": self.prefix,
            "app.id": self.app_id,
            "key.file": self.key_file,
            **{f"kafka.{name}": value for name, value in self.sink_kafka.items()},
        }

    def parsed(self) -> SinkOptions:
        """Return the sink's options, parsed.

        Raises:
            SinkOptionError: An option is wrong.
        """
        return parse_options(self.sink_options())


@dataclass(slots=True)
class Sent:
    """What one run of a replay has sent.

    Attributes:
        plan: The plan of the whole replay.
        done_before: Slices that earlier runs have sent.
        slices: Slices that this run has sent.
        rows: Rows that this run has sent.
        seconds: Duration of this run.
    """

    plan: ReplayPlan
    done_before: int = 0
    slices: int = 0
    rows: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the values under the names that reports use."""
        return {
            **self.plan.identity,
            "planned_rows": self.plan.rows,
            "planned_slices": self.plan.slices,
            "done_before": self.done_before,
            "slices": self.slices,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
        }


def plan_replay(spark: SparkSession, job: Replay) -> ReplayPlan:
    """Return what a new replay would send; writes nothing.

    Raises:
        JobError: The source cannot be replayed; the user must act.
        PySparkException: Spark cannot read the source.
    """
    # Asked first: of a topic that is created again now, the id does not fit the offsets, which is
    # an error when the replay is resumed.
    topic_id = _topic_ids(spark, job).get(job.from_topic, "")
    rows = _source(spark, job, None)
    counted = rows.groupBy("topic", "partition").agg(
        F.min("offset").alias("low"),
        F.max("offset").alias("high"),
        F.count(F.lit(1)).alias("rows"),
    )
    places = [
        Place(row["topic"], row["partition"], row["low"], row["high"] + 1, row["rows"])
        for row in counted.collect()
    ]
    return make_plan(job.identity(), places, slice_rows=job.slice_rows, topic_id=topic_id)


def preview(spark: SparkSession, job: Replay) -> Sent:
    """Return the plan that `replay` would send, and how much of it is done; writes nothing.

    Raises:
        JobError, PySparkException: as `replay`.
    """
    storage = Storage(spark)
    plan = _kept_plan(storage, job) if job.checkpoint else None
    if plan is None:
        return Sent(plan_replay(spark, job))
    return Sent(plan, count_done(storage, join(job.checkpoint, _DONE)))


def replay(spark: SparkSession, job: Replay, show: Callable[[str], None]) -> Sent:
    """Send the slices of `job` that are not done, and return what this run has sent.

    Raises:
        JobError: The replay.id was used before, the checkpoint belongs to another replay, or the
            topic to read was deleted or created again; the user must act.
        SinkError: The installation is not set up correctly; the text says what to do.
        PySparkException: Spark or the sink failed.
    """
    register(spark)
    storage = Storage(spark)
    plan = _kept_plan(storage, job)
    if plan is None:
        _refuse_replayed(job)
        plan = plan_replay(spark, job)
        storage.create(join(job.checkpoint, PLAN_FILE), plan.to_json())
    done = count_done(storage, join(job.checkpoint, _DONE))
    if plan.slices and done == plan.slices:
        raise JobError(
            f"replay {job.replay_id} is complete: {plan.rows} rows were sent to {job.to_topic}."
            " To send them again, choose another --replay-id"
        )
    _refuse_changed_topic(spark, job, plan)
    if done:
        show(f"resuming after {done} of {plan.slices} slices")
    sent = Sent(plan, done)
    began_s = time.monotonic()
    for number in range(done, plan.slices):
        slice_began_s = time.monotonic()
        rows = _send(spark, job, plan, number)
        storage.create(join(job.checkpoint, _DONE, str(number)), f"{rows}\n")
        sent.slices += 1
        sent.rows += rows
        show(f"slice {number + 1} of {plan.slices}: {rows:,} rows; {sent.rows:,} in this run")
        if job.rows_per_s is not None and number + 1 < plan.slices:
            took_s = time.monotonic() - slice_began_s
            threading.Event().wait(max(0.0, rows / job.rows_per_s - took_s))
    sent.seconds = time.monotonic() - began_s
    return sent


def _send(spark: SparkSession, job: Replay, plan: ReplayPlan, number: int) -> int:
    rows = replayed(
        _source(spark, job, plan.bounds(number)),
        replay_id=job.replay_id,
        to_topic=job.to_topic,
        keep_partition=job.keep_partition,
    )
    options = {**job.sink_options(), "batch.id": str(number)}
    rows.write.format(FORMAT).mode("append").options(**options).save()
    winner = here().log(job.parsed()).find(job.app_id, number).standing.winner
    return winner.manifest.row_count if winner is not None else 0


def _source(spark: SparkSession, job: Replay, bounds: Bounds | None) -> DataFrame:
    """Return the rows of the slice with `bounds`; None: of all slices."""
    if job.table:
        rows = read_table(spark, job.table)
        if rows is None:
            raise JobError(f"{job.table} has no rows yet")
        if missing := [name for name in COLUMNS if name not in rows.columns]:
            raise JobError(
                f"{job.table} has no column {', '.join(missing)}: a replay needs"
                f" {', '.join(COLUMNS)}, as the table of `halfbridge spark ingest` has them"
            )
    elif bounds is None:
        rows = read_topics(
            spark,
            Topics.of(job.from_topic),
            bootstrap_servers=job.bootstrap_servers,
            kafka=job.kafka,
            start=job.start,
            end=job.end,
        )
    else:
        ranges = {number: Range(*limits) for (_, number), limits in bounds.items()}
        rows = read_ranges(
            spark,
            {job.from_topic: ranges},
            cluster_options(job.bootstrap_servers, job.kafka),
        )
    wanted = selected(rows, where=job.where, replay_id=job.replay_id)
    return wanted if bounds is None else within(wanted, bounds)


def _topic_ids(spark: SparkSession, job: Replay) -> dict[str, str]:
    if job.table:
        return {}
    with connect(spark, job.bootstrap_servers, job.kafka) as cluster:
        return cluster.topic_ids(Topics.of(job.from_topic))


def _refuse_changed_topic(spark: SparkSession, job: Replay, plan: ReplayPlan) -> None:
    """Refuse a plan whose offsets are not of the topic that the cluster has now.

    Raises:
        JobError: The topic is gone or was created again; the user must act.
    """
    if job.table or not plan.slices:
        return
    refuse_changed(
        f"the plan in {job.checkpoint}",
        {job.from_topic: plan.topic_id},
        _topic_ids(spark, job),
        remedy="Slices that were sent stay sent. For a replay of the topic that exists now give"
        " another --replay-id and a new --checkpoint.",
    )


def _kept_plan(storage: Storage, job: Replay) -> ReplayPlan | None:
    place = join(job.checkpoint, PLAN_FILE)
    text = storage.read(place)
    if text is None:
        return None
    plan = read_plan(text, place)
    remedy = "give a new --checkpoint and a new --replay-id"
    check_same(job.checkpoint, plan.identity, job.identity(), remedy=remedy)
    return plan


def _refuse_replayed(job: Replay) -> None:
    """Refuse a replay.id whose first slice was published, with whatever checkpoint.

    Raises:
        JobError: The first slice was published; the user must act.
    """
    options, process = job.parsed(), here()
    ensure_topics(options, process.ports)
    found = process.log(options).find(job.app_id, 0)
    if found.standing.winner is not None or found.later_batch >= 0:
        raise JobError(
            f"replay {job.replay_id} was begun before: resume it with its --checkpoint, or choose"
            " another --replay-id"
        )
