"""The command line of the audit."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from pyspark.sql import functions as F

from halfbridge.serde.delivery import DELIVERIES, Delivery
from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit.bounds import GRACE_MS, Bounds, OtherInstallations
from halfbridge.spark_jobs.audit.facts import (
    all_facts,
    facts_of_dead_letters,
    facts_of_halves,
    facts_of_ops,
    facts_of_reals,
)
from halfbridge.spark_jobs.audit.run import audited, make_report, text_lines
from halfbridge.spark_jobs.audit.state import State
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.jobs import options
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.decisions import signature_judge
from halfbridge.spark_jobs.reading.offsets import (
    Snapshot,
    continued,
    continued_ranges,
    read_snapshot,
    unread,
    unread_ranges,
)
from halfbridge.spark_jobs.reading.take_snapshot import (
    SETTLE_S,
    audit_snapshot,
    other_halves,
    topic_ranges,
)
from halfbridge.spark_jobs.reading.topics import Topics, read_ranges
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.tables.checkpoints import refuse_changed
from halfbridge.spark_jobs.tables.storage import Storage, jvm_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.reading.cluster import Where
    from halfbridge.spark_jobs.reading.decisions import SignatureJudge
    from halfbridge.spark_jobs.reading.offsets import Range

FINDINGS_SHOWN = 100  # in text and report, as many as a person reads; a table holds them all
# Real topics that are found in half messages: the driver holds their names (3 MB at most).
TOPICS_MAX = 10_000
_ANOTHER_SNAPSHOT = "Run the audit without --snapshot: it then makes a new one."
_ANOTHER_STATE = "Begin with a new --state."
_APP_NAME = "halfbridge-audit"


@click.command(cls=options.JobCommand)
@options.common_options
@options.prefix_option
@options.topics_option
@options.key_file_option
@options.report_option
@click.option(
    "--snapshot",
    "snapshot_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    metavar="PATH",
    help="Audit the offsets that an earlier audit read. The file is its report or its snapshot.",
)
@click.option(
    "--findings",
    default=None,
    metavar="PATH",
    help="Write all findings to this directory as Parquet. The directory must not exist.",
)
@click.option(
    "--state",
    "state_path",
    default=None,
    metavar="PATH",
    help="Keep here what was read and found. Later runs with this directory read only what is new,"
    " and report on all.",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=GRACE_MS / 1000,
    show_default=True,
    metavar="SECONDS",
    help="From this age on, a decision that the daemon has not applied is shown as overdue."
    " Where the daemon's offsets are not known, the messages of a younger decision are not lost.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0),
    default=SETTLE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the end of kafka_txns that are open on real topics.",
)
@click.option(
    "--delivery",
    type=click.Choice(DELIVERIES),
    default=Delivery.EXACTLY_ONCE.value,
    show_default=True,
    help="The daemon's setting. at-least-once: a message that was delivered before is a notice.",
)
@click.option(
    "--other-prefix",
    "other_prefixes",
    multiple=True,
    metavar="TEXT",
    help="Prefix of another installation that delivers to these real topics. May be repeated."
    "  [default: all installations that the cluster has]",
)
@click.option(
    "--no-others",
    is_flag=True,
    help="No other installation delivers to these real topics: a transaction that is not in this"
    " half topic is a phantom.",
)
def main(
    *,
    bootstrap_servers: str,
    kafka: dict[str, str],
    spark_options: dict[str, str],
    as_json: bool,
    topic_prefix: str,
    topics: tuple[str, ...],
    key_file: Path | None,
    report: Path | None,
    snapshot_file: Path | None,
    findings: str | None,
    state_path: str | None,
    grace_s: float,
    settle_s: float,
    delivery: str,
    other_prefixes: tuple[str, ...],
    no_others: bool,
) -> int:
    """Check that every transaction was delivered as it was decided, once and unchanged.

    Without --topic, all real topics that half messages name are read. To find these topics, the
    half topic is read once more. If real records have transactions that are not in this half topic,
    the half topics of other installations are read: those transactions may be theirs. Exit status:
    0 clean, 2 findings, 1 error.
    """
    started_s = monotonic()
    _refuse_what_has_no_effect(topics, TopicNames(topic_prefix))
    source = options.reading_options(bootstrap_servers, kafka)
    given = read_snapshot(snapshot_file.read_text("utf-8")) if snapshot_file else None
    # A signature names its topic, and with it the prefix.
    judge = signature_judge(key_file, given.names if given else TopicNames(topic_prefix))
    with spark_session(_APP_NAME, options=spark_options) as spark:
        if findings is not None and Storage(spark).exists(findings):
            raise JobError(f"{findings} exists already: give another --findings")
        where: Where = {"bootstrap_servers": bootstrap_servers, "kafka": kafka}
        others = "none" if no_others else sorted(other_prefixes)
        identity = {"prefix": topic_prefix, "signed": judge is not None, "others": others}
        state = State(spark, state_path, identity) if state_path is not None else None
        former = state.snapshot if state else None
        _refuse_changed_topics(spark, given, "the snapshot", _ANOTHER_SNAPSHOT, **where)
        _refuse_changed_topics(spark, former, f"the state {state_path}", _ANOTHER_STATE, **where)
        snapshot = given or _take(
            spark,
            source,
            prefix=topic_prefix,
            topics=topics,
            former=former,
            settle_s=settle_s,
            **where,
        )
        bounds = Bounds(snapshot, round(grace_s * 1000), delivery == Delivery.AT_LEAST_ONCE)

        def find_others() -> OtherInstallations:
            ranges, ids = snapshot.others, snapshot.topic_ids
            if given is None and not no_others:
                ranges, ids = other_halves(spark, snapshot.names, other_prefixes, **where)
            return _others(spark, ranges, ids, source, state)

        new = unread(former, snapshot)
        _say(f"reading {new.records():,} offsets of {len(snapshot.topics)} topics")
        facts = facts_of(spark, new, source, judge)
        carried = state.carried() if state else None
        with audited(
            facts, bounds, progress=_say, find_others=find_others, carried=carried
        ) as audit:
            if state is not None:
                _say("writing the state")
                state.write(audit)
            shown = [row.asDict() for row in audit.findings.limit(FINDINGS_SHOWN).collect()]
            made = make_report(audit, shown, seconds=monotonic() - started_s)
            options.write_report(report, made)
            for line in [json.dumps(made)] if as_json else text_lines(made):
                click.echo(line)
            if findings is not None:
                audit.findings.write.parquet(findings)
    return options.EXIT_DONE if made["clean"] else options.EXIT_FINDINGS


def facts_of(
    spark: SparkSession,
    snapshot: Snapshot,
    source: Mapping[str, str],
    judge: SignatureJudge | None = None,
) -> DataFrame:
    """Return the facts of all records of a snapshot; no `judge`: all signatures are believed."""
    names = snapshot.names
    return all_facts(
        facts_of_halves(read_ranges(spark, snapshot.ranges(names.half), source), judge),
        facts_of_ops(read_ranges(spark, snapshot.ranges(names.op), source), judge),
        facts_of_reals(read_ranges(spark, snapshot.ranges(*snapshot.real_topics), source)),
        facts_of_dead_letters(read_ranges(spark, snapshot.ranges(names.dead), source), judge),
    )


def _others(
    spark: SparkSession,
    ranges: Mapping[str, Mapping[int, Range]],
    ids: Mapping[str, str],
    source: Mapping[str, str],
    state: State | None,
) -> OtherInstallations:
    former = state.snapshot.others if state and state.snapshot else {}
    ranges = continued_ranges(former, ranges)
    if not ranges:
        return OtherInstallations()
    _say(f"reading {', '.join(sorted(ranges))}, for transactions that are not known here")
    halves = facts_of_halves(read_ranges(spark, unread_ranges(former, ranges), source))
    known = halves.select("transaction_id").where(F.col("transaction_id").isNotNull())
    return OtherInstallations(ranges, state.add_others(known) if state else known, ids)


def _refuse_changed_topics(
    spark: SparkSession,
    snapshot: Snapshot | None,
    what: str,
    remedy: str,
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str],
) -> None:
    """Refuse a snapshot whose offsets are not of the topics that the cluster has now."""
    kept = snapshot.kept_ids() if snapshot else {}
    if not kept:
        return
    try:
        jvm_of(spark)
    except JobError:
        _say("whether the topics were created again is not known: this session has no JVM")
        return
    with connect(spark, bootstrap_servers, kafka) as cluster:
        present = cluster.topic_ids(Topics.of(*kept))
    refuse_changed(what, kept, present, remedy=remedy)


def _refuse_what_has_no_effect(topics: tuple[str, ...], names: TopicNames) -> None:
    if own := [topic for topic in topics if names.is_internal(topic)]:
        raise click.UsageError(f"{own[0]} is an internal topic, which is read anyway")
    context = click.get_current_context()
    if context.params["no_others"] and context.params["other_prefixes"]:
        raise click.UsageError("--other-prefix names others, and --no-others says there are none")
    if context.params.get("snapshot_file") is None:
        return
    for name, word in (
        ("topics", "--topic"),
        ("topic_prefix", "--prefix"),
        ("settle_s", "--settle"),
        ("other_prefixes", "--other-prefix"),
        ("no_others", "--no-others"),
        ("state_path", "--state"),
    ):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{word} says what to read, and so does --snapshot: give one")


def _take(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    bootstrap_servers: str,
    kafka: Mapping[str, str],
    prefix: str,
    topics: tuple[str, ...],
    former: Snapshot | None,
    settle_s: float,
) -> Snapshot:
    """Return the snapshot to audit, which continues the `former` one, if any."""
    where: Where = {"bootstrap_servers": bootstrap_servers, "kafka": kafka}
    names = TopicNames(prefix)
    wanted = set(topics)
    if former is not None:
        wanted |= {*former.real_topics, *former.gone}
    if not topics:
        _say("looking for real topics in the half topic")
        halves = topic_ranges(spark, names.half, **where)
        if former is not None:
            halves = continued_ranges(former.ranges(names.half), halves)
            halves = unread_ranges(former.topics, halves)
        wanted |= _named_topics(facts_of_halves(read_ranges(spark, halves, source)), names)
    _say(f"asking for the ends of {', '.join(sorted(wanted)) or 'no real topic'}")
    snapshot = audit_snapshot(spark, prefix=prefix, real_topics=wanted, settle_s=settle_s, **where)
    if missing := sorted({*topics} & {*snapshot.gone}):
        raise JobError(f"topic {missing[0]} does not exist: check --topic")
    return snapshot if former is None else continued(former, snapshot)


def _named_topics(halves: DataFrame, names: TopicNames) -> set[str]:
    """Return the real topics that half messages name.

    Raises JobError: too many are named; the user names those to audit.
    """
    named = halves.select("topic").where(F.col("topic").isNotNull()).distinct()
    found = {row["topic"] for row in named.limit(TOPICS_MAX + 1).collect()}
    if len(found) > TOPICS_MAX:
        raise JobError(f"half messages name more than {TOPICS_MAX:,} topics: give --topic")
    return {topic for topic in found if not names.is_internal(topic)}


def _say(line: str) -> None:
    click.echo(f"audit: {line}", err=True)
