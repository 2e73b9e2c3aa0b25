"""`halfbridge dead`: look at dead letters, and bring them back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.dead_options import (
    changing,
    choice_of,
    letters_of,
    naming,
    order_of,
    progress,
    selecting,
    unverified,
    wanted_of,
)
from halfbridge.cli.dead_text import print_life, print_purge, print_table, print_told
from halfbridge.cli.operators import confirm
from halfbridge.cli.options import JUDGING, json_option, settings_options
from halfbridge.cli.schema_registry import SchemaRegistry, registry_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.dead.purging import Purged
    from halfbridge.checker.admin.dead.redoing import Told

_BATCH = 100  # dead letters at a time whose records are read and shown, to bound memory
_connection = settings_options(CheckerConfig, only=JUDGING)


@click.group()
def dead() -> None:
    """List, show, resume, redeliver, export and purge dead letters."""


@dead.command(name="list")
@selecting
@click.option("--done", is_flag=True, help="Also transactions whose letters are all dealt with.")
@json_option
@_connection
def list_(**values: Any) -> int:
    """List dead letters by transaction, in the order of the decisions.

    REMEDY names the command that helps: resume, redeliver or export.
    """
    from halfbridge.checker.admin.dead.describe import as_json

    letters = letters_of(values)
    found = letters.find(wanted_of(values, is_open=not values["done"]))
    shown, topic = found[: values["limit"]], letters.topic.found
    if values["as_json"]:
        told = {"transactions": [as_json(each) for each in shown], "more": len(found) - len(shown)}
        click.echo(json.dumps({**told, "strange_records": topic.strange}))
        return 0
    print_table(shown)
    _note_more(len(found), values["limit"])
    if topic.left_out:
        click.echo(f"note: {topic.left_out} dead letters were left out: purge first", err=True)
    if topic.strange:
        click.echo(f"note: {topic.strange} records are no dead letters", err=True)
    return 0


@dead.command()
@click.argument("transaction", metavar="ID")
@click.option("--payload", is_flag=True, help="Show keys, values and headers too.")
@registry_option
@json_option
@_connection
def show(**values: Any) -> int:
    """Show the dead letters of a transaction, with what was done about each."""
    from halfbridge.checker.admin.dead.describe import as_json, exported

    url = values["schema_registry"]
    registry = None if url is None else SchemaRegistry(url)
    letters = letters_of(values)
    found = letters.find(wanted_of({"names": (values["transaction"],)}))
    if not found:
        raise click.ClickException(f"no dead letter of {values['transaction']}; see `dead list`")
    bodies = [letters.look(each.letters) if values["payload"] else [] for each in found]
    if values["as_json"]:
        lives = [
            {
                **as_json(each),
                **({"payloads": [exported(each, one) for one in some]} if some else {}),
            }
            for each, some in zip(found, bodies, strict=True)
        ]
        click.echo(json.dumps({"id": values["transaction"], "lives": lives}))
        return 0
    for each, some in zip(found, bodies, strict=True):
        print_life(each, some, registry)
    return 0


@dead.command()
@naming
@changing
@unverified
@json_option
@_connection
def resume(**values: Any) -> int:
    """Have undecided transactions asked about again that were given up.

    Of CHECK_TIMES, AGE and OPERATOR: the half messages are stored again, with the next resume
    count, and the producer group is asked from the start.
    """
    return _redo(values, "resume")


@dead.command()
@naming
@changing
@unverified
@click.option(
    "--message",
    "messages",
    type=click.IntRange(0, 999),
    multiple=True,
    metavar="N",
    help="Only the message with this index; the others stay open. May be repeated.",
)
@click.option(
    "--with",
    "given",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Messages as `dead export` writes them: in place of dead letters, or of what is missing.",
)
@click.option("--accept-partial", is_flag=True, help="INCOMPLETE: deliver what is there.")
@click.option(
    "--accept-duplicates", is_flag=True, help="LATE: deliver what may have been delivered."
)
@json_option
@_connection
def redeliver(**values: Any) -> int:
    """Have transactions delivered that were committed and refused.

    Of UNDELIVERABLE, NOT_ALLOWED, INCOMPLETE, EXTRA and LATE: the half messages are stored again,
    with the next resume count and an operator's COMMIT. The daemon delivers them, each once,
    however often this command is repeated.
    """
    return _redo(values, "redeliver")


@dead.command()
@naming
@selecting
@click.option("--open", "is_open", is_flag=True, help="Only what is not dealt with.")
@_connection
def export(**values: Any) -> int:
    """Write dead letters with their payloads to standard output, one JSON object a line."""
    from halfbridge.checker.admin.dead.describe import exported

    letters = letters_of(values)
    every = letters.find(wanted_of(values, is_open=values["is_open"]))
    found = every[: values["limit"]]
    for each in found:
        for at in range(0, len(each.letters), _BATCH):
            for one in letters.look(each.letters[at : at + _BATCH]):
                click.echo(json.dumps(exported(each, one)))
    click.echo(f"{len(found)} transactions exported", err=True)
    _note_more(len(every), values["limit"])
    return 0


@dead.command()
@naming
@changing
@json_option
@_connection
def purge(**values: Any) -> int:
    """Delete dead letters that are dealt with, from the start of each partition.

    With ids, or with filters and --all, open dead letters are given up first: they are marked, and
    never resumed or redelivered.
    """
    from halfbridge.checker.admin.dead.purging import purge as purge_letters

    letters, order = letters_of(values), order_of(values)
    matching = len(letters.find(order.wanted))
    has_names = bool(values["names"]) or values["is_all"]

    def agrees(meant: Purged) -> bool:
        print_purge(meant, is_done=False, err=True)
        return confirm("do this?", yes=values["yes"])

    done = purge_letters(letters, order, agrees, gives_up=has_names)
    if values["as_json"]:
        click.echo(json.dumps(_purge_json(done, dry_run=order.dry_run)))
    elif done is None:
        click.echo("nothing was done")
    else:
        print_purge(done, is_done=not order.dry_run, err=False)
    if has_names:
        _note_more(matching, order.limit)
    return 0 if done is not None else 1


def _redo(values: dict[str, Any], remedy: str) -> int:
    from halfbridge.checker.admin.dead.describe import told_json
    from halfbridge.checker.admin.dead.redoing import redo

    if not values["names"] and not values["is_all"]:
        raise click.UsageError("give ids, or --all", click.get_current_context())
    letters, order, choice = letters_of(values), order_of(values), choice_of(values, remedy)
    matching = len(letters.find(order.wanted))
    asked: list[bool] = []

    def agrees(meant: Sequence[Told]) -> bool:
        print_told(meant, "would be ", err=True)
        asked.append(confirm(f"{remedy} these transactions?", yes=values["yes"]))
        return asked[-1]

    told = redo(letters, order, choice, agrees)
    is_done = asked == [True]
    refused = [each for each in told if each.refusal]
    if values["as_json"]:
        able = [told_json(each) for each in told if not each.refusal]
        name = "done" if is_done else "would_be_done"
        click.echo(json.dumps({name: able, "refused": [told_json(each) for each in refused]}))
    else:
        print_told(told, "" if is_done else "would be ", err=False)
    _note_more(matching, order.limit)
    missing = set(values["names"]) - {each.transaction.name for each in told}
    for each in sorted(missing):
        click.echo(f"{each}: no open dead letter", err=True)
    return 1 if refused or missing or (asked and not is_done) else 0


def _note_more(matching: int, limit: int) -> None:
    """Say how many matching transactions --limit has left out."""
    if matching > limit:
        click.echo(f"note: {matching - limit} more; see --limit", err=True)


def _purge_json(done: Purged | None, *, dry_run: bool) -> dict[str, Any]:
    if done is None:
        return {"is_done": False}
    return {
        "is_done": not dry_run,
        "given_up": [each.name for each in done.given_up],
        "deleted_below": {str(partition): at for partition, at in done.upto.items()},
        "dead_letters": done.letters,
    }


__all__ = ["dead", "progress"]
