"""The command `stuck`: undecided transactions, by producer group and real topic, and their ages."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypedDict

import click
from pyspark.sql import functions as F

from halfbridge.serde.topics import TopicNames
from halfbridge.serde.units import DAY_MS, HOUR_MS, MINUTE_MS
from halfbridge.spark_jobs.jobs import options
from halfbridge.spark_jobs.jobs.progress import OBSERVED, metrics_served, run_to_end
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.decisions import signature_judge
from halfbridge.spark_jobs.reading.take_snapshot import now_ms, present_topics, undecided_snapshot
from halfbridge.spark_jobs.reading.topics import Topics, read_ranges
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.stuck.table import (
    Table,
    keep_up,
    merged,
    state_of_halves,
    state_of_ops,
    undecided,
)
from halfbridge.spark_jobs.tables.checkpoints import Checkpoint
from halfbridge.spark_jobs.tables.storage import absolute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from halfbridge.spark_jobs.jobs.options import Trigger
    from halfbridge.spark_jobs.reading.cluster import Brokers, Where
    from halfbridge.spark_jobs.reading.decisions import SignatureJudge

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
    """Show undecided transactions, by producer group and real topic.

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
    judge = signature_judge(key_file, names)
    where: Where = {"bootstrap_servers": bootstrap_servers, "kafka": kafka}
    with spark_session(_APP_NAME, options=spark_options) as spark:
        made_ms = now_ms()
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
            with connect(spark, **where) as cluster, metrics_served(spark, metrics_port, say=_say):
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
            made_ms = now_ms()
        made = report_of(undecided(state), now_ms=made_ms, older_than_ms=older_than_ms, top=top)
    made["hidden_by_open_kafka_txn"] = list(hidden)
    options.write_report(report, made)
    for topic in hidden:
        _say(f"an open kafka_txn hides records of {topic}: the daemon does not see them either")
    for line in [json.dumps(made)] if as_json else text_lines(made):
        click.echo(line)
    return options.EXIT_FINDINGS if made["stuck"] else options.EXIT_DONE


def report_of(waiting: DataFrame, *, now_ms: int, older_than_ms: int, top: int) -> Report:
    """Return the report on undecided transactions: those of age `older_than_ms` or more are stuck.

    `top` is the number of the oldest that are named.
    """
    kept = aged(waiting, now_ms).persist()
    try:
        old = kept.where(F.col("age_ms") >= older_than_ms)
        groups = by_group_and_topic(old).collect()
        named = oldest(old, top).collect()
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
    judge: SignatureJudge | None,
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
            trigger.set_in(states.writeStream.foreachBatch(merge))
            .option("checkpointLocation", checkpoint)
            .queryName(_APP_NAME)
            .start()
        ),
        _say,
        check=check_topics,
    )
    return table.read()


def _say(line: str) -> None:
    click.echo(f"stuck: {line}", err=True)


# Upper bounds of the histogram's bins; behind the last one it is open.
BINS: tuple[tuple[str, int], ...] = (
    ("<1m", MINUTE_MS),
    ("<10m", 10 * MINUTE_MS),
    ("<1h", HOUR_MS),
    ("<6h", 6 * HOUR_MS),
    ("<1d", DAY_MS),
    ("<3d", 3 * DAY_MS),
)
_REST = ">=3d"
BIN_NAMES = (*(name for name, _ in BINS), _REST)


def aged(undecided: DataFrame, now_ms: int) -> DataFrame:
    """Return undecided transactions with age_ms and bin; those of after `now_ms` are of age 0."""
    age = F.greatest(F.lit(now_ms) - F.col("first_ms"), F.lit(0))
    return undecided.withColumn("age_ms", age).select(
        "transaction_id",
        "resume_count",
        "producer_group",
        "real_topic",
        "first_ms",
        "age_ms",
        "checks",
        "index_last",
        "pair",
        "half_offset",
        _bin(F.col("age_ms")).alias("bin"),
    )


def by_group_and_topic(old: DataFrame) -> DataFrame:
    """Return one row a producer group and real topic of what `aged` returns.

    Returns:
        producer_group, real_topic string; transactions, messages, oldest_ms, checks_max long; and
        a long for each of BIN_NAMES. A transaction with several real topics counts for that of
        its first message.
    """
    bins = [F.count_if(F.col("bin") == name).alias(name) for name in BIN_NAMES]
    groups = old.groupBy("producer_group", "real_topic").agg(
        F.count(F.lit(1)).alias("transactions"),
        F.sum(F.col("index_last") + 1).alias("messages"),
        F.max("age_ms").alias("oldest_ms"),
        F.max("checks").cast("long").alias("checks_max"),
        *bins,
    )
    return groups.select(
        "producer_group",
        "real_topic",
        "transactions",
        "messages",
        "oldest_ms",
        "checks_max",
        *BIN_NAMES,
    )


def oldest(old: DataFrame, count: int) -> DataFrame:
    """Return the oldest rows of `aged`, with the columns by which to find them in the topics."""
    return (
        old.orderBy(F.col("age_ms").desc(), "transaction_id")
        .limit(count)
        .select(
            "transaction_id",
            "resume_count",
            "producer_group",
            "real_topic",
            "age_ms",
            "checks",
            "pair",
            "half_offset",
            F.col("first_ms").alias("first_append_ms"),
        )
    )


class Group(TypedDict):
    """What the report says of a producer group and real topic."""

    producer_group: str
    real_topic: str
    transactions: int
    messages: int
    oldest_ms: int
    checks_max: int
    ages: dict[str, int]  # each of BIN_NAMES -> number of transactions


class Named(TypedDict):
    """What the report says of a transaction: a row of `oldest`."""

    transaction_id: str
    resume_count: int
    producer_group: str
    real_topic: str
    age_ms: int
    checks: int
    pair: int
    half_offset: int
    first_append_ms: int


class Report(TypedDict):
    """The report."""

    stuck: int
    undecided: int
    older_than_ms: int
    now_ms: int
    groups: list[Group]
    oldest: list[Named]
    hidden_by_open_kafka_txn: list[str]


def make_report(
    groups: Sequence[Row],
    top: Sequence[Row],
    *,
    older_than_ms: int,
    now_ms: int,
    undecided: int,
) -> Report:
    """Return the report, one JSON object."""
    return {
        "stuck": sum(each["transactions"] for each in groups),
        "undecided": undecided,
        "older_than_ms": older_than_ms,
        "now_ms": now_ms,
        "groups": sorted(
            (
                Group(
                    producer_group=each["producer_group"],
                    real_topic=each["real_topic"],
                    transactions=each["transactions"],
                    messages=each["messages"],
                    oldest_ms=each["oldest_ms"],
                    checks_max=each["checks_max"],
                    ages={name: each[name] for name in BIN_NAMES},
                )
                for each in groups
            ),
            key=lambda each: (-each["oldest_ms"], each["producer_group"], each["real_topic"]),
        ),
        "oldest": [
            Named(
                transaction_id=each["transaction_id"],
                resume_count=each["resume_count"],
                producer_group=each["producer_group"],
                real_topic=each["real_topic"],
                age_ms=each["age_ms"],
                checks=each["checks"],
                pair=each["pair"],
                half_offset=each["half_offset"],
                first_append_ms=each["first_append_ms"],
            )
            for each in top
        ],
        "hidden_by_open_kafka_txn": [],
    }


def text_lines(report: Report) -> Iterator[str]:
    """Yield the report for people; the verdict last."""
    for each in report["groups"]:
        ages = ", ".join(f"{count:,} {name}" for name, count in each["ages"].items() if count)
        yield (
            f"{each['producer_group']} -> {each['real_topic']}: {each['transactions']:,}"
            f" transactions, {each['messages']:,} messages, oldest {_age(each['oldest_ms'])},"
            f" at most {each['checks_max']} checks answered; {ages}"
        )
    for named in report["oldest"]:
        yield (
            f"  {named['transaction_id']}  {_age(named['age_ms'])}  {named['producer_group']}"
            f" -> {named['real_topic']}  half [{named['pair']}]@{named['half_offset']}"
        )
    limit = _age(report["older_than_ms"])
    yield f"{report['stuck']:,} of {report['undecided']:,} undecided are older than {limit}"


def _bin(age: Column) -> Column:
    chain = F.when(age < BINS[0][1], BINS[0][0])
    for name, below_ms in BINS[1:]:
        chain = chain.when(age < below_ms, name)
    return chain.otherwise(_REST)


def _age(age_ms: int) -> str:
    for name, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS)):
        if age_ms >= unit_ms:
            return f"{age_ms / unit_ms:.1f} {name}"
    return f"{age_ms / 1000:.1f} s"
