"""What `halfbridge dead` prints for people: text from records stands in one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from halfbridge.bridge.log_text import one_line
from halfbridge.cli.times import shown_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.checker.admin.dead.evidence import Looked
    from halfbridge.checker.admin.dead.purging import Purged
    from halfbridge.checker.admin.dead.redoing import Told
    from halfbridge.checker.admin.dead.transactions import DeadTransaction

_SHOWN_MAX = 20
_VALUE_CHARS_MAX = 200


def print_table(found: Sequence[DeadTransaction]) -> None:
    """Print one line for each transaction."""
    if not found:
        click.echo("no dead letters")
        return
    row = "{:<32}  {:<9}  {:<8}  {:<9}  {:>8}  {:<20}  {:<24}  {}"
    click.echo(
        row.format("ID", "STATE", "LIFE", "REMEDY", "MESSAGES", "STORED", "GROUP", "REASONS")
    )
    for each in found:
        reasons = ",".join(reason.value for reason in each.reasons)
        words = (
            one_line(each.name),
            each.state,
            each.key.resume_count if each.key.transaction_id else "-",
            each.remedy.value,
            len(each.letters),
            shown_time(each.stored_ms),
            one_line(each.key.producer_group) if each.key.transaction_id else "-",
            f"{reasons} to {one_line(','.join(each.topics)) or '-'}",
        )
        click.echo(row.format(*words).rstrip())


def print_life(each: DeadTransaction, looked: Sequence[Looked]) -> None:
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
            _print_body(bodies[letter.place])


def _print_body(looked: Looked) -> None:
    click.echo(f"    standing {looked.standing.name}")
    if looked.body is None:
        click.echo("    payload  deleted with the half topic's retention")
        return
    click.echo(f"    key      {_shown(looked.body.key)}")
    click.echo(f"    value    {_shown(looked.body.value)}")
    for name, value in looked.body.headers:
        click.echo(f"    header   {one_line(name)}: {_shown(value)}")


def _shown(data: bytes | None) -> str:
    return "null" if data is None else one_line(repr(data)[1:])[:_VALUE_CHARS_MAX]


def print_told(told: Sequence[Told], verb: str, *, err: bool) -> None:
    """Print what was done about transactions, or would be."""
    able = [each for each in told if not each.refusal]
    refused = [each for each in told if each.refusal]
    write: Callable[[str], None] = lambda line: click.echo(line, err=err)  # noqa: E731
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
    write(f"{len(able)} transactions, which {verb} stored again; {len(refused)} refused")


def print_purge(meant: Purged, *, err: bool) -> None:
    """Print what a purge does."""
    for each in meant.given_up[:_SHOWN_MAX]:
        reasons = ", ".join(reason.value for reason in each.reasons)
        count = len(each.open_letters)
        click.echo(f"given up: {one_line(each.name)}, {count} dead letters, {reasons}", err=err)
    if len(meant.given_up) > _SHOWN_MAX:
        click.echo(f"given up: {len(meant.given_up) - _SHOWN_MAX} more", err=err)
    for partition, at in sorted(meant.upto.items()):
        click.echo(f"deleted: records of partition {partition} below offset {at}", err=err)
    click.echo(f"{meant.letters} dead letters are deleted", err=err)
