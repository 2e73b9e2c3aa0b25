"""`halfbridge dead`: list dead letters, resume or redeliver them, export and purge."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.admin.words import counted, shown_time
from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import (
    JUDGING,
    acting,
    confirm,
    connected,
    json_option,
    limit_option,
    settings_options,
    time_option,
    together,
    who,
)
from halfbridge.cli.schema_registry import PayloadTexts, echo_payload, registry_option
from halfbridge.cli.table import table
from halfbridge.logs import bytes_text, one_line
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import CARRIED
from halfbridge.serde.records import DeadReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.admin.dead.letters import (
        Choice,
        DeadTransaction,
        ExaminedLetter,
        ReplacementMessage,
        Wanted,
    )
    from halfbridge.checker.admin.dead.redoing import Change, DeadLetters, Order, Purged

_BATCH = 100  # dead letters at a time whose records are read and shown: 100 MiB at 1 MiB each
_connection = settings_options(CheckerConfig, only=JUDGING)


@click.group()
def dead() -> None:
    """List, show, resume, redeliver, export and purge dead letters."""


_LIMIT_MAX = 200_000  # transactions; each is kept in memory with its dead letters


_LIMIT = 1_000  # transactions: a list that a person can check before --yes


def _filters(reason_flag: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return together(
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
        time_option("since", "Stored since then: 2h, 7d, or a date."),
        limit_option(_LIMIT_MAX, _LIMIT, "Most transactions, those first that were decided first."),
    )


selecting = _filters("--reason")


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
    shown = letters.first(wanted_of(values, is_open=not values["done"]), values["limit"])
    topic = letters.topic.found
    if values["as_json"]:
        body = {"transactions": [as_json(each) for each in shown], "more": letters.left_out}
        click.echo(json.dumps({**body, "unrecognized_records": topic.unrecognized}))
        return 0
    print_table(shown)
    _note_left_out(letters)
    if topic.left_out:
        click.echo(f"note: {topic.left_out} dead letters were left out: purge first", err=True)
    if topic.unrecognized:
        click.echo(f"note: {topic.unrecognized} records are no dead letters", err=True)
    return 0


@dead.command()
@click.argument("transaction", metavar="ID")
@click.option("--payload", is_flag=True, help="Show keys, values and headers too.")
@registry_option
@json_option
@_connection
def show(**values: Any) -> int:
    """Show the dead letters of a transaction, with the state of each."""
    from halfbridge.checker.admin.dead.describe import as_json, exported

    url = values["schema_registry"]
    registry = None if url is None else PayloadTexts(url)
    letters = letters_of(values)
    found = letters.find(wanted_of({"names": (values["transaction"],)}))
    if not found:
        raise click.ClickException(f"no dead letter of {values['transaction']}; see `dead list`")
    bodies = [letters.examine(each.letters) if values["payload"] else [] for each in found]
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


_RATE = 100.0  # a second: a consumer group that failed on them before is not flooded
naming = click.argument("names", metavar="[ID]...", nargs=-1)
unverified = click.option(
    "--accept-unverified",
    is_flag=True,
    help="Also dead letters whose half record or op retention has deleted.",
)


# Options of commands that change something; --reason is the operator's.
changing = together(
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
)


@dead.command()
@naming
@changing
@unverified
@json_option
@_connection
def resume(**values: object) -> int:
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
def redeliver(**values: object) -> int:
    """Have transactions delivered that were committed and refused.

    Of UNDELIVERABLE, NOT_ALLOWED, INCOMPLETE, EXTRA and LATE: the half messages are stored again,
    with the next resume count and an operator's COMMIT. The daemon delivers them, each once,
    however often this command is repeated.
    """
    return _redo(values, "redeliver")


@dead.command()
@naming
@selecting
@click.option("--open", "is_open", is_flag=True, help="Only open dead letters.")
@_connection
def export(**values: Any) -> int:
    """Write dead letters with their payloads to standard output, one JSON object a line."""
    from halfbridge.checker.admin.dead.describe import exported

    letters = letters_of(values)
    found = letters.first(wanted_of(values, is_open=values["is_open"]), values["limit"])
    for each in found:
        for at in range(0, len(each.letters), _BATCH):
            for one in letters.examine(each.letters[at : at + _BATCH]):
                click.echo(json.dumps(exported(each, one)))
    click.echo(f"{len(found)} transactions exported", err=True)
    _note_left_out(letters)
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
    from halfbridge.checker.admin.dead.redoing import purge as purge_letters

    letters, order = letters_of(values), order_of(values)
    has_names = bool(values["names"]) or values["is_all"]

    def agrees(meant: Purged) -> bool:
        print_purge(meant, is_done=False, err=True)
        return confirm("do this?", yes=values["yes"])

    done = purge_letters(letters, order, agrees, gives_up=has_names)
    if values["as_json"]:
        click.echo(json.dumps(_purged_letters_json(done, dry_run=order.dry_run)))
    elif done is None:
        click.echo("nothing was done")
    else:
        print_purge(done, is_done=not order.dry_run, err=False)
    if has_names:
        _note_left_out(letters)
    return 0 if done is not None else 1


def _redo(values: dict[str, Any], remedy: str) -> int:
    from halfbridge.checker.admin.dead.describe import change_json
    from halfbridge.checker.admin.dead.redoing import redo

    if not values["names"] and not values["is_all"]:
        raise click.UsageError("give ids, or --all", click.get_current_context())
    letters, order, choice = letters_of(values), order_of(values), choice_of(values, remedy)
    asked: list[bool] = []

    def agrees(meant: Sequence[Change]) -> bool:
        print_changes(meant, "would be ", err=True)
        asked.append(confirm(f"{remedy} these transactions?", yes=values["yes"]))
        return asked[-1]

    changes = redo(letters, order, choice, agrees)
    is_done = asked == [True]
    refused = [each for each in changes if each.refusal]
    if values["as_json"]:
        able = [change_json(each) for each in changes if not each.refusal]
        name = "done" if is_done else "would_be_done"
        click.echo(json.dumps({name: able, "refused": [change_json(each) for each in refused]}))
    else:
        print_changes(changes, "" if is_done else "would be ", err=False)
    _note_left_out(letters)
    missing = set(values["names"]) - {each.transaction.name for each in changes}
    for each in sorted(missing):
        click.echo(f"{each}: no open dead letter", err=True)
    return 1 if refused or missing or (asked and not is_done) else 0


def _note_left_out(letters: DeadLetters) -> None:
    if letters.left_out:
        click.echo(f"note: {letters.left_out} more; see --limit", err=True)


def _purged_letters_json(done: Purged | None, *, dry_run: bool) -> dict[str, Any]:
    if done is None:
        return {"is_done": False}
    return {
        "is_done": not dry_run,
        "given_up": [each.name for each in done.given_up],
        "deleted_below": {str(partition): at for partition, at in done.upto.items()},
        "dead_letters": done.letters,
    }


# Messages of one --with file, of up to 8 MiB in all for each transaction.
_GIVEN_MAX = 10_000
_GIVEN_BYTES_MAX = 256 * 1024 * 1024  # a file is held in memory while it is checked


def letters_of(values: dict[str, Any]) -> DeadLetters:
    """Return the dead letters of the installation that the options name."""
    from halfbridge.checker.admin.dead.redoing import DeadLetters

    cluster, config = connected(values, judges=True)
    return DeadLetters(cluster, config.names, progress)


def wanted_of(values: dict[str, Any], *, is_open: bool = False) -> Wanted:
    """Return which transactions the options name."""
    from halfbridge.checker.admin.dead.letters import Wanted

    return Wanted(
        ids=frozenset(values.get("names", ())),
        groups=frozenset(values.get("groups", ())),
        topics=frozenset(values.get("topics", ())),
        reasons=frozenset(DeadReason(each) for each in values.get("reasons", ())),
        since_ms=values.get("since_ms"),
        is_open=is_open,
    )


def order_of(values: dict[str, Any]) -> Order:
    """Return the order that the options give."""
    from halfbridge.checker.admin.dead.redoing import Order

    return Order(
        wanted=wanted_of(values, is_open=True),
        limit=values["limit"],
        rate=values["rate"],
        who=who(values),
        why=values["reason"],
        dry_run=values["dry_run"],
    )


def choice_of(values: dict[str, Any], remedy: str) -> Choice:
    """Return the operator's choice."""
    from halfbridge.checker.admin.dead.letters import Choice, Remedy

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
    """Show a line of progress on a terminal."""
    if sys.stderr.isatty():
        click.echo(line, err=True)


def _given(file: Any) -> dict[tuple[str, int], ReplacementMessage]:
    from halfbridge.checker.admin.dead.describe import LINE_CHARS_MAX, given

    found: dict[tuple[str, int], ReplacementMessage] = {}
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
            raise _refused(f"line {number}: message {identity[1]} of {identity[0]} is given twice")
        found[identity] = message
        if len(found) > _GIVEN_MAX or size > _GIVEN_BYTES_MAX:
            raise _refused(f"more than {_GIVEN_MAX} messages or {_GIVEN_BYTES_MAX} bytes")
    return found


def _refused(text: str) -> click.UsageError:
    return click.UsageError(f"--with: {text}", click.get_current_context())


_HEADINGS = ("ID", "STATE", "LIFE", "REMEDY", "MESSAGES", "STORED", "GROUP", "REASONS")
_SHOWN_MAX = 20  # lines of a dry run: a screen; --json has all


def print_table(found: Sequence[DeadTransaction]) -> None:
    """Print one line for each transaction."""
    if not found:
        click.echo("no dead letters")
        return
    rows = [
        (
            each.name,
            each.state,
            each.key.resume_count if each.key.transaction_id else "-",
            each.remedy.value,
            len(each.letters),
            shown_time(each.stored_ms),
            each.key.producer_group if each.key.transaction_id else "-",
            _reasons(each),
        )
        for each in found
    ]
    for line in table(_HEADINGS, rows):
        click.echo(line)


def _reasons(each: DeadTransaction) -> str:
    reasons = ",".join(reason.value for reason in each.reasons)
    return f"{reasons} to {','.join(each.topics) or '-'}"


def print_life(
    each: DeadTransaction,
    examined: Sequence[ExaminedLetter],
    registry: PayloadTexts | None = None,
) -> None:
    """Print the letters of one life of a transaction, with the payloads that were read."""
    head = (
        f"{one_line(each.name)} life {each.key.resume_count} of {one_line(each.key.producer_group)}"
    )
    head = head if each.key.transaction_id else one_line(each.name)
    click.echo(f"{head}: {each.state}; remedy: {each.remedy.value}")
    bodies = {one.letter.place: one for one in examined}
    for letter in each.letters:
        partition, offset = letter.place
        topic = one_line(letter.half.real_topic) if letter.half else "-"
        click.echo(
            f"  message {letter.message_index} to {topic}: {letter.reason.value}, letter"
            f" {partition}:{offset}, stored {shown_time(letter.stored_ms)}"
        )
        if letter.dead.detail:
            click.echo(f"    detail   {one_line(letter.dead.detail)}")
        mark = each.marks.get(letter.place)
        if mark is not None:
            life = f" as life {mark.resume_count}" if mark.resume_count >= 0 else ""
            click.echo(
                f"    {mark.action.value}{life} by {one_line(mark.actor)} at"
                f" {shown_time(mark.timestamp)}: {one_line(mark.reason)}"
            )
        if letter.place in bodies:
            _print_body(bodies[letter.place], registry)


def _print_body(examined: ExaminedLetter, registry: PayloadTexts | None) -> None:
    click.echo(f"    standing {examined.standing.name}")
    if examined.body is None:
        click.echo("    payload  deleted with the half topic's retention")
        return
    for name, data in (("key", examined.body.key), ("value", examined.body.value)):
        echo_payload(f"    {name:<8} ", data, registry)
    for name, value in examined.body.headers:
        if name not in CARRIED:
            click.echo(f"    header   {one_line(name)}: {bytes_text(value)}")


def print_changes(changes: Sequence[Change], verb: str, *, err: bool) -> None:
    """Print the changes to transactions, done or planned."""
    able = [each for each in changes if not each.refusal]
    refused = [each for each in changes if each.refusal]
    write: Callable[[str], None] = lambda line: click.echo(line, err=err)  # noqa: E731  (of one type with the other)
    for each in able[:_SHOWN_MAX]:
        indices = ", ".join(map(str, each.indices[:_SHOWN_MAX]))
        more = ", ..." if len(each.indices) > _SHOWN_MAX else ""
        write(
            f"{one_line(each.transaction.name)} life {each.resume_count}: messages {indices}{more}"
        )
    if len(able) > _SHOWN_MAX:
        write(f"... and {len(able) - _SHOWN_MAX} more")
    for each in refused[:_SHOWN_MAX]:
        write(f"{one_line(each.transaction.name)} refused: {one_line(each.refusal)}")
    write(f"{counted(len(able), 'transaction')} {verb}stored again; {len(refused)} refused")


def print_purge(meant: Purged, *, is_done: bool, err: bool) -> None:
    """Print the effect of a purge, done or planned."""
    prefix = "" if is_done else "would be "
    for each in meant.given_up[:_SHOWN_MAX]:
        reasons = ", ".join(reason.value for reason in each.reasons)
        count = len(each.open_letters)
        line = f"{one_line(each.name)}, {counted(count, 'dead letter')}, {reasons}"
        click.echo(f"{prefix}given up: {line}", err=err)
    if len(meant.given_up) > _SHOWN_MAX:
        click.echo(f"{prefix}given up: {len(meant.given_up) - _SHOWN_MAX} more", err=err)
    for partition, at in sorted(meant.upto.items()):
        line = f"records of partition {partition} below offset {at}"
        click.echo(f"{prefix}deleted: {line}", err=err)
    click.echo(f"{counted(meant.letters, 'dead letter')} {prefix}deleted", err=err)
