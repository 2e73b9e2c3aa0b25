"""Options of `halfbridge dead`, and what they mean for its library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.operators import acting, who
from halfbridge.cli.options import load_settings
from halfbridge.cli.times import moment_ms
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import DeadReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.admin.dead.actions import DeadLetters, Order
    from halfbridge.checker.admin.dead.choice import Choice, Given
    from halfbridge.checker.admin.dead.transactions import Wanted

_LIMIT_MAX = 200_000  # transactions; each is kept in memory with its dead letters
_LIMIT = 1_000  # transactions: what a person can look through before --yes
_RATE = 100.0  # a second: a consumer group that failed on them before is not flooded
# Messages of one --with file, of up to 8 MiB in all for each transaction.
_GIVEN_MAX = 10_000
_GIVEN_BYTES_MAX = 256 * 1024 * 1024


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select transactions by what they are."""
    return _filters("--reason")(command)


def changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that change something; a letter's reason is --dead-reason."""
    options: list[Any] = [
        _filters("--dead-reason"),
        click.option("--all", "is_all", is_flag=True, help="All that the filters select."),
        click.option(
            "--rate",
            type=click.FloatRange(min=0.1),
            default=_RATE,
            show_default=True,
            help="Most transactions a second.",
        ),
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
        acting,
    ]
    for option in reversed(options):
        command = option(command)
    return command


unverified = click.option(
    "--accept-unverified",
    is_flag=True,
    help="Also dead letters whose half record or op retention has deleted.",
)
naming = click.argument("names", metavar="[ID]...", nargs=-1)


def _filters(reason_flag: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    options = [
        click.option(
            "--group", "groups", multiple=True, metavar="NAME", help="Of this producer group."
        ),
        click.option(
            "--topic", "topics", multiple=True, metavar="NAME", help="To this real topic."
        ),
        click.option(
            reason_flag,
            "reasons",
            multiple=True,
            type=click.Choice([each.value for each in DeadReason]),
            help="With such a dead letter.",
        ),
        click.option(
            "--since",
            "since_ms",
            type=moment_ms,
            default=None,
            metavar="TIME",
            help="Stored since then: 2h, 7d, or a date.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(1, _LIMIT_MAX),
            default=_LIMIT,
            show_default=True,
            help="Most transactions, those first that were decided first.",
        ),
    ]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def letters_of(values: dict[str, Any]) -> DeadLetters:
    """Return the dead letters of the installation that the options name."""
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.dead.actions import DeadLetters
    from halfbridge.checker.admin.judging import judging_cluster

    config = load_settings(CheckerConfig, values)
    cluster = judging_cluster(config)
    return DeadLetters(cluster, config.names, progress)


def wanted_of(values: dict[str, Any], *, is_open: bool = False) -> Wanted:
    """Return which transactions the options name."""
    from halfbridge.checker.admin.dead.transactions import Wanted

    return Wanted(
        ids=frozenset(values.get("names", ())),
        groups=frozenset(values.get("groups", ())),
        topics=frozenset(values.get("topics", ())),
        reasons=frozenset(DeadReason(each) for each in values.get("reasons", ())),
        since_ms=values.get("since_ms"),
        is_open=is_open,
    )


def order_of(values: dict[str, Any]) -> Order:
    """Return what the options order."""
    from halfbridge.checker.admin.dead.actions import Order

    return Order(
        wanted=wanted_of(values, is_open=True),
        limit=values["limit"],
        rate=values["rate"],
        who=who(values),
        why=values["reason"],
        dry_run=values["dry_run"],
    )


def choice_of(values: dict[str, Any], remedy: str) -> Choice:
    """Return what the operator chose.

    Raises:
        UsageError: --message without exactly one id, or a file that cannot be read.
    """
    from halfbridge.checker.admin.dead.choice import Choice
    from halfbridge.checker.admin.dead.transactions import Remedy

    messages = frozenset(values.get("messages", ()))
    if messages and (len(values["names"]) != 1 or values["is_all"]):
        raise click.UsageError("--message needs exactly one ID", click.get_current_context())
    return Choice(
        remedy=Remedy(remedy),
        messages=messages,
        given=_given(values.get("given")),
        accept_partial=values.get("accept_partial", False),
        accept_duplicates=values.get("accept_duplicates", False),
        accept_unverified=values["accept_unverified"],
    )


def progress(line: str) -> None:
    """Show a line about the progress where a person looks."""
    if sys.stderr.isatty():
        click.echo(line, err=True)


def _given(file: Any) -> dict[tuple[str, int], Given]:
    from halfbridge.checker.admin.dead.describe import LINE_CHARS_MAX, given

    found: dict[tuple[str, int], Given] = {}
    size = number = 0
    while file is not None and (line := file.readline(LINE_CHARS_MAX + 1)):
        number += 1
        size += len(line)
        if not line.strip():
            continue
        try:
            identity, message = given(line)
        except DecodeError as error:
            raise _refused(f"line {number}: {error}") from error
        if identity in found:
            raise _refused(f"line {number}: message {identity[1]} of {identity[0]} stands twice")
        found[identity] = message
        if len(found) > _GIVEN_MAX or size > _GIVEN_BYTES_MAX:
            raise _refused(f"more than {_GIVEN_MAX} messages or {_GIVEN_BYTES_MAX} bytes")
    return found


def _refused(text: str) -> click.UsageError:
    return click.UsageError(f"--with: {text}", click.get_current_context())
