"""`halfbridge checker`: run the daemon, or reset one of its partitions."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge import environment
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import load_policy
from halfbridge.checker.signatures import daemon_signatures
from halfbridge.cli.options import (
    JUDGING,
    connected,
    json_option,
    load_settings,
    require,
    settings_options,
)
from halfbridge.logs import one_line

if TYPE_CHECKING:
    from halfbridge.checker.admin.init import NewOffsets


@click.group()
def checker() -> None:
    """Run the daemon, or reset one of its partitions."""


@checker.command()
@settings_options(CheckerConfig)
def run(**values: object) -> int:
    """Run the daemon until SIGTERM or Ctrl-C.

    Every setting is a flag, an environment variable and a key of the TOML file. Flags override the
    environment, and the environment overrides the file.
    """
    from halfbridge.checker.process import supervisor

    config = load_settings(CheckerConfig, values)
    # Each worker reads these files again. A mistake should end the command, not N workers.
    load_policy(config.policy_file, names=config.names)
    daemon_signatures(config)
    if not config.admin_port:
        return supervisor.run(config, environ=environment.variables())
    require("the web server", "starlette", "uvicorn", "jinja2")
    from halfbridge.web.server import server_beside

    with server_beside(config):
        return supervisor.run(config, environ=environment.variables())


@checker.command()
@click.option("--partition", type=click.IntRange(0), required=True, help="The stopped partition.")
@click.option("--from-half-offset", type=click.IntRange(0), help="Read from here, not log start.")
@click.option("--from-op-offset", type=click.IntRange(0), help="Read from here, not log start.")
@click.option(
    "--accept-duplicates",
    is_flag=True,
    help="If no offset is exact: deliver some transactions twice, and none never.",
)
@click.option(
    "--skip-undelivered",
    is_flag=True,
    help="If no offset is exact: never deliver some transactions, and none twice.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be committed; commit nothing.")
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def init(**values: Any) -> int:
    """Reset a stopped partition, so that it continues where it ended.

    The command reads the half and op partition, the real topics and the dead-letter topic to find
    out what was delivered, and commits the offsets after that. All workers must be stopped.
    """
    from halfbridge.checker.admin.init import Choice, InitRequest, init_partition

    twice, never = values["accept_duplicates"], values["skip_undelivered"]
    if twice and never:
        raise click.UsageError(
            "choose one of --accept-duplicates and --skip-undelivered", click.get_current_context()
        )
    choice = Choice.SKIP_UNDELIVERED if never else Choice.REFUSE
    request = InitRequest(
        partition=values["partition"],
        half_start=-1 if values["from_half_offset"] is None else values["from_half_offset"],
        op_start=-1 if values["from_op_offset"] is None else values["from_op_offset"],
        choice=Choice.ACCEPT_DUPLICATES if twice else choice,
        dry_run=values["dry_run"],
    )
    cluster, config = connected(values, judges=True)
    found = init_partition(cluster, config.names, request)
    show_offsets(found, values)
    return 0


def show_offsets(found: NewOffsets, values: dict[str, Any]) -> None:
    """Print the result of `init`. Ids may be any text, because clients wrote them."""
    if values["as_json"]:
        committed = not values["dry_run"]
        body = {"committed": committed, "exact": found.exact, **dataclasses.asdict(found)}
        click.echo(json.dumps(body))
        return
    progress = found.progress
    click.echo(
        f"partition {values['partition']}: H={progress.half} O={progress.op}"
        f" R={progress.rebuild_to} T={progress.ops_from} P={progress.position}"
    )
    for word, ids in (
        ("applied before", found.applied),
        ("still to apply", found.to_apply),
        ("applied twice", found.twice),
        ("never applied", found.never),
        ("uncertain", found.uncertain),
    ):
        shown = f": {', '.join(map(one_line, ids))}" if ids and word != "applied before" else ""
        click.echo(f"{word:<15} {len(ids)}{shown}")
    click.echo("dry run: nothing committed" if values["dry_run"] else "committed")
