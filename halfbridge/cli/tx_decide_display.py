"""What `halfbridge tx commit` and `rollback` show: before they ask, and after."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.admin.decisions.wish import before_text, effect_text, first_text
from halfbridge.logs import one_line
from halfbridge.serde.records import ActionOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.decisions.consider import Considered
    from halfbridge.checker.admin.decisions.decider import Decided
    from halfbridge.checker.admin.decisions.wish import Wish
    from halfbridge.checker.admin.transactions.waits import Undecided

    # A transaction, and why it is not decided; empty where it may be.
    Judged = Sequence[tuple[Undecided, str]]

# Of transactions that a command with --all shows before it asks.
_SHOWN_MAX = 20


def tell(considered: Considered, wish: Wish, judged: Judged, *, has_fence: bool) -> None:
    """Show on standard error what would happen."""
    for each, refusal in judged[:_SHOWN_MAX]:
        text = f"refused: {one_line(refusal)}" if refusal else f"{one_line(before_text(each))}"
        click.echo(f"{one_line(each.id)}  {text}", err=True)
        if not refusal:
            allowed = f"{wish.kind.value}, if the fence row allows it"
            click.echo(f"    {allowed if has_fence else effect_text(each, wish)}", err=True)
    more = considered.matching - len(judged[:_SHOWN_MAX])
    if more > 0:
        beyond = considered.matching - len(judged)
        click.echo(f"and {more} more" + (f", {beyond} beyond --limit" if beyond else ""), err=True)
    for pair in considered.stopped:
        text = f"pair {pair.partition} is stopped, nothing in it is decided: {one_line(pair.why)}"
        click.echo(text, err=True)


def show_dry_run(considered: Considered, wish: Wish, judged: Judged, *, as_json: bool) -> None:
    """Show what would be decided."""
    if as_json:
        rows = [
            {"id": each.id, "effect": effect_text(each, wish), "refused": refusal or None}
            for each, refusal in judged
        ]
        click.echo(json.dumps({"matching": considered.matching, "would": rows, "decided": []}))
    else:
        click.echo(f"dry run: {sum(not refusal for _, refusal in judged)} would be decided")


def show_one(decided: Decided, *, as_json: bool) -> None:
    """Show what became of one decision."""
    click.echo(json.dumps(_as_json(decided)) if as_json else _line(decided))


def show_many(
    decided: Sequence[Decided], considered: Considered, judged: Judged, *, as_json: bool
) -> None:
    """Show what became of many decisions: for people those that did not win, and the counts."""
    skipped = [{"id": each.id, "refused": refusal} for each, refusal in judged if refusal]
    if as_json:
        body = {"matching": considered.matching, "decided": [*map(_as_json, decided)]}
        click.echo(json.dumps({**body, "skipped": skipped}))
        return
    for each in decided:
        if each.outcome is not ActionOutcome.DONE:
            click.echo(_line(each))
    counts = Counter(each.outcome.value for each in decided)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    click.echo(f"{told or 'nothing decided'}; {len(skipped)} skipped")


def _as_json(each: Decided) -> dict[str, Any]:
    first = each.first
    stands = None
    if first is not None:
        op = first.op
        stands = {
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
        "stands": stands,
        "detail": each.detail or None,
    }


def _line(each: Decided) -> str:
    name, detail = one_line(each.undecided.id), one_line(each.detail)
    stands = "" if each.first is None else one_line(first_text(each.first))
    return {
        ActionOutcome.DONE: f"{name}: won; {stands}",
        ActionOutcome.OVERRULED: f"{name}: not won, this came before: {stands}",
        ActionOutcome.FAILED: f"{name}: nothing was written: {detail}",
    }.get(each.outcome, f"{name}: not known whether it won: {detail}; look with `tx show`")
