"""The installation's topics, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.api.topics import KEEPS
from halfbridge.web.api.topics import look as report_of
from halfbridge.web.pages.page import Page

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look(visit: Visit) -> dict[str, Any]:
    """Return the topics, and the report of `topics check`."""
    services = visit.services
    kept = await visit.kept(("topics",), lambda: report_of(services), KEEPS)
    return {"kept": kept}


PAGES = (Page(path="/topics", title="Topics", template="topics.html", look=look, entry="Topics"),)
