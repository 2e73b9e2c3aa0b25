"""Sends the rows of a table or of a range of a topic to a topic again, each row exactly once.

A plan divides the rows into slices, which stay the same when the replay is resumed. Each slice is
one batch of the sink.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import (
    Mapping,  # noqa: TC003 (fields' types)
    Sequence,  # noqa: TC003 (fields' types)
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import click
from pyspark.sql import functions as F

from halfbridge.serde.headers import RESERVED
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.jobs.options import (
    EXIT_DONE,
    JobCommand,
    common_options,
    pairs,
    prefix_option,
    reading_options,
    report_option,
    sink_key_file_option,
    write_report,
)
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.offsets import (
    EARLIEST,
    LATEST,
    Position,
    Range,
    check_batch,
    from_option,
    to_option,
)
from halfbridge.spark_jobs.reading.topics import Topics, cluster_options, read_ranges, read_topics
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.sink import write_batch
from halfbridge.spark_jobs.sink.clients import ensure_topics
from halfbridge.spark_jobs.sink.errors import SinkError
from halfbridge.spark_jobs.sink.options import SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import sink_process
from halfbridge.spark_jobs.tables.checkpoints import check_same, count_done, refuse_changed
from halfbridge.spark_jobs.tables.delta import read_table
from halfbridge.spark_jobs.tables.storage import Storage, absolute, join

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from typing_extensions import Unpack


_RATE_SLICE_S = 10  # with --rate, the duration of a slice: a replay can be stopped between slices


class _Given(TypedDict):
    """The values of the command's options."""

    bootstrap_servers: str
    kafka: dict[str, str]
    spark_options: dict[str, str]
    as_json: bool
    topic_prefix: str
    table: str
    from_topic: str
    start: Position
    end: Position
    where: str
    to_topic: str
    replay_id: str
    checkpoint: str
    keep_partition: bool
    rate: int | None
    slice_rows: int
    sink_kafka: dict[str, str]
    key_file: str
    dry_run: bool
    report: Path | None


@click.command(cls=JobCommand)
@common_options
@prefix_option
@click.option("--source", "table", default="", metavar="PATH", help="A table that ingest wrote.")
@click.option("--from-topic", default="", metavar="NAME", help="A topic, instead of --source.")
@from_option
@to_option
@click.option("--where", default="", metavar="SQL", help="Only rows for which this is true.")
@click.option("--to-topic", required=True, metavar="NAME", help="Topic that the rows are sent to.")
@click.option(
    "--replay-id",
    required=True,
    metavar="NAME",
    help="Name of this replay, in the header replay.id of each row. A name can be used once.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Directory or URI of the progress, from which an interrupted replay is resumed.",
)
@click.option("--keep-partition", is_flag=True, help="Keep partition numbers; otherwise by key.")
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Most rows a second, on average over slices.",
)
@click.option(
    "--slice-rows",
    type=click.IntRange(1, 10_000_000),
    default=100_000,
    show_default=True,
    help="Approximate number of rows that become visible together.",
)
@click.option(
    "--sink-opt",
    "sink_kafka",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="A property of the sink's (librdkafka) client, such as ssl.ca.location. May be repeated.",
)
@sink_key_file_option
@click.option("--dry-run", is_flag=True, help="Say what would be sent; send and write nothing.")
@report_option
def main(**values: Unpack[_Given]) -> int:
    """Send the rows of a table or of a range of a topic to a topic again.

    Each row is sent exactly once, in the order of its source partition. The rows of a slice become
    visible together. A replay that is started again with the same --checkpoint continues where it
    ended.
    """
    job = _job(values)
    with spark_session("halfbridge-replay", options=values["spark_options"]) as spark:
        try:
            if values["dry_run"]:
                sent = preview(spark, job)
            else:
                sent = replay(spark, job, lambda line: click.echo(line, err=True))
        except SinkError as error:
            raise JobError(str(error)) from error
    report = {**sent.to_json(), "dry_run": values["dry_run"]}
    write_report(values["report"], report)
    if values["as_json"]:
        click.echo(json.dumps(report))
    elif values["dry_run"]:
        click.echo(_plan_text(sent))
    else:
        click.echo(
            f"done: {sent.rows:,} rows in {sent.slices} slices to {job.to_topic};"
            f" {sent.seconds:.1f} s"
        )
    return EXIT_DONE


def _job(values: _Given) -> Replay:
    """Return the job that the command line describes. Errors are found before the JVM starts."""
    if bool(values["table"]) == bool(values["from_topic"]):
        raise click.UsageError("give --source or --from-topic, one of them")
    if not values["checkpoint"] and not values["dry_run"]:
        raise click.UsageError("give --checkpoint, or --dry-run")
    if values["table"] and (values["start"], values["end"]) != (EARLIEST, LATEST):
        raise click.UsageError(
            "--from and --to apply to a topic; choose rows of a table with --where, for example"
            " --where \"timestamp >= '2026-11-01T12:00Z'\""
        )
    reading_options(values["bootstrap_servers"], values["kafka"])
    slice_rows, rate = values["slice_rows"], values["rate"]
    job = Replay(
        replay_id=values["replay_id"],
        bootstrap_servers=values["bootstrap_servers"],
        to_topic=values["to_topic"],
        table=absolute(values["table"]) if values["table"] else "",
        from_topic=values["from_topic"],
        start=values["start"],
        end=values["end"],
        where=values["where"],
        checkpoint=absolute(values["checkpoint"]) if values["checkpoint"] else "",
        prefix=values["topic_prefix"],
        keep_partition=values["keep_partition"],
        rows_per_s=rate,
        slice_rows=slice_rows if rate is None else min(slice_rows, rate * _RATE_SLICE_S),
        kafka=values["kafka"],
        sink_kafka=values["sink_kafka"],
        key_file=values["key_file"],
    )
    try:
        job.parsed()
        if job.from_topic:
            Topics.of(job.from_topic)
            check_batch(job.start, job.end)
    except (SinkError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    return job


def _plan_text(sent: Sent) -> str:
    plan = sent.plan
    lines = [f"would send {plan.rows:,} rows in {plan.slices} slices"]
    if sent.done_before:
        lines[0] += f"; {sent.done_before} of these slices were sent before, and are not sent again"
    lines += [
        f"  {each.topic} {each.partition}: {each.rows:,} rows, offsets {each.low} to"
        f" {each.high - 1}"
        for each in plan.ranges
    ]
    return "\n".join(lines)


PLAN_FILE = "plan.json"
_DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The source, the target and the options of a replay."""

    replay_id: str  # name of the replay; a name can be used once
    bootstrap_servers: str
    to_topic: str  # real topic that the rows are sent to
    table: str = ""  # absolute path or URI of a table to read; empty: `from_topic` is read
    from_topic: str = ""
    start: Position = EARLIEST
    end: Position = LATEST
    where: str = ""  # SQL condition on the source's columns; empty: all rows
    checkpoint: str = ""  # absolute path or URI of the progress
    prefix: str = ""
    keep_partition: bool = False  # whether each row keeps the number of its source partition
    rows_per_s: int | None = None  # most rows a second; None: no limit
    slice_rows: int = 100_000  # approximate number of rows in a slice
    # Properties of Spark's consumer, with the names of the Java client.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Properties of the sink's producer, with the names of librdkafka.
    sink_kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_file: str = ""  # the sink's option key.file; empty: the rows are not signed

    @property
    def app_id(self) -> str:
        """The sink's app.id."""
        return f"replay-{self.replay_id}"

    def identity(self) -> dict[str, object]:
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

        Raises SinkOptionError: one is wrong; the user corrects it.
        """
        return parse_options(self.sink_options())


@dataclass(slots=True)
class Sent:
    """What one run of a replay has sent."""

    plan: ReplayPlan
    done_before: int = 0  # slices that earlier runs have sent
    slices: int = 0  # slices that this run has sent
    rows: int = 0  # rows that this run has sent
    seconds: float = 0.0  # duration of this run

    def to_json(self) -> dict[str, object]:
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
    """Return the plan of a new replay; writes nothing."""
    # Asked first: of a topic that is created again now, the id does not fit the offsets, which is
    # an error when the replay is resumed.
    topic_id = _topic_ids(spark, job).get(job.from_topic, "")
    rows = _source(spark, job, None)
    counted = rows.groupBy("topic", "partition").agg(
        F.min("offset").alias("low"), F.max("offset").alias("high"), F.count(F.lit(1)).alias("rows")
    )
    ranges = [
        SourceRange(row["topic"], row["partition"], row["low"], row["high"] + 1, row["rows"])
        for row in counted.collect()
    ]
    return make_plan(job.identity(), ranges, slice_rows=job.slice_rows, topic_id=topic_id)


def preview(spark: SparkSession, job: Replay) -> Sent:
    """Return the plan that `replay` would send, and how much of it is done; writes nothing."""
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
        SinkError: The installation is not set up correctly; an operator follows the text.
    """
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
    write_batch(rows, number, job.sink_options())
    winner = sink_process().log(job.parsed()).find(job.app_id, number).state.winner
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
            spark, {job.from_topic: ranges}, cluster_options(job.bootstrap_servers, job.kafka)
        )
    wanted = selected(rows, where=job.where, replay_id=job.replay_id)
    return wanted if bounds is None else within(wanted, bounds)


def _topic_ids(spark: SparkSession, job: Replay) -> dict[str, str]:
    if job.table:
        return {}
    with connect(spark, job.bootstrap_servers, job.kafka) as cluster:
        return cluster.topic_ids(Topics.of(job.from_topic))


def _refuse_changed_topic(spark: SparkSession, job: Replay, plan: ReplayPlan) -> None:
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
    """Refuse a replay.id whose first slice was published, with whatever checkpoint."""
    options, process = job.parsed(), sink_process()
    ensure_topics(options, process.ports)
    found = process.log(options).find(job.app_id, 0)
    if found.state.winner is not None or found.later_batch >= 0:
        raise JobError(
            f"replay {job.replay_id} was begun before: resume it with its --checkpoint, or choose"
            " another --replay-id"
        )


PLAN_VERSION = 1  # of the plan's form; another form gets another number
Bounds = dict[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The rows of one source partition."""

    topic: str
    partition: int
    low: int  # lowest offset of the rows
    high: int  # highest offset of the rows, plus one
    rows: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The plan of a whole replay."""

    # The settings that must not change when the replay is resumed; JSON values.
    identity: Mapping[str, object]
    ranges: tuple[SourceRange, ...]
    slices: int  # number of slices; each is one batch of the sink
    # Kafka's id of the source topic; empty for a table, and in plans of halfbridge 0.1.
    topic_id: str = ""

    @property
    def rows(self) -> int:
        """Number of rows in all source partitions."""
        return sum(each.rows for each in self.ranges)

    def bounds(self, number: int) -> Bounds:
        """Return the offsets [low, high) of each source partition in slice `number`.

        Each slice has its share of each partition, in the order of the offsets, so that rows with
        the same key keep their order. Example: of a partition with the offsets 0 to 999, slice 1 of
        4 has [250, 500).
        """
        return {
            (each.topic, each.partition): (_cut(each, number, self.slices), end)
            for each in self.ranges
            if (end := _cut(each, number + 1, self.slices)) > _cut(each, number, self.slices)
        }

    def to_json(self) -> str:
        """Return the plan as the text of the checkpoint's file."""
        ranges = [
            [each.topic, each.partition, each.low, each.high, each.rows] for each in self.ranges
        ]
        plan = {
            "plan_version": PLAN_VERSION,
            "identity": dict(self.identity),
            "slices": self.slices,
            "topic_id": self.topic_id,
            "places": ranges,
        }
        return json.dumps(plan, indent=1) + "\n"


def make_plan(
    identity: Mapping[str, object],
    ranges: Sequence[SourceRange],
    *,
    slice_rows: int,
    topic_id: str = "",
) -> ReplayPlan:
    """Return a plan of slices with about `slice_rows` rows each; 0 slices for 0 rows."""
    rows = sum(each.rows for each in ranges)
    ordered = sorted(ranges, key=lambda each: (each.topic, each.partition))
    return ReplayPlan(identity, tuple(ordered), -(-rows // slice_rows), topic_id)


def read_plan(text: str, where: str) -> ReplayPlan:
    """Return the plan in a checkpoint's file.

    Raises JobError: it is damaged or of another version; the user restores it, or starts another
    replay.
    """
    try:
        kept = json.loads(text)
        if kept["plan_version"] != PLAN_VERSION:
            raise ValueError(f"version {kept['plan_version']}")  # noqa: TRY301 (one handler)
        ranges = tuple(SourceRange(*each) for each in kept["places"])
        topic_id = str(kept.get("topic_id", ""))
        return ReplayPlan(kept["identity"], ranges, int(kept["slices"]), topic_id)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(
            f"{where} is damaged: {error}. Restore it, or start again with another --replay-id"
        ) from error


def _cut(source: SourceRange, number: int, slices: int) -> int:
    return source.low + (source.high - source.low) * number // slices


REPLAY_ID = "replay.id"
# Columns of a source. Spark's Kafka source and the table of `ingest` have them.
COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
_HEADERS = "array<struct<key: string, value: binary>>"


def selected(rows: DataFrame, *, where: str, replay_id: str) -> DataFrame:
    """Return the COLUMNS of the rows to send; `where` is a SQL condition, empty for all rows.

    Rows that this replay sent before are left out: a replay may read the topic that it writes to.
    """
    wanted = rows.where(where) if where else rows
    sent = F.exists(
        _headers(),
        lambda header: (
            (header["key"] == F.lit(REPLAY_ID))
            # A header may have no value, and a comparison with null is neither true nor false.
            & header["value"].eqNullSafe(F.lit(replay_id).cast("binary"))
        ),
    )
    return wanted.where(~sent).select(*COLUMNS)


def within(rows: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the rows at the offsets of a slice, all columns: a filter."""
    condition = F.lit(False)  # noqa: FBT003 (a literal of Spark's)
    for (topic, partition), (low, high) in bounds.items():
        place = (F.col("topic") == F.lit(topic)) & (F.col("partition") == F.lit(partition))
        condition |= place & F.col("offset").between(low, high - 1)
    return rows.where(condition)


def replayed(rows: DataFrame, *, replay_id: str, to_topic: str, keep_partition: bool) -> DataFrame:
    """Return rows that have COLUMNS for the sink, in the order of each source partition.

    Returns:
        topic string, partition int (null: by key), key binary, value binary, headers with
        `replay.id`. Reserved headers of the source are left out, because they name the transaction
        of the first delivery. A replay.id of an earlier replay is left out too.
    """
    mine = F.struct(F.lit(REPLAY_ID).alias("key"), F.lit(replay_id).cast("binary").alias("value"))
    dropped = sorted({*RESERVED, REPLAY_ID})
    kept = F.filter(_headers(), lambda header: ~header["key"].isin(*dropped))
    partition = F.col("partition") if keep_partition else F.lit(None).cast("int")
    in_order = rows.repartition("topic", "partition").sortWithinPartitions(
        "topic", "partition", "offset"
    )
    return in_order.select(
        F.lit(to_topic).alias("topic"),
        partition.alias("partition"),
        "key",
        "value",
        F.concat(kept, F.array(mine)).cast(_HEADERS).alias("headers"),
    )


def _headers() -> Column:
    return F.coalesce(F.col("headers"), F.array().cast(_HEADERS))


if __name__ == "__main__":
    main()
