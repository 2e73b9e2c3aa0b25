"""Dead letters: to read, resume or redeliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from halfbridge.checker.admin.dead.letters import Remedy
from halfbridge.serde.records import DeadReason
from halfbridge.web.api.dead_letters import (
    BULK_MAX,
    CHANGED_BY,
    KEEPS,
    SELECTED_BY,
    bring_back,
    lives_of,
)
from halfbridge.web.api.dead_letters import read_letters as letters_of
from halfbridge.web.api.routes import PAGING, page_of, read_arguments
from halfbridge.web.pages.page import Done, Form, Page, query_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halfbridge.web.gate import Principal
    from halfbridge.web.pages.page import Fields, Visit
    from halfbridge.web.services import Services

LIST = "/dead-letters"


async def show(visit: Visit) -> dict[str, Any]:
    """Return dead letters by transaction."""
    services, values = visit.services, query_of(visit.request, (*SELECTED_BY, *PAGING))
    kept = await visit.kept(
        ("dead-letters", *(values[each.name] for each in SELECTED_BY)),
        lambda: letters_of(services, values),
        KEEPS,
    )
    context: dict[str, Any] = {"kept": kept, "values": values, "bulk_max": BULK_MAX}
    context["reasons"] = [each.value for each in DeadReason]
    if kept is not None:
        shown, paging = page_of(kept.value, values)
        query = {each.name: values[each.name] for each in SELECTED_BY if values[each.name]}
        context |= {"shown": shown, "paging": paging, "query": query}
    return context


async def show_one(visit: Visit) -> dict[str, Any]:
    """Return the dead letters of one transaction."""
    services, name = visit.services, visit.request.path_params["id"]
    kept = await visit.kept(("dead-letter", name), lambda: lives_of(services, name), KEEPS)
    return {"id": name, "kept": kept, "title": "Dead letters"}


def _acting(
    remedy: Remedy, *, is_bulk: bool
) -> Callable[[Services, Principal, Fields], Awaitable[Done]]:

    async def act(services: Services, principal: Principal, fields: Fields) -> Done:
        names = frozenset(fields.every("id") if is_bulk else (fields["id"],))
        wanted = {each.name for each in CHANGED_BY}
        given = {name: text for name, text in fields.items() if name in wanted}
        values = read_arguments(CHANGED_BY, given)
        changes = await services.work.run(
            lambda: bring_back(services, names, remedy, values, who=principal.name)
        )
        done = [each for each in changes if not each.refusal]
        verb = "resumed" if remedy is Remedy.RESUME else "redelivered"
        said = f"{len(done)} of {len(changes)} transactions {verb}."
        refused = sorted({each.refusal for each in changes if each.refusal})
        if refused:
            said += f" Refused: {'; '.join(refused)}."
        address = LIST if is_bulk else f"{LIST}/{quote(fields['id'], safe='')}"
        return Done(said, address)

    return act


PAGES = (
    Page(
        path=LIST,
        title="Dead letters",
        template="dead-letters.html",
        show=show,
        entry="Dead letters",
    ),
    Page(path=LIST + "/{id}", title="Dead letters", template="dead-letter.html", show=show_one),
)
FORMS = tuple(
    form
    for remedy in (Remedy.RESUME, Remedy.REDELIVER)
    for form in (
        Form(path=f"{LIST}-{remedy.value}", act=_acting(remedy, is_bulk=True)),
        Form(path=f"{LIST}/{{id}}/{remedy.value}", act=_acting(remedy, is_bulk=False)),
    )
)
