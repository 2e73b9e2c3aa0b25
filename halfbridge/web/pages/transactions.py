"""Undecided transactions, and one transaction's life."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from halfbridge.checker.admin.transactions.explain import explain
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
from halfbridge.web.api.transactions import look as listing_of
from halfbridge.web.pages.page import Done, Form, Page, query_of
from halfbridge.web.pages.timeline import timeline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halfbridge.web.pages.page import Fields, Visit
    from halfbridge.web.services import Services
    from halfbridge.web.tokens import Principal

EVENTS_MAX = 500  # rows of the page; the API returns all
_SEARCH = (
    *LISTED_BY,
    *(each for each in FOUND_BY_KEY if each.name == "since_s"),
    Argument("id", str, "A transaction's id.", default=""),
    Argument("key", str, "A message's key.", default=""),
)


async def look(visit: Visit) -> dict[str, Any]:
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


async def look_at_one(visit: Visit) -> dict[str, Any]:
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
    """Return what a form for a decision does."""

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
        look=look,
        entry="Transactions",
    ),
    Page(
        path="/transactions/{id}",
        title="Transaction",
        template="transaction.html",
        look=look_at_one,
    ),
)
