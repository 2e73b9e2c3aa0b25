"""Topics, what is wrong with the installation, and what operators did: pages of one answer each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.api import audit_log, doctor, topics
from halfbridge.web.pages.page import Page, query_of

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look_at_doctor(visit: Visit) -> dict[str, Any]:
    """Return all findings."""
    services = visit.services
    return {"kept": await visit.kept(("doctor",), lambda: doctor.look(services), doctor.KEEPS)}


async def look_at_topics(visit: Visit) -> dict[str, Any]:
    """Return the topics, and the report of `topics check`."""
    services = visit.services
    return {"kept": await visit.kept(("topics",), lambda: topics.look(services), topics.KEEPS)}


async def look_at_audit_log(visit: Visit) -> dict[str, Any]:
    """Return the newest actions."""
    services, values = visit.services, query_of(visit.request, audit_log.ARGUMENTS)
    key = ("audit-log", *values.values())
    kept = await visit.kept(key, lambda: audit_log.look(services, values), audit_log.KEEPS)
    return {"kept": kept, "values": values}


PAGES = (
    Page(
        path="/topics", title="Topics", template="topics.html", look=look_at_topics, entry="Topics"
    ),
    Page(
        path="/doctor", title="Doctor", template="doctor.html", look=look_at_doctor, entry="Doctor"
    ),
    Page(
        path="/audit-log",
        title="Audit log",
        template="audit-log.html",
        look=look_at_audit_log,
        entry="Audit log",
    ),
)
