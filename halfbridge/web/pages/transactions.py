"""Undecided transactions, and one transaction's life.

The timeline says where each mark of a transaction's life is drawn. Time is squeezed: a step of a
millisecond and one of an hour both have to be seen. The width of a step grows with the logarithm of
its time. Example: with steps of 1 ms, 10 s and 1 h, the widths are as 1.3 to 5 to 7.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from halfbridge.checker.admin.transactions.explain import explain
from halfbridge.checker.admin.transactions.life import Kind, Verdict
from halfbridge.logs import one_line
from halfbridge.serde.records import OpKind
from halfbridge.web.api.decisions import COMMITTED_BY, ROLLED_BACK_BY, decide
from halfbridge.web.api.routes import Argument, read_arguments
from halfbridge.web.api.transactions import (
    FOUND_BY,
    FOUND_BY_KEY,
    KEEPS,
    LISTED_BY,
    found_by_key,
    life_of,
    paging_of,
)
from halfbridge.web.api.transactions import read_listing as listing_of
from halfbridge.web.pages.page import Done, Form, Page, milliseconds, moment, query_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from halfbridge.checker.admin.transactions.life import Event
    from halfbridge.web.gate import Principal
    from halfbridge.web.pages.page import Fields, Visit
    from halfbridge.web.services import Services

EVENTS_MAX = 500  # rows of the page; the API returns all
_SEARCH = (
    *LISTED_BY,
    *(each for each in FOUND_BY_KEY if each.name == "since_s"),
    Argument("id", str, "A transaction's id.", default=""),
    Argument("key", str, "A message's key.", default=""),
)


async def show(visit: Visit) -> dict[str, Any]:
    """Return the undecided transactions, or those with a key; an id leads to its own page."""
    services, values = visit.services, query_of(visit.request, _SEARCH)
    if values["id"]:
        return {"goto": f"/transactions/{quote(values['id'].strip(), safe='')}"}
    if values["key"]:
        found = await visit.kept(
            ("by key", *values.values()), lambda: found_by_key(services, values), KEEPS
        )
        return {"kept": found, "values": values}
    kept = await visit.kept(
        ("transactions", *values.values()), lambda: listing_of(services, values), KEEPS
    )
    if kept is None:
        return {"kept": None, "values": values}
    query = {name: values[name] for name in ("group", "topic", "older_than_s") if values[name]}
    return {
        "kept": kept,
        "values": values,
        "query": query,
        "paging": paging_of(kept.value, values),
        "shown": kept.value.transactions[values["offset"] :],
    }


async def show_one(visit: Visit) -> dict[str, Any]:
    """Return one transaction's life."""
    services = visit.services
    values = {**query_of(visit.request, FOUND_BY), "id": visit.request.path_params["id"]}
    kept = await visit.kept(
        ("transaction", *values.values()), lambda: life_of(services, values), KEEPS
    )
    context = {"title": "Transaction", "id": values["id"], "kept": kept}
    if kept is not None:
        context["sentences"] = explain(kept.value)
        context["timeline"] = timeline(kept.value.events)
        context["events"] = kept.value.events[:EVENTS_MAX]
    return context


def _deciding(kind: OpKind) -> Callable[[Services, Principal, Fields], Awaitable[Done]]:

    async def act(services: Services, principal: Principal, fields: Fields) -> Done:
        wanted = COMMITTED_BY if kind is OpKind.COMMIT else ROLLED_BACK_BY
        known = {each.name for each in wanted}
        given = {name: text for name, text in fields.items() if name in known and text}
        values = {**read_arguments(wanted, given), "id": fields["id"]}
        done = await services.work.run(lambda: decide(services, kind, values, who=principal.name))
        return Done(
            f"{kind.value} is the first decision, at op offset {done.offset}.",
            f"/transactions/{quote(fields['id'], safe='')}",
        )

    return act


FORMS = tuple(
    Form(path=f"/transactions/{{id}}/{kind.value.lower()}", act=_deciding(kind))
    for kind in (OpKind.COMMIT, OpKind.ROLLBACK)
)
PAGES = (
    Page(
        path="/transactions",
        title="Transactions",
        template="transactions.html",
        show=show,
        entry="Transactions",
    ),
    Page(
        path="/transactions/{id}",
        title="Transaction",
        template="transaction.html",
        show=show_one,
    ),
)
MARKS_MAX = 300  # on 960 points of width more would be one line
WIDTH = 960  # pixels: a page of a laptop
LANE_HEIGHT = 46  # pixels: a mark, and a line of text above
LEFT, RIGHT, TOP, BOTTOM = 130, 46, 14, 34  # pixels; RIGHT: half of a time of day
TICK_DISTANCE = 84  # pixels: the width of a time of day
_LANES = {
    "messages": (Kind.HALF, Kind.COPY),
    "checks": (Kind.CHECK, Kind.ANSWER),
    "decision": (Kind.DECISION,),
    "delivery": (Kind.DELIVERY, Kind.DEAD_LETTER),
}
_STYLES = {
    Kind.HALF: "half",
    Kind.COPY: "copy",
    Kind.CHECK: "check",
    Kind.ANSWER: "check",
    Kind.DECISION: "decision",
    Kind.DELIVERY: "delivery",
    Kind.DEAD_LETTER: "dead",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One event: its place, its style, and what it is in words."""

    x: float
    y: float
    style: str
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The picture."""

    width: int
    height: int
    lanes: tuple[tuple[str, float], ...]  # name and height of each line
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, str], ...]  # place and text of each time on the axis
    left_out: int  # events beyond `MARKS_MAX`


def timeline(events: Sequence[Event]) -> Timeline:
    """Return the picture of some events, which are in the order of time."""
    shown = events[:MARKS_MAX]
    times = _times(shown)
    places = _places(times)
    lanes = tuple((name, TOP + LANE_HEIGHT * (n + 0.5)) for n, name in enumerate(_LANES))
    heights = {
        kind: y for (_, y), kinds in zip(lanes, _LANES.values(), strict=True) for kind in kinds
    }
    return Timeline(
        width=WIDTH,
        height=TOP + LANE_HEIGHT * len(lanes) + BOTTOM,
        lanes=lanes,
        marks=tuple(
            Mark(x, heights[event.kind], _style(event), text_of(event))
            for event, x in zip(shown, places, strict=True)
        ),
        ticks=_ticks(times, places),
        left_out=len(events) - len(shown),
    )


def text_of(event: Event) -> str:
    """Return what an event is, in one line."""
    parts = [event.kind.value.replace("_", " ")]
    if event.message_index is not None:
        parts.append(f"of message {event.message_index}")
    parts += [
        one_line(each)
        for each in (event.op, event.source and f"by {event.source}", event.actor)
        if each
    ]
    if event.verdict is not None:
        parts.append(event.verdict.value)
    return f"{' '.join(parts)}, {moment(event.at_ms)}"


def _times(events: Sequence[Event]) -> list[int]:
    """Return the time of each event, never before the one of the event before it."""
    times: list[int] = []
    for event in events:
        before = times[-1] if times else (event.at_ms or 0)
        times.append(max(before, event.at_ms if event.at_ms is not None else before))
    return times


def _places(times: Sequence[int]) -> list[float]:
    widths = [0.0]
    for before, after in pairwise(times):
        # Records of one moment are side by side.
        widths.append(widths[-1] + (1 + math.log10(1 + after - before) if after > before else 0.35))
    room = WIDTH - LEFT - RIGHT
    most = widths[-1] or 1.0
    return [round(LEFT + room * each / most, 1) for each in widths[: len(times)]]


def _ticks(times: Sequence[int], places: Sequence[float]) -> tuple[tuple[float, str], ...]:
    ticks: list[tuple[float, str]] = []
    said: set[str] = set()
    for at_ms, x in zip(times, places, strict=True):
        text = "begin" if at_ms == times[0] else f"+{milliseconds(at_ms - times[0])}"
        if text not in said and (not ticks or x - ticks[-1][0] >= TICK_DISTANCE):
            ticks.append((x, text))
            said.add(text)
    return tuple(ticks)


def _style(event: Event) -> str:
    is_lost = event.kind is Kind.DECISION and event.verdict is not Verdict.WON
    return "other" if is_lost else _STYLES[event.kind]
