"""The command line of the search for what nobody has decided."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.jobs import options
from halfbridge.spark_jobs.jobs.metrics import metrics_served
from halfbridge.spark_jobs.jobs.progress import OBSERVED, run_to_end
from halfbridge.spark_jobs.reading.believed import believed
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.take_snapshot import present_topics, undecided_snapshot
from halfbridge.spark_jobs.reading.topics import Topics, read_ranges
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.stuck.report import (
    aged,
    by_group_and_topic,
    make_report,
    oldest,
    text_lines,
)
from halfbridge.spark_jobs.stuck.state import merged, state_of_halves, state_of_ops, undecided
from halfbridge.spark_jobs.stuck.table import Table, keep_up
from halfbridge.spark_jobs.tables.checkpoints import Checkpoint
from halfbridge.spark_jobs.tables.storage import absolute

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.jobs.options import Trigger
    from halfbridge.spark_jobs.reading.believed import Believed
    from halfbridge.spark_jobs.reading.cluster import Brokers

_APP_NAME = "halfbridge-stuck"
_KEEP_MS = 3_600_000  # copies come at most seconds behind the decision
_REMEDY = "Begin with a new --checkpoint and an empty --table."
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration(_context: click.Context, _option: click.Parameter, given: str) -> int:
    match = _DURATION.fullmatch(given)
    if match is None:
        raise click.BadParameter(f"{given!r} is no time such as 30s, 10m, 6h or 2d")
    return int(match[1]) * _UNIT_MS[match[2]]


@click.command(cls=options.JobCommand)
@options.common_options
@options.prefix_option
@options.key_file_option
@options.report_option
@click.option(
    "--older-than",
    "older_than_ms",
    default="10m",
    show_default=True,
    callback=_duration,
    metavar="TIME",
    help="Undecided for so long, by the brokers' append times, is stuck: 30s, 10m, 6h, 2d.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Show that many of the oldest.",
)
@click.option(
    "--table",
    default=None,
    metavar="PATH",
    help="Keep a table of all transactions' states there, by a stream; then report from it.",
)
@click.option(
    "--checkpoint",
    default=None,
    metavar="PATH",
    help="Directory or URI of the stream's progress; needed with --table.",
)
@options.trigger_option
@options.max_offsets_option
@options.metrics_port_option
def main(
    *,
    bootstrap_servers: str,
    kafka: dict[str, str],
    spark_options: dict[str, str],
    as_json: bool,
    topic_prefix: str,
    key_file: Path | None,
    report: Path | None,
    older_than_ms: int,
    top: int,
    table: str | None,
    checkpoint: str | None,
    trigger: Trigger,
    max_offsets: int | None,
    metrics_port: int | None,
) -> int:
    """Show transactions that nobody has decided, by producer group and real topic.

    Exit status: 0 none is older than the limit, 2 some are, 1 error.
    """
    if (table is None) != (checkpoint is None):
        raise click.UsageError("--table and --checkpoint go together")
    streams = (trigger, max_offsets, metrics_port) != (options.AVAILABLE_NOW, None, None)
    if table is None and streams:
        raise click.UsageError(
            "--trigger, --max-offsets and --metrics-port are of a stream: give --table as well"
        )
    source = options.reading_options(bootstrap_servers, kafka)
    names = TopicNames(topic_prefix)
    judge = believed(key_file, names)
    where: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "kafka": kafka}
    with spark_session(_APP_NAME, options=spark_options) as spark:
        now_ms = _now_ms()
        if table is None or checkpoint is None:
            snapshot = undecided_snapshot(spark, prefix=topic_prefix, **where)
            hidden = snapshot.hidden
            _say(f"reading {snapshot.records():,} offsets")
            state = merged(
                state_of_halves(read_ranges(spark, snapshot.ranges(names.half), source), judge),
                state_of_ops(read_ranges(spark, snapshot.ranges(names.op), source), judge),
            )
        else:
            _say(f"bringing {table} up to date")
            with (
                connect(spark, **where) as cluster,
                metrics_served(spark, metrics_port, say=_say),
            ):
                state = _stream(
                    spark,
                    source,
                    Table(spark, absolute(table)),
                    cluster,
                    names=names,
                    checkpoint=absolute(checkpoint),
                    trigger=trigger,
                    max_offsets=max_offsets,
                    judge=judge,
                )
                stalls = cluster.stalls(Topics.of(names.half, names.op))
            hidden = tuple(sorted({topic for topic, _ in stalls}))
            now_ms = _now_ms()
        made = report_of(undecided(state), now_ms=now_ms, older_than_ms=older_than_ms, top=top)
    made["hidden_by_open_kafka_txn"] = list(hidden)
    options.write_report(report, made)
    for topic in hidden:
        _say(f"an open kafka_txn hides records of {topic}: the daemon does not see them either")
    for line in [json.dumps(made)] if as_json else text_lines(made):
        click.echo(line)
    return options.EXIT_FINDINGS if made["stuck"] else options.EXIT_DONE


def report_of(waiting: DataFrame, *, now_ms: int, older_than_ms: int, top: int) -> dict[str, Any]:
    """Return the report on undecided transactions.

    Args:
        waiting: As `state.undecided`.
        now_ms: To count ages from.
        older_than_ms: From this age on one is stuck.
        top: How many of the oldest are named.
    """
    kept = aged(waiting, now_ms).persist()
    try:
        old = kept.where(F.col("age_ms") >= older_than_ms)
        groups = [row.asDict() for row in by_group_and_topic(old).collect()]
        named = [row.asDict() for row in oldest(old, top).collect()]
        count = kept.count()
    finally:
        kept.unpersist()
    return make_report(groups, named, older_than_ms=older_than_ms, now_ms=now_ms, undecided=count)


def _stream(
    spark: SparkSession,
    source: Mapping[str, str],
    table: Table,
    cluster: Brokers,
    *,
    names: TopicNames,
    checkpoint: str,
    trigger: Trigger,
    max_offsets: int | None,
    judge: Believed | None,
) -> DataFrame:
    """Bring the table up to date, once or until the process is stopped; return its STATE."""
    present_topics(cluster, names, (names.half, names.op))
    progress = Checkpoint(spark, checkpoint)
    progress.claim(
        {
            "job": "stuck",
            "cluster_id": cluster.cluster_id(),
            "table": table.path,
            "topics": [names.half, names.op],
        }
    )
    table.check(progress)
    topics = Topics.of(names.half, names.op)

    def check_topics() -> None:
        progress.check_topics(lambda: cluster.topic_ids(topics), remedy=_REMEDY)

    check_topics()
    # Two sources: one would have to be read twice, once for each kind of record.
    each = None if max_offsets is None else max(1, max_offsets // 2)
    limits = {} if each is None else {"maxOffsetsPerTrigger": str(each)}
    halves, ops = (
        spark.readStream.format("kafka")
        .options(**source, **limits, startingOffsets="earliest", subscribe=topic)
        .load()
        for topic in (names.half, names.op)
    )
    states = state_of_halves(halves, judge).unionAll(state_of_ops(ops, judge))
    states = states.observe(OBSERVED, F.count(F.lit(1)).alias("rows"))
    merge = keep_up(table, keep_ms=_KEEP_MS)
    run_to_end(
        lambda: (
            states.writeStream.foreachBatch(merge)
            .option("checkpointLocation", checkpoint)
            .queryName(_APP_NAME)
            .trigger(**trigger.arguments())
            .start()
        ),
        _say,
        check=check_topics,
    )
    return table.read()


def _now_ms() -> int:
    return int(datetime.now(timezone.utc).timestamp() * 1000)


def _say(line: str) -> None:
    """Show progress, beside what is printed as the result."""
    click.echo(f"stuck: {line}", err=True)
