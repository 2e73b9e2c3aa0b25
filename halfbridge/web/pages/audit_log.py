"""What operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.api.audit_log import ARGUMENTS, KEEPS
from halfbridge.web.api.audit_log import look as actions_of
from halfbridge.web.pages.page import Page, query_of

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look(visit: Visit) -> dict[str, Any]:
    """Return the newest actions."""
    services, values = visit.services, query_of(visit.request, ARGUMENTS)
    kept = await visit.kept(
        ("audit-log", *values.values()), lambda: actions_of(services, values), KEEPS
    )
    return {"kept": kept, "values": values}


PAGES = (
    Page(
        path="/audit-log",
        title="Audit log",
        template="audit-log.html",
        look=look,
        entry="Audit log",
    ),
)
