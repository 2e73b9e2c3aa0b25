"""What `halfbridge dead` prints for people: text from records stands in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from halfbridge.checker.admin.words import counted, shown_time
from halfbridge.cli.table import table
from halfbridge.logs import bytes_text, one_line
from halfbridge.serde.headers import CARRIED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.admin.dead.evidence import Looked
    from halfbridge.checker.admin.dead.purging import Purged
    from halfbridge.checker.admin.dead.redoing import Told
    from halfbridge.checker.admin.dead.transactions import DeadTransaction
    from halfbridge.cli.schema_registry import SchemaRegistry

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
    each: DeadTransaction, looked: Sequence[Looked], registry: SchemaRegistry | None = None
) -> None:
    """Print the letters of one life of a transaction, with the payloads that were looked at."""
    head = (
        f"{one_line(each.name)} life {each.key.resume_count} of {one_line(each.key.producer_group)}"
    )
    head = head if each.key.transaction_id else one_line(each.name)
    click.echo(f"{head}: {each.state}; remedy: {each.remedy.value}")
    bodies = {one.letter.place: one for one in looked}
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


def _print_body(looked: Looked, registry: SchemaRegistry | None) -> None:
    click.echo(f"    standing {looked.standing.name}")
    if looked.body is None:
        click.echo("    payload  deleted with the half topic's retention")
        return
    for name, data in (("key", looked.body.key), ("value", looked.body.value)):
        decoded = None if registry is None else registry.text_of(data)
        click.echo(f"    {name:<8} {bytes_text(data) if decoded is None else one_line(decoded)}")
    for name, value in looked.body.headers:
        if name not in CARRIED:
            click.echo(f"    header   {one_line(name)}: {bytes_text(value)}")


def print_told(told: Sequence[Told], verb: str, *, err: bool) -> None:
    """Print what was done about transactions, or would be."""
    able = [each for each in told if not each.refusal]
    refused = [each for each in told if each.refusal]
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
    """Print what a purge did, or would do."""
    prefix = "" if is_done else "would be "
    for each in meant.given_up[:_SHOWN_MAX]:
        reasons = ", ".join(reason.value for reason in each.reasons)
        count = len(each.open_letters)
        told = f"{one_line(each.name)}, {counted(count, 'dead letter')}, {reasons}"
        click.echo(f"{prefix}given up: {told}", err=err)
    if len(meant.given_up) > _SHOWN_MAX:
        click.echo(f"{prefix}given up: {len(meant.given_up) - _SHOWN_MAX} more", err=err)
    for partition, at in sorted(meant.upto.items()):
        told = f"records of partition {partition} below offset {at}"
        click.echo(f"{prefix}deleted: {told}", err=err)
    click.echo(f"{counted(meant.letters, 'dead letter')} {prefix}deleted", err=err)
