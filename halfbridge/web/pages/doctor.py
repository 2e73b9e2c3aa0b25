"""What is wrong with the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.api.doctor import FRESH_S, OLD_S
from halfbridge.web.api.doctor import look as findings_of
from halfbridge.web.pages.page import WAIT_S, Page

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look(visit: Visit) -> dict[str, Any]:
    """Return all findings."""
    services = visit.services
    kept = await services.answers.get(
        ("doctor",), lambda: findings_of(services), fresh_s=FRESH_S, old_s=OLD_S, wait_s=WAIT_S
    )
    return {"kept": kept}


PAGES = (Page(path="/doctor", title="Doctor", template="doctor.html", look=look, entry="Doctor"),)
