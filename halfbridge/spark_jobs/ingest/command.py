"""The command `ingest`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from halfbridge.spark_jobs.ingest.job import Ingest, ingest
from halfbridge.spark_jobs.ingest.sinks import FORMATS
from halfbridge.spark_jobs.jobs.metrics import metrics_served
from halfbridge.spark_jobs.jobs.options import (
    EXIT_DONE,
    JobCommand,
    checkpoint_option,
    common_options,
    max_offsets_option,
    metrics_port_option,
    report_option,
    topics_option,
    trigger_option,
    write_report,
)
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.positions import from_option
from halfbridge.spark_jobs.reading.schemas import load_schema
from halfbridge.spark_jobs.reading.topics import Topics, source_options
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.tables.storage import absolute

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.spark_jobs.jobs.progress import Totals
    from halfbridge.spark_jobs.reading.cluster import Place
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

        def stalls() -> dict[Place, int]:
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


def _text(job: Ingest, totals: Totals, hidden: dict[Place, int]) -> str:
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
