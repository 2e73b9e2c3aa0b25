"""`halfbridge transactions`: stop new transactions of all clients, or accept them again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.admin.words import shown_time
from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import (
    CONNECTION,
    acting,
    confirm,
    connected,
    json_option,
    settings_options,
    who,
)
from halfbridge.logs import one_line

if TYPE_CHECKING:
    from halfbridge.serde.settings_topic import TransactionsSwitch

_connection_options = settings_options(CheckerConfig, only=CONNECTION)
# Another operator's switch, set at the same time, holds.
EXIT_OVERRULED = 3


@click.group()
def transactions() -> None:
    """Stop new transactions of all clients, or accept them again."""


@transactions.command()
@acting
@json_option
@_connection_options
def reject(**values: object) -> int:
    """Have clients refuse to begin and to send, with the reason that is given here.

    Running clients follow within 10 s. What is open may be decided, and is checked and delivered.
    """
    return _turn(values, is_rejecting=True)


@transactions.command()
@acting
@json_option
@_connection_options
def accept(**values: object) -> int:
    """Have clients begin transactions again."""
    return _turn(values, is_rejecting=False)


@transactions.command()
@json_option
@_connection_options
def show(**values: object) -> int:
    """Show whether clients refuse to begin transactions, who said so, and why."""
    from halfbridge.checker.admin.operator_log import find_switch

    cluster, config = connected(values)
    switch = find_switch(cluster, config.names)
    if values["as_json"]:
        click.echo(json.dumps(switch._asdict()))
    else:
        click.echo(_line(switch))
    return 0


def _turn(values: dict[str, Any], *, is_rejecting: bool) -> int:
    from halfbridge.checker.admin.appending import appending
    from halfbridge.checker.admin.operator_log import OperatorLog, find_switch, turn_switch

    cluster, config = connected(values)
    click.echo(f"now       {_line(find_switch(cluster, config.names))}", err=True)
    question = (
        "Stop new transactions of all clients?" if is_rejecting else "Accept transactions again?"
    )
    if not confirm(question, yes=values["yes"]):
        raise click.Abort
    with appending(cluster) as appender:
        log = OperatorLog(cluster, config.names, appender, who=who(values))
        turned = turn_switch(
            cluster, config.names, log, appender, is_rejecting=is_rejecting, reason=values["reason"]
        )
    if values["as_json"]:
        body = {"holds": turned.holds, **turned.after._asdict()}
        click.echo(json.dumps(body))
    else:
        click.echo(_line(turned.after))
    if not turned.holds:
        click.echo("another operator set the switch since: the shown value is in force", err=True)
    return 0 if turned.holds else EXIT_OVERRULED


def _line(switch: TransactionsSwitch) -> str:
    word = "rejecting new transactions" if switch.is_rejecting else "accepting transactions"
    if not switch.who:
        return f"{word}: the switch was never set"
    reason = f"{one_line(switch.who)} at {shown_time(switch.at_ms)}: {one_line(switch.reason)}"
    return f"{word}, says {reason}"
