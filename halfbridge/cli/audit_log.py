"""`halfbridge audit-log`: what operators did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.admin.words import shown_time
from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import (
    CONNECTION,
    connected,
    json_option,
    limit_option,
    settings_options,
    time_option,
)
from halfbridge.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.operator_log import KeptAction

_LIMIT_MAX = 100_000  # entries; all of them are in memory at once


@click.group(name="audit-log")
def audit_log() -> None:
    """Show what operators did."""


@audit_log.command(name="list")
@time_option("since", "Such as 2h, 7d, or a date.")
@click.option(
    "--action", default="", metavar="TEXT", help="Such as `tx commit`, or `tx` for all of tx."
)
@click.option("--actor", default="", metavar="TEXT", help="Who acted.")
@click.option("--subject", default="", metavar="TEXT", help="Such as a transaction id.")
@limit_option(_LIMIT_MAX, 100, "The newest.")
@json_option
@settings_options(CheckerConfig, only=CONNECTION)
def list_(**values: Any) -> int:
    """List what operators did, the newest last.

    An action has two records: INTENDED, which was stored before the action took effect, and how
    the action ended. An action that has no second record was cut off; repeat its command.
    """
    from halfbridge.checker.admin.operator_log import ActionFilter, action_json, read

    cluster, config = connected(values)
    wanted = ActionFilter(
        since_ms=values["since_ms"] or 0,
        action=values["action"],
        who=values["actor"],
        subject=values["subject"],
        limit=values["limit"],
    )
    found = read(cluster, config.names, wanted, on_left_out=_print_left_out)
    if values["as_json"]:
        click.echo(json.dumps({"actions": [action_json(each) for each in found]}))
    else:
        _show(found)
    return 0


def _print_left_out(count: int) -> None:
    click.echo(f"note: {count} older records were not read", err=True)


def _show(found: Sequence[KeptAction]) -> None:
    for kept in found:
        time = shown_time(kept.append_ms)
        if kept.action is None:
            click.echo(f"{time}  offset {kept.offset} cannot be read: {one_line(kept.problem)}")
            continue
        each = kept.action
        words = [each.outcome.value, each.who, each.action, each.subject]
        click.echo("  ".join([time, f"{words[0]:<8}", *map(one_line, words[1:])]))
        for name, text in (("why", each.why), ("before", each.before), ("after", each.after)):
            if text:
                click.echo(f"{'':22}{name:<7} {one_line(text)}")
    if not found:
        click.echo("no actions")
