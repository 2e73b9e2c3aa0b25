"""What is wrong with the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.api.doctor import KEEPS
from halfbridge.web.api.doctor import look as findings_of
from halfbridge.web.pages.page import Page

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look(visit: Visit) -> dict[str, Any]:
    """Return all findings."""
    services = visit.services
    kept = await visit.kept(("doctor",), lambda: findings_of(services), KEEPS)
    return {"kept": kept}


PAGES = (Page(path="/doctor", title="Doctor", template="doctor.html", look=look, entry="Doctor"),)
