"""`halfbridge inbox`: the table in which consumers mark messages as taken."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import (
    database_options,
    json_option,
    load_settings,
    opened,
    settings_options,
)
from halfbridge.serde.units import DAY_MS

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from halfbridge.sql import Inbox

_BROKERS = ("bootstrap_servers", "kafka")
_NO_GROUP = "-"  # `create` and `show` are about all groups

_table_options = database_options("halfbridge_inbox")


@click.group()
def inbox() -> None:
    """Create, show or purge the table in which consumers mark messages as taken."""


@inbox.command()
@_table_options
def create(**values: Any) -> int:
    """Create the table if it does not exist."""
    with opened(values["url"]) as engine:
        made = _inbox(engine, values)
        made.create()
    click.echo(f"table {made.table.fullname} exists")
    return 0


@inbox.command()
@_table_options
@json_option
def show(**values: Any) -> int:
    """Show how many marks each consumer group has, and their age by the database's clock."""
    with opened(values["url"]) as engine:
        groups = _inbox(engine, values).show()
    if values["as_json"]:
        click.echo(json.dumps({"groups": [dataclasses.asdict(each) for each in groups]}))
        return 0
    for each in groups:
        oldest, newest = (age / DAY_MS for age in (each.oldest_ms, each.newest_ms))
        click.echo(
            f"{each.group_id}: {each.count} marks, from {oldest:.2f} to {newest:.2f} days old"
        )
    if not groups:
        click.echo("no marks")
    return 0


@inbox.command()
@_table_options
@click.option("--group-id", required=True, help="The consumer group whose marks are deleted.")
@click.option(
    "--older-than-ms", type=click.IntRange(0), required=True, help="Least age of deleted marks."
)
@click.option(
    "--retention-ms",
    type=click.IntRange(0),
    default=None,
    help="Longest time for which real topics keep a record, if no --topic is given.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="A real topic that the group reads. Its retention is read from the brokers. Give all real"
    " topics of the group; may be repeated.",
)
@json_option
@settings_options(CheckerConfig, only=_BROKERS)
def purge(**values: Any) -> int:
    """Delete a group's old marks; refused if their messages can still be read again."""
    asked = {}
    if values["topics"]:
        config = load_settings(CheckerConfig, values)
        asked = {"bootstrap_servers": config.bootstrap_servers, "kafka": config.kafka}
    with opened(values["url"]) as engine:
        deleted = _inbox(engine, values, values["group_id"]).purge(
            older_than_ms=values["older_than_ms"],
            retention_ms=values["retention_ms"],
            topics=values["topics"],
            **asked,  # type: ignore[arg-type]  # of two types by name
        )
    click.echo(json.dumps({"deleted": deleted}) if values["as_json"] else f"deleted {deleted}")
    return 0


def _inbox(engine: Engine, values: dict[str, Any], group_id: str = _NO_GROUP) -> Inbox:
    from halfbridge.sql import Inbox

    return Inbox(engine, group_id=group_id, name=values["name"], schema=values["schema"])
