"""`halfbridge relay run --table`: relay the inserts into a user's table from the database's log."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfbridge.cli.database import opened
from halfbridge.cli.relay_process import run_until_signal, started_producer
from halfbridge.sql.bounds import CHECK_BOUNDS, RELAY_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from halfbridge.bridge.config import BridgeConfig

F = TypeVar("F", bound="Callable[..., Any]")
_BEGINNINGS = ("now", "snapshot")


def log_options(command: F) -> F:
    """Add the options of a log subscription. With --table, other options of a relay are unused."""
    options = (
        click.option(
            "--table",
            metavar="NAME",
            help="Relay the inserts into this table of yours, from the database's log, instead of"
            " the local message table.",
        ),
        click.option(
            "--map",
            "map_file",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="With --table: the TOML file that says how a row becomes a message.",
        ),
        click.option(
            "--subscription",
            metavar="NAME",
            help="With --table: the name of the stored position. [default: the table's name]",
        ),
        click.option(
            "--begin-at",
            type=click.Choice(_BEGINNINGS),
            help="With --table: where a subscription without a position begins: with the inserts"
            " that commit from now on, or with all existing rows. Ignored if the subscription has"
            " a position; `relay remove` removes the position.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def run_log(values: dict[str, Any], config: BridgeConfig) -> int:
    """Relay until SIGTERM or Ctrl-C; return the exit status.

    Args:
        values: Values of `log_options`, and url, schema, fence_name, metrics_host, metrics_port.
        config: Config of the producer.

    Raises:
        UsageError: An option is missing.
        BridgeError: As in LogSubscription.run.
    """
    if values["map_file"] is None:
        raise click.UsageError("--table needs --map", click.get_current_context(silent=True))
    with (
        opened(values["url"], bounds=CHECK_BOUNDS) as check_engine,
        opened(values["url"], bounds=RELAY_BOUNDS) as engine,
    ):
        _run(engine, check_engine, values, config)
    return 0


def _run(
    engine: Engine, check_engine: Engine, values: dict[str, Any], config: BridgeConfig
) -> None:
    # Imported here: --help needs neither SQLAlchemy nor the Kafka client.
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.log_subscription.mapping import load_mapping
    from halfbridge.sql.log_subscription.positions import Positions
    from halfbridge.sql.log_subscription.progress import BeginAt
    from halfbridge.sql.log_subscription.service import LogRelayService
    from halfbridge.sql.log_subscription.sources import log_source
    from halfbridge.sql.log_subscription.subscription import LogSubscription

    table, schema = values["table"], values["schema"]
    name = values["subscription"] or table
    mapping = load_mapping(values["map_file"])
    source = log_source(engine, name=name, table=table, schema=schema)
    fence, checking = (
        Fence(each, producer_group=config.producer_group, name=values["fence_name"], schema=schema)
        for each in (engine, check_engine)
    )
    positions = Positions(engine, owner=f"{socket.gethostname()}:{os.getpid()}", schema=schema)
    fence.create()
    positions.create()
    with ExitStack() as stack:
        producer = started_producer(stack, checking, config)
        subscription = LogSubscription(
            producer=producer,
            fence=fence,
            positions=positions,
            source=source,
            mapping=mapping,
            name=name,
            begin_at=BeginAt(values["begin_at"]) if values["begin_at"] else None,
        )
        service = LogRelayService(subscription, source, name=name)
        says = f"relaying inserts into {table} as {name}"
        run_until_signal(stack, service, service.registry, values, says=says)


def remove_log(values: dict[str, Any]) -> int:
    """Remove a subscription, or print what would be removed; return the exit status.

    Args:
        values: Values of the command: url, schema, subscription, yes and as_json.

    Raises:
        LogSubscriptionError: A relay uses the subscription, or the server refuses.
    """
    name = values["subscription"]
    with opened(values["url"]) as engine:
        from halfbridge.sql.log_subscription import removal
        from halfbridge.sql.log_subscription.positions import Positions
        from halfbridge.sql.log_subscription.sources import log_source

        schema = values["schema"]
        source = log_source(engine, name=name, table=name, schema=schema)
        positions = Positions(engine, owner="", schema=schema)
        act = removal.remove if values["yes"] else removal.removal_of
        found = act(positions, source, name)
    if values["as_json"]:
        click.echo(json.dumps({**asdict(found), "removed": values["yes"] and not found.is_empty}))
        return 0
    if found.is_empty:
        click.echo(f"there is no subscription {name}")
        return 0
    click.echo(f"subscription {name}")
    click.echo(f"position     {found.position or 'none'}")
    click.echo(f"group        {found.producer_group or 'none'}")
    click.echo(f"staged       {found.staged} rows of a snapshot that were not sent")
    for each in found.standing:
        click.echo(f"server       {each}")
    if found.decision_open:
        click.echo(f"open         its last COMMIT; a producer of {found.producer_group} answers")
    click.echo("removed" if values["yes"] else "nothing was removed; --yes removes it")
    return 0
