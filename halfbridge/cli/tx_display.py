"""The output of `halfbridge tx` for people."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.admin.decisions import before_text, effect_text, first_text
from halfbridge.checker.admin.real_topics import fix_command
from halfbridge.checker.admin.transactions.explain import span_text, time_text
from halfbridge.checker.admin.words import counted, shown_time
from halfbridge.cli.schema_registry import echo_payload
from halfbridge.cli.table import table
from halfbridge.logs import bytes_text, one_line
from halfbridge.serde.headers import CARRIED
from halfbridge.serde.records import ActionOutcome
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.checker.admin.decisions import Candidates, Decided, DecisionRequest
    from halfbridge.checker.admin.transactions.find import FindQuery, Found, Hit
    from halfbridge.checker.admin.transactions.life import Event, Life
    from halfbridge.checker.admin.transactions.undecided import Filter, Listing, Stopped
    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.cli.schema_registry import PayloadTexts

    Judged = Sequence[tuple[Undecided, str]]

_HEADINGS = (
    *("ID", "AGE", "GROUP", "TOPIC", "CHECKS", "NEXT", "MESSAGES", "BYTES", "PAIR"),
    *("OFFSET", "KEY", "WAITS"),
)
_FOUND_HEADINGS = ("STORED", "ID", "STATE", "GROUP", "TOPIC", "MESSAGE", "OUTCOME")


def show_list(found: Listing, wanted: Filter) -> None:
    """Print undecided transactions as a table."""
    for line in table(_HEADINGS, [_row(each, found.at_ms) for each in found.transactions]):
        click.echo(line)
    shown = len(found.transactions)
    more = f", {shown} of them shown" if shown < found.undecided else ""
    verb = " that matches" if found.undecided == 1 else " that match"
    chosen = verb if wanted.group or wanted.topic or wanted.older_than_ms else ""
    click.echo(f"{counted(found.undecided, 'undecided transaction')}{chosen}{more}")


def show_stopped(stopped: Iterable[Stopped]) -> None:
    """Print on standard error which pairs are left out, why, and what to do."""
    for each in stopped:
        click.echo(
            f"pair {each.partition} is stopped, and what is undecided in it is not known:"
            f" {one_line(each.why)}{each.remedy}",
            err=True,
        )


def _row(each: Undecided, at_ms: int) -> tuple[object, ...]:
    after = "-"
    if each.next_check_at_ms is not None:
        left_ms = each.next_check_at_ms - at_ms
        after = f"in {span_text(left_ms)}" if left_ms > 0 else f"due {span_text(-left_ms)}"
    asked = "?" if each.checks_asked is None else each.checks_asked
    return (
        *(each.id, span_text(each.age_ms), each.producer_group, each.real_topic),
        *(f"{asked}/{each.checks_answered}", after, each.messages, each.bytes),
        *(each.partition, each.offset, bytes_text(each.key), f"{each.wait.value}: {each.why}"),
    )


def show_found(found: Found, sought: FindQuery, *, only_notes: bool = False) -> None:
    """Print what has a key as a table, and on standard error what else an operator should know."""
    key = one_line(sought.key)
    read = f"{counted(found.records, 'half record')} read, since {shown_time(found.read_from_ms)}"
    if found.hits and not only_notes:
        for line in table(_FOUND_HEADINGS, [_found_row(each) for each in found.hits]):
            click.echo(line)
        shown = len(found.hits)
        more = f", the newest {shown} of them shown" if shown < found.total else ""
        click.echo(f"{counted(found.total, 'transaction')} with the key {key}{more} ({read})")
    if not found.hits:
        to = f" of {one_line(sought.group)}" if sought.group else ""
        to += f" to {one_line(sought.topic)}" if sought.topic else ""
        longer = "" if found.unread else "; search further back with --since, such as --since 7d"
        click.echo(f"no transaction{to} with the key {key} was found ({read}){longer}", err=True)
    if found.unread:
        # Rounded up to a whole second, as the text has it: no record is left out between the two.
        until = shown_time(found.read_from_ms + MS_PER_S - 1).replace(" ", "T")
        click.echo(
            f"note: {counted(found.unread, 'older half record')} not read, because of the limit of"
            f" {sought.records_max}: search there with --until {until}",
            err=True,
        )
    if found.unreadable:
        click.echo(
            f"note: {counted(found.unreadable, 'record')} with this key cannot be read, or are not"
            " believed: see halfbridge dead list --reason INVALID",
            err=True,
        )


def _found_row(each: Hit) -> tuple[object, ...]:
    half = each.half
    return (
        *(shown_time(half.at_ms or 0), each.id, each.state, half.producer_group),
        *(half.real_topic, half.message_index, each.outcome),
    )


def show_life(life: Life, registry: PayloadTexts | None = None) -> None:
    """Print the life of a transaction, one event a line; a registry decodes payloads."""
    applied = {None: "", True: ", applied", False: ", not applied yet"}[life.is_applied]
    applied = ", delivery deferred" if life.is_deferred else applied
    click.echo(f"{one_line(life.id)}  {life.state}{applied}")
    if life.partition is not None:
        resumed = f", resume count {life.resume_count}" if life.resume_count else ""
        mode = f", delivery {life.delivery.value}" if life.delivery is not None else ""
        group = one_line(life.producer_group or "-")
        click.echo(f"group {group}, pair {life.partition}{resumed}{mode}")
    rows = [
        (
            time_text(each.at_ms),
            each.kind.value,
            f"{each.topic}[{each.partition}]@{each.offset}",
            _what(each),
        )
        for each in life.events
    ]
    heading, *lines = table(("AT", "EVENT", "WHERE", "WHAT"), rows)
    if lines:
        click.echo(heading)
    for each, line in zip(life.events, lines, strict=True):
        click.echo(line)
        _show_payload(each, registry)
    if life.undecided is not None:
        click.echo(f"waits: {life.undecided.wait.value}: {one_line(life.undecided.why)}")
    if life.delivery_wait is not None:
        click.echo(f"waits: {life.delivery_wait.value}: `halfbridge tx explain` says more")
    for lack in life.lacks:
        click.echo(f"lacks: {one_line(str(lack))}: {one_line(fix_command(lack))}")
    for note in life.notes:
        click.echo(f"note: {one_line(note)}")


def _show_payload(each: Event, registry: PayloadTexts | None) -> None:
    if each.payload is None:
        return
    for name, value in (("key", each.payload.key), ("value", each.payload.value)):
        echo_payload(f"    {name:<6} ", value, registry)
    for name, value in each.payload.headers:
        if name not in CARRIED:
            click.echo(f"    header {one_line(name)}: {bytes_text(value)}")


def _what(each: Event) -> str:
    words = []
    if each.message_index is not None:
        words.append(f"message {each.message_index}")
    if each.real_topic is not None:
        words.append(f"for {each.real_topic}")
    if each.bytes is not None:
        words.append(counted(each.bytes, "byte"))
    if each.check_number is not None:
        attempt = f" attempt {each.attempt}" if each.attempt else ""
        words.append(f"check {each.check_number}{attempt}")
    if each.op is not None:
        words.append(each.op)
    if each.source is not None:
        words.append(f"by {each.source} {each.actor}")
    if each.verdict is not None:
        words.append(each.verdict.value)
    words += [text for text in (each.reason, each.why) if text]
    return ", ".join(words)


# Most transactions that a command with --all shows before it asks: two lines each fill a screen.
_SHOWN_MAX = 20


def show_preview(
    candidates: Candidates, requested: DecisionRequest, judged: Judged, *, has_fence: bool
) -> None:
    """Show on standard error what would happen."""
    for each, refusal in judged[:_SHOWN_MAX]:
        text = f"refused: {one_line(refusal)}" if refusal else f"{one_line(before_text(each))}"
        click.echo(f"{one_line(each.id)}  {text}", err=True)
        if not refusal:
            allowed = f"{requested.kind.value}, if the fence row allows it"
            click.echo(f"    {allowed if has_fence else effect_text(each, requested)}", err=True)
    more = candidates.matching - len(judged[:_SHOWN_MAX])
    if more > 0:
        beyond = candidates.matching - len(judged)
        click.echo(f"and {more} more" + (f", {beyond} beyond --limit" if beyond else ""), err=True)
    for pair in candidates.stopped:
        text = f"pair {pair.partition} is stopped, nothing in it is decided: {one_line(pair.why)}"
        click.echo(text, err=True)


def show_dry_run(
    candidates: Candidates, requested: DecisionRequest, judged: Judged, *, as_json: bool
) -> None:
    """Show what would be decided."""
    if as_json:
        rows = [
            {"id": each.id, "effect": effect_text(each, requested), "refused": refusal or None}
            for each, refusal in judged
        ]
        click.echo(json.dumps({"matching": candidates.matching, "would": rows, "decided": []}))
    else:
        click.echo(f"dry run: {sum(not refusal for _, refusal in judged)} would be decided")


def show_one(decided: Decided, *, as_json: bool) -> None:
    """Show what became of one decision."""
    click.echo(json.dumps(_as_json(decided)) if as_json else _line(decided))


def show_many(
    decided: Sequence[Decided], candidates: Candidates, judged: Judged, *, as_json: bool
) -> None:
    """Show what became of many decisions: for people those that did not win, and the counts."""
    skipped = [{"id": each.id, "refused": refusal} for each, refusal in judged if refusal]
    if as_json:
        body = {"matching": candidates.matching, "decided": [*map(_as_json, decided)]}
        click.echo(json.dumps({**body, "skipped": skipped}))
        return
    for each in decided:
        if each.outcome is not ActionOutcome.DONE:
            click.echo(_line(each))
    counts = Counter(each.outcome.value for each in decided)
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    click.echo(f"{summary or 'nothing decided'}; {len(skipped)} skipped")


def _as_json(each: Decided) -> dict[str, Any]:
    first = each.first
    decision = None
    if first is not None:
        op = first.op
        decision = {
            "decision": op.kind.value,
            "source": op.source.value,
            "actor": op.actor,
            "reason": op.reason,
            "offset": first.offset,
        }
    return {
        "id": each.undecided.id,
        "outcome": each.outcome.value,
        "won": each.outcome is ActionOutcome.DONE,
        "partition": each.undecided.partition,
        "offset": each.offset,
        "first_decision": decision,
        "detail": each.detail or None,
    }


def _line(each: Decided) -> str:
    name, detail = one_line(each.undecided.id), one_line(each.detail)
    first = "" if each.first is None else one_line(first_text(each.first))
    return {
        ActionOutcome.DONE: f"{name}: won; {first}",
        ActionOutcome.OVERRULED: f"{name}: not won, this came before: {first}",
        ActionOutcome.FAILED: f"{name}: nothing was written: {detail}",
    }.get(each.outcome, f"{name}: not known whether it won: {detail}; check with `tx show`")
