"""Producer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.api.groups import KEEPS, SINCE
from halfbridge.web.api.groups import look as groups_of
from halfbridge.web.api.routes import PAGING, page_of
from halfbridge.web.guards import Refusal
from halfbridge.web.pages.page import Page, query_of

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look(visit: Visit) -> dict[str, Any]:
    """Return the producer groups."""
    services, values = visit.services, query_of(visit.request, (SINCE, *PAGING))
    kept = await visit.kept(
        ("groups", values["since_s"]), lambda: groups_of(services, values), KEEPS
    )
    context: dict[str, Any] = {"kept": kept, "values": values}
    if kept is not None:
        shown, paging = page_of(list(kept.value.groups), values)
        context |= {"shown": shown, "paging": paging, "query": {"since_s": values["since_s"]}}
    return context


async def look_at_one(visit: Visit) -> dict[str, Any]:
    """Return one producer group."""
    services, values = visit.services, query_of(visit.request, (SINCE,))
    name = visit.request.path_params["name"]
    kept = await visit.kept(
        ("group", name, values["since_s"]), lambda: groups_of(services, values, only=name), KEEPS
    )
    if kept is not None and not kept.value.groups:
        raise Refusal(404, "no such producer group was seen")
    return {"kept": kept, "name": name, "title": "Producer group", "values": values}


PAGES = (
    Page(path="/groups", title="Groups", template="groups.html", look=look, entry="Groups"),
    Page(path="/groups/{name}", title="Group", template="group.html", look=look_at_one),
)
