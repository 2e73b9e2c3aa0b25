"""The command `dedupe`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from halfbridge.spark_jobs.dedupe.job import Deduped, dedupe
from halfbridge.spark_jobs.ingest.sinks import FORMATS
from halfbridge.spark_jobs.jobs.options import (
    EXIT_DONE,
    JobCommand,
    json_option,
    report_option,
    spark_option,
    write_report,
)
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.tables.storage import absolute

if TYPE_CHECKING:
    from pathlib import Path


@click.command(cls=JobCommand)
@click.option(
    "--input", "source", required=True, metavar="PATH", help="A table that ingest made, any format."
)
@click.option("--output", required=True, metavar="PATH", help="Directory or URI of the new table.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="parquet", show_default=True)
@report_option
@spark_option
@json_option
def main(
    *,
    source: str,
    output: str,
    kind: str,
    report: Path | None,
    spark_options: dict[str, str],
    as_json: bool,
) -> int:
    """Make a table with each message of a transaction once.

    The table has the columns of the input and message_index; (transaction_id, message_index) is
    unique. Of duplicate rows, the row with the lowest topic, partition and offset is kept. A second
    run on the same input changes nothing. A run on a larger input rewrites the days that differ.
    """
    with spark_session("halfbridge-dedupe", options=spark_options) as spark:
        click.echo(f"comparing all rows of {source} ...", err=True)
        done = dedupe(spark, absolute(source), absolute(output), kind)
    found = {"job": "dedupe", "input": source, "output": output, "format": kind, **done.to_json()}
    write_report(report, found)
    click.echo(json.dumps(found) if as_json else _text(done, output))
    return EXIT_DONE


def _text(done: Deduped, output: str) -> str:
    return (
        f"done: {done.rows_kept:,} of {done.rows_read:,} rows in {output};"
        f" left out: {done.same_record:,} records that were ingested twice,"
        f" {done.same_message:,} messages that were delivered again;"
        f" {done.days_written} of {done.days} days written"
    )
