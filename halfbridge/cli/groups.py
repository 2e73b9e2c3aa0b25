"""`halfbridge groups`: list producer groups, who answers their checks, and undecided counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli.options import JUDGING, connected, json_option, settings_options, time_option
from halfbridge.cli.table import table
from halfbridge.logs import one_line

if TYPE_CHECKING:
    from halfbridge.checker.admin.transactions.groups import GroupFacts, Groups

_HEADINGS = (
    *("GROUP", "MEMBERS", "UNDECIDED", "OLDEST", "COMMIT", "ROLLBACK", "UNKNOWN", "DISCARD"),
    "LAST ANSWER",
)
_since_option = time_option("since", "Count ops from here on.", default="10m")


@click.group()
def groups() -> None:
    """See producer groups: who answers checks, and what is undecided."""


@groups.command(name="list")
@_since_option
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def list_(*, as_json: bool, **values: object) -> int:
    """List producer groups, those with the most undecided transactions first.

    A group is listed if it has a check topic, an undecided transaction, or an op since --since.
    MEMBERS are those that answer checks now. Exit status 1: a pair is stopped, and what is
    undecided in that pair is not known.
    """
    from halfbridge.checker.admin.transactions import plain

    found = _read(values)
    if as_json:
        click.echo(json.dumps(plain.groups(found)))
    else:
        for line in table(_HEADINGS, [_row(each, found.at_ms) for each in found.groups]):
            click.echo(line)
        _note_what_is_left_out(found)
    return _status(found)


@groups.command()
@click.argument("group")
@_since_option
@json_option
@settings_options(CheckerConfig, only=JUDGING)
def show(*, group: str, as_json: bool, **values: object) -> int:
    """Show one producer group: members, ops, and why its undecided transactions wait.

    Exit status 1: no such group was seen, or a pair is stopped.
    """
    from halfbridge.checker.admin.transactions import plain

    found = _read(values, only=group)
    if not found.groups:
        raise click.ClickException(
            f"no group {one_line(group)} was seen: it has no check topic, nothing undecided, and no"
            " op since --since"
        )
    (facts,) = found.groups
    if as_json:
        click.echo(json.dumps(plain.group(facts)))
    else:
        _show(facts, found)
        _note_what_is_left_out(found)
    return _status(found)


def _read(values: dict[str, Any], *, only: str = "") -> Groups:
    from halfbridge.checker.admin.transactions.groups import read_groups

    cluster, config = connected(values, judges=True)
    return read_groups(cluster, config.names, since_ms=values["since_ms"], only=only)


def _status(found: Groups) -> int:
    # Imported here: --help does not need the Kafka client.
    from halfbridge.cli.tx_display import show_stopped

    show_stopped(found.stopped)
    return 1 if found.stopped else 0


def _note_what_is_left_out(found: Groups) -> None:
    if not found.is_whole:
        click.echo("only the newest ops since --since were counted", err=True)


def _row(each: GroupFacts, at_ms: int) -> tuple[object, ...]:
    from halfbridge.checker.admin.transactions.explain import span_text

    members: object = "?" if each.members is None else len(each.members)
    return (
        *(each.group, members if each.has_check_topic else "no check topic", each.undecided),
        span_text(each.oldest_undecided_age_ms),
        *(each.ops[kind] for kind in ("COMMIT", "ROLLBACK", "UNKNOWN", "DISCARD")),
        _answer(each, at_ms),
    )


def _answer(each: GroupFacts, at_ms: int) -> str:
    from halfbridge.checker.admin.transactions.explain import span_text

    answer = each.last_answer
    if answer is None:
        return "-"
    ago = "" if answer.at_ms is None else f", {span_text(max(0, at_ms - answer.at_ms))} ago"
    reason = f": {answer.reason}" if answer.reason else ""
    return f"{answer.op} by {answer.actor}{ago}{reason}"


def _show(each: GroupFacts, found: Groups) -> None:
    from halfbridge.checker.admin.transactions.explain import span_text, time_text

    members = "not known" if each.members is None else ", ".join(each.members) or "none"
    oldest = "-"
    if each.oldest_undecided_id is not None:
        oldest = f"{each.oldest_undecided_id}, {span_text(each.oldest_undecided_age_ms)} old"
    waits = ", ".join(f"{count} {wait}" for wait, count in each.waits.items())
    ops = ", ".join(f"{count} {kind}" for kind, count in each.ops.items())
    for name, text in (
        ("group", each.group),
        ("check topic", "yes" if each.has_check_topic else "no: nobody can be asked"),
        ("members", members),
        ("undecided", f"{each.undecided}, {each.undecided_bytes} bytes"),
        ("they wait", waits or "-"),
        ("oldest", oldest),
        ("real topics", ", ".join(each.real_topics) or "-"),
        ("ops", f"{ops}, since {time_text(found.since_ms)}"),
        ("last answer", _answer(each, found.at_ms)),
    ):
        click.echo(f"{name:<12} {one_line(text)}")
