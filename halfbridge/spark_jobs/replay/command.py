"""The command `replay`."""

from __future__ import annotations

import json
from typing import Any

import click

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
from halfbridge.spark_jobs.reading.offsets import (
    EARLIEST,
    LATEST,
    check_batch,
    from_option,
    to_option,
)
from halfbridge.spark_jobs.reading.topics import Topics
from halfbridge.spark_jobs.replay.job import Replay, Sent, preview, replay
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.sink.errors import SinkError
from halfbridge.spark_jobs.tables.storage import absolute

_RATE_SLICE_S = 10  # with --rate, the duration of a slice: a replay can be stopped between slices


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
def main(**values: Any) -> int:
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


def _job(values: dict[str, Any]) -> Replay:
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
