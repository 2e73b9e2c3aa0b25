"""`halfbridge tx`: see undecided transactions, and the life of one transaction."""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import JUDGING, json_option, load_settings, settings_options
from halfbridge.cli.schema_registry import SchemaRegistry, registry_option
from halfbridge.cli.times import moment_ms, span_ms
from halfbridge.cli.tx_decide import commit, rollback
from halfbridge.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.transactions.life import Life

F = TypeVar("F", bound="Callable[..., Any]")

# Rows that `--watch` shows unless --limit says otherwise: a screen.
_WATCH_ROWS = 40
_WATCH_S = 2.0
# Transactions that `tx find` shows: a screen, and what a person can look through.
_FOUND, _FOUND_MAX = 20, 1_000
_PROGRESS_S = 1.0


@click.group()
def tx() -> None:
    """See undecided transactions and the life of one, find them by key, and decide them.

    The commands read the logs. They work beside running daemons and without one, join no group and
    commit no offsets. `commit` and `rollback` decide a transaction; the others change nothing.
    """


tx.add_command(commit)
tx.add_command(rollback)


@tx.command(name="list")
@click.option("--group", default="", metavar="NAME", help="Only of this producer group.")
@click.option("--topic", default="", metavar="NAME", help="Only to this real topic.")
@click.option(
    "--older-than",
    type=span_ms,
    default="0s",
    metavar="SPAN",
    help="Only of this age or more, such as 10m.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only in this half partition. May be repeated.",
)
@click.option("--limit", type=click.IntRange(1), default=None, help="Most rows. [default: all]")
@click.option("--watch", is_flag=True, help="Show the list again and again, until Ctrl-C.")
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def list_command(*, watch: bool, as_json: bool, **values: Any) -> int:
    """List undecided transactions, the oldest first.

    CHECKS is asked/answered. Exit status 1: a pair is stopped, and what is undecided in that pair
    is not known.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.transactions import plain
    from halfbridge.checker.admin.transactions.listing import Filter, list_undecided
    from halfbridge.cli.tx_display import show_list, show_stopped

    config = load_settings(CheckerConfig, values)
    wanted = Filter(
        group=values["group"],
        topic=values["topic"],
        older_than_ms=values["older_than"],
        partitions=values["partitions"] or None,
        limit=values["limit"] or (_WATCH_ROWS if watch and not as_json else None),
    )
    cluster = _cluster(config)
    while True:
        told = _Told("records read")
        with _no_collections():
            found = list_undecided(cluster, config.names, wanted, on_progress=told.count)
        if as_json:
            click.echo(json.dumps(plain.listing(found, with_keys=True)))
        else:
            if watch:
                click.clear()
            show_list(found, wanted)
        show_stopped(found.stopped)
        if not watch:
            return 1 if found.stopped else 0
        sleep(_WATCH_S)


@tx.command(name="find")
@click.option(
    "--key",
    required=True,
    metavar="KEY",
    help="Of a message: as text, as `tx list` prints it, or 0x and hexadecimal digits.",
)
@click.option("--group", default="", metavar="NAME", help="Only of this producer group.")
@click.option("--topic", default="", metavar="NAME", help="Only messages to this real topic.")
@click.option(
    "--since",
    "since_ms",
    type=moment_ms,
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Only messages stored since then: 2h, 7d, or a date.",
)
@click.option(
    "--until",
    "until_ms",
    type=moment_ms,
    default=None,
    metavar="TIME",
    help="Only messages stored before.  [default: now]",
)
@click.option(
    "--limit",
    type=click.IntRange(1, _FOUND_MAX),
    default=_FOUND,
    show_default=True,
    help="Most transactions, the newest ones.",
)
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def find_command(*, as_json: bool, **values: Any) -> int:
    """Find transactions by the key of a message, and say what became of each.

    All half messages since --since are read, and no more than the newest 10,000,000. Exit status 1:
    no transaction was found.
    """
    from halfbridge.checker.admin.transactions import plain
    from halfbridge.checker.admin.transactions.find import Sought, find
    from halfbridge.cli.tx_display import show_found

    config = load_settings(CheckerConfig, values)
    names = ("key", "group", "topic", "since_ms", "until_ms", "limit")
    sought = Sought(**{name: values[name] for name in names})
    with _no_collections():
        found = find(
            _cluster(config), config.names, sought, tell=lambda line: click.echo(line, err=True)
        )
    if as_json:
        click.echo(json.dumps({**plain.found(found), "key": sought.key}))
    show_found(found, sought, only_notes=as_json)
    return 0 if found.hits else 1


def look_up_options(command: F) -> F:
    """Add the argument ID, and the options that say where a transaction is looked for."""
    for option in reversed(
        (
            click.argument("transaction_id", metavar="ID"),
            click.option(
                "--from",
                "from_ms",
                type=moment_ms,
                default=None,
                metavar="TIME",
                help="Look from here on. [default: the time in the id]",
            ),
            click.option(
                "--until",
                "until_ms",
                type=moment_ms,
                default=None,
                metavar="TIME",
                help="Look no further. [default: until it is settled, or to the end]",
            ),
            click.option(
                "--partition",
                type=click.IntRange(0),
                default=None,
                help="Look in this half partition only. [default: all]",
            ),
        )
    ):
        command = option(command)
    return command


@tx.command()
@look_up_options
@click.option("--payload", is_flag=True, help="Show keys, values and headers too.")
@registry_option
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def show(*, as_json: bool, schema_registry: str | None, **values: Any) -> int:
    """Show the whole life of one transaction, in order, with times and places.

    Exit status 1: no record of it was found.
    """
    from halfbridge.checker.admin.transactions import plain
    from halfbridge.cli.tx_display import show_life

    registry = None if schema_registry is None else SchemaRegistry(schema_registry)
    life = _life(values)
    if as_json:
        body = plain.life(life)
        for each, event in zip(life.events, body["events"], strict=True):
            if registry is not None and each.payload is not None:
                decoded = {"key": each.payload.key, "value": each.payload.value}
                texts = {name: registry.text_of(data) for name, data in decoded.items()}
                event["payload"]["decoded"] = texts
        click.echo(json.dumps(body))
    else:
        show_life(life, registry)
    return _status(life)


@tx.command()
@look_up_options
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def explain(*, as_json: bool, **values: Any) -> int:
    """Say why a transaction is where it is, what happens next, and what can be done.

    Exit status 1: no record of it was found.
    """
    from halfbridge.checker.admin.transactions.explain import explain as sentences

    life = _life({**values, "payload": False})
    told = sentences(life)
    if as_json:
        click.echo(json.dumps({"id": life.id, "state": life.state, "sentences": told}))
    else:
        for sentence in told:
            click.echo(one_line(sentence))
    return _status(life)


def _life(values: dict[str, Any]) -> Life:
    from halfbridge.checker.admin.transactions.look_up import Wanted, look_up

    config = load_settings(CheckerConfig, values)
    wanted = Wanted(
        id=values["transaction_id"],
        from_ms=values["from_ms"],
        until_ms=values["until_ms"],
        partition=values["partition"],
        with_payload=values["payload"],
    )
    with _no_collections():
        return look_up(
            _cluster(config),
            config.names,
            wanted,
            tell=lambda line: click.echo(line, err=True),
        )


def _status(life: Life) -> int:
    from halfbridge.checker.admin.transactions.life import NOT_FOUND

    if life.state != NOT_FOUND:
        return 0
    click.echo(
        f"no transaction {one_line(life.id)} was found: check the id and --topic-prefix, or give"
        " --from TIME",
        err=True,
    )
    return 1


def _cluster(config: CheckerConfig) -> Cluster:
    from halfbridge.checker.admin.judging import judging_cluster

    return judging_cluster(config)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Have the garbage collector rest: it would walk 100,000 entries again and again.

    The process ends with the command, so what is not collected is let go soon.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- progress ---------------------------------------------------------------------------------


class _Told:
    """Tells a number on standard error, once a second.

    Args:
        what: What the number counts.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._at = monotonic()

    def count(self, number: int) -> None:
        """Take the number."""
        if monotonic() - self._at > _PROGRESS_S:
            self._at = monotonic()
            click.echo(f"{number} {self._what}", err=True)
