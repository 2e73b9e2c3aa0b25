"""`halfbridge fence`: create, show and purge the table of a fence, and answer checks from it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click

from halfbridge.cli.fence_respond import respond
from halfbridge.cli.options import database_options, json_option, opened
from halfbridge.serde.units import DAY_MS, MS_PER_S

_table_options = database_options("halfbridge_fence")


@click.group()
def fence() -> None:
    """Create, show and purge the table of a fence, and answer checks from it."""


fence.add_command(respond)


@fence.command()
@_table_options
@json_option
def create(*, url: str, name: str, schema: str | None, as_json: bool) -> int:
    """Create the table and its own rows if they do not exist.

    The command may be repeated. If a migration tool creates the table, this command adds the rows.
    """
    with opened(url) as engine:
        from halfbridge.sql.fence_table import FenceTable

        table = FenceTable(engine, name=name, schema=schema)
        table_id = table.create()
    if as_json:
        click.echo(json.dumps({"table": table.table.fullname, "table_id": table_id}))
    else:
        click.echo(f"{table.table.fullname} is there: table {table_id}")
    return 0


@fence.command()
@_table_options
@json_option
def show(*, url: str, name: str, schema: str | None, as_json: bool) -> int:
    """Show the number of rows and the oldest row; reads the whole table."""
    with opened(url) as engine:
        from halfbridge.sql.fence_table import FenceTable

        table = FenceTable(engine, name=name, schema=schema)
        report = table.report()
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return 0
    click.echo(f"table     {report.info.table_id}")
    click.echo(f"purged    {_before(report.info.purged_before_ms)}")
    click.echo(f"oldest    {_when(report.oldest_ms)}")
    for group, counts in report.groups.items():
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        click.echo(f"rows      {group}: {summary}")
    if report.lossy_settings:
        click.echo(f"advice    this server may lose commits: {report.lossy_settings}")
    return 0


@fence.command()
@_table_options
@click.option(
    "--transaction-age-ms-max",
    type=click.IntRange(min=1),
    default=3 * DAY_MS,
    show_default=True,
    help="The daemon's setting.",
)
@click.option(
    "--dead-letter-retention-ms",
    type=click.IntRange(min=0),
    default=30 * DAY_MS,
    show_default=True,
    help="retention.ms of the dead-letter topic.",
)
@click.option(
    "--older-than-ms",
    type=click.IntRange(min=0),
    default=None,
    help="Least age of deleted rows. [default: the least age that is allowed]",
)
@json_option
def purge(*, url: str, name: str, schema: str | None, as_json: bool, **limits: Any) -> int:
    """Delete rows that no check needs any more.

    Rows are kept if they are younger than max(2 x transaction_age_ms_max, dead_letter_retention_ms
    + transaction_age_ms_max, 25 hours). The command may be interrupted and repeated.
    """
    with opened(url) as engine:
        from halfbridge.sql import fence_purge
        from halfbridge.sql.fence_table import FenceTable

        table = FenceTable(engine, name=name, schema=schema)
        try:
            done = fence_purge.purge(table, **limits, progress=_progress(as_json=as_json))
        except ValueError as error:
            raise click.UsageError(str(error), click.get_current_context()) from error
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        click.echo(f"deleted {done.rows} rows of transactions {_before(done.purged_before_ms)}")
    return 0


def _progress(*, as_json: bool) -> Any:
    """Return a function that shows the progress in one line; None without a terminal."""
    if as_json or not sys.stderr.isatty():
        return None
    return lambda rows: click.echo(f"\r{rows} rows deleted", err=True, nl=False)


def _before(at_ms: int | None) -> str:
    return "nothing yet" if at_ms is None else f"born before {_when(at_ms)}"


def _when(at_ms: int | None) -> str:
    if at_ms is None:
        return "none"
    return datetime.fromtimestamp(at_ms / MS_PER_S, timezone.utc).isoformat(timespec="seconds")
