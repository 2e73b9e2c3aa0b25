"""The command `stuck`: undecided transactions, by producer group and real topic, and their ages.

    halfbridge spark stuck --bootstrap-servers localhost:9092 --older-than 10m

It shows what `read_transactions` calls undecided, in a snapshot of half and op topic.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypedDict, cast

import click
from pyspark.sql import functions as F

from halfbridge.serde.topics import TopicNames
from halfbridge.serde.units import DAY_MS, HOUR_MS, MINUTE_MS
from halfbridge.spark.transactions import transactions
from halfbridge.spark_jobs.audit.sift import UNDECIDED
from halfbridge.spark_jobs.jobs import options
from halfbridge.spark_jobs.reading.decisions import signature_judge
from halfbridge.spark_jobs.reading.take_snapshot import undecided_snapshot
from halfbridge.spark_jobs.reading.topics import read_ranges
from halfbridge.spark_jobs.session.local import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
# The histogram's bins: name, and the ages [low, high) in it. 2**62 ms is longer than all ages.
_BINS = (
    ("<1m", 0, MINUTE_MS),
    ("<10m", MINUTE_MS, 10 * MINUTE_MS),
    ("<1h", 10 * MINUTE_MS, HOUR_MS),
    ("<6h", HOUR_MS, 6 * HOUR_MS),
    ("<1d", 6 * HOUR_MS, DAY_MS),
    ("<3d", DAY_MS, 3 * DAY_MS),
    (">=3d", 3 * DAY_MS, 2**62),
)
_GROUP = ("producer_group", "real_topic")
# Any writer of half messages can invent names: a report on the driver has this many at most.
GROUPS_MAX = 1_000


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
) -> int:
    """Show undecided transactions, by producer group and real topic.

    Exit status: 0 none is older than the limit, 2 some are, 1 error.
    """
    source = options.reading_options(bootstrap_servers, kafka)
    names = TopicNames(topic_prefix)
    judge = signature_judge(key_file, names)
    with spark_session("halfbridge-stuck", options=spark_options) as spark:
        snapshot = undecided_snapshot(
            spark, bootstrap_servers=bootstrap_servers, kafka=kafka, prefix=topic_prefix
        )
        _say(f"reading {snapshot.records():,} offsets")
        nothing = read_ranges(spark, {}, source)
        found = transactions(
            halves=read_ranges(spark, snapshot.ranges(names.half), source),
            ops=read_ranges(spark, snapshot.ranges(names.op), source),
            letters=nothing,
            reals=nothing,
            judge=judge,
        )
        made = report_of(
            found,
            now_ms=snapshot.taken_ms,
            older_than_ms=older_than_ms,
            top=top,
            hidden=snapshot.hidden,
        )
    options.write_report(report, made)
    for topic in snapshot.hidden:
        _say(f"an open kafka_txn hides records of {topic}: the daemon does not see them either")
    for line in [json.dumps(made)] if as_json else text_lines(made):
        click.echo(line)
    return options.EXIT_FINDINGS if made["stuck"] else options.EXIT_DONE


def _say(line: str) -> None:
    click.echo(f"stuck: {line}", err=True)


class Group(TypedDict):
    """What the report says of a producer group and the real topic of first messages."""

    producer_group: str
    real_topic: str
    transactions: int
    messages: int
    oldest_ms: int
    checks_max: int
    ages: dict[str, int]  # each of _BINS -> transactions


class Named(TypedDict):
    """What the report says of one of the oldest transactions."""

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
    groups_omitted: int
    oldest: list[Named]
    hidden_by_open_kafka_txn: list[str]


def report_of(
    found: DataFrame,
    *,
    now_ms: int,
    older_than_ms: int,
    top: int,
    hidden: Sequence[str] = (),
    groups_max: int = GROUPS_MAX,
) -> Report:
    """Return the report on `transactions`: those undecided for `older_than_ms` or more are stuck.

    `top` is the number of the oldest that are named. What began after `now_ms` has the age 0.
    `hidden` are the topics of which an open kafka_txn hides records. `groups` has the `groups_max`
    with the oldest transactions, and `groups_omitted` is the number of the others.
    """
    first_ms = F.unix_millis("half_timestamp")
    undecided = (
        found.where(F.col("state") == UNDECIDED)
        .withColumn("age_ms", F.greatest(F.lit(now_ms) - first_ms, F.lit(0)))
        .persist()
    )
    try:
        old = undecided.where(F.col("age_ms") >= older_than_ms)
        groups = _by_group_and_topic(old).limit(groups_max).collect()
        is_cut = len(groups) == groups_max
        omitted = old.select(*_GROUP).distinct().count() - groups_max if is_cut else 0
        oldest = old.orderBy(F.desc("age_ms"), "transaction_id").limit(top)
        named = oldest.select(
            *("transaction_id", "resume_count", *_GROUP, "age_ms"),
            F.col("check_count").alias("checks"),
            F.col("half_partition").alias("pair"),
            "half_offset",
            first_ms.alias("first_append_ms"),
        ).collect()
        (counts,) = undecided.agg(
            F.count(F.lit(1)).alias("undecided"),
            F.count_if(F.col("age_ms") >= older_than_ms).alias("stuck"),
        ).collect()
    finally:
        undecided.unpersist()
    return {
        "stuck": counts["stuck"],
        "undecided": counts["undecided"],
        "older_than_ms": older_than_ms,
        "now_ms": now_ms,
        # The rows have the columns that these types name.
        "groups": [cast("Group", each.asDict(recursive=True)) for each in groups],
        "groups_omitted": omitted,
        "oldest": [cast("Named", each.asDict()) for each in named],
        "hidden_by_open_kafka_txn": list(hidden),
    }


def _by_group_and_topic(old: DataFrame) -> DataFrame:
    """Return the rows of `Report.groups`, the one with the oldest transaction first."""
    age_ms = F.col("age_ms")
    ages = [
        F.count_if((age_ms >= low_ms) & (age_ms < high_ms)).alias(name)
        for name, low_ms, high_ms in _BINS
    ]
    return (
        old.groupBy(*_GROUP)
        .agg(
            F.count(F.lit(1)).alias("transactions"),
            F.sum("message_count").alias("messages"),
            F.max("age_ms").alias("oldest_ms"),
            F.max("check_count").alias("checks_max"),
            F.struct(*ages).alias("ages"),
        )
        .orderBy(F.desc("oldest_ms"), *_GROUP)
    )


def text_lines(report: Report) -> Iterator[str]:
    """Yield the report for people; the verdict last."""
    for each in report["groups"]:
        ages = ", ".join(f"{count:,} {name}" for name, count in each["ages"].items() if count)
        yield (
            f"{each['producer_group']} -> {each['real_topic']}: {each['transactions']:,}"
            f" transactions, {each['messages']:,} messages, oldest {_age(each['oldest_ms'])},"
            f" at most {each['checks_max']} checks answered; {ages}"
        )
    if report["groups_omitted"]:
        yield f"and {report['groups_omitted']:,} more pairs of group and topic"
    for named in report["oldest"]:
        yield (
            f"  {named['transaction_id']}  {_age(named['age_ms'])}  {named['producer_group']}"
            f" -> {named['real_topic']}  half [{named['pair']}]@{named['half_offset']}"
        )
    limit = _age(report["older_than_ms"])
    yield f"{report['stuck']:,} of {report['undecided']:,} undecided are older than {limit}"


def _age(age_ms: int) -> str:
    for name, unit_ms in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS)):
        if age_ms >= unit_ms:
            return f"{age_ms / unit_ms:.1f} {name}"
    return f"{age_ms / 1000:.1f} s"


if __name__ == "__main__":
    main()
