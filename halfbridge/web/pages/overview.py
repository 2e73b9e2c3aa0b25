"""The overview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import BridgeError
from halfbridge.web.api.doctor import KEEPS
from halfbridge.web.api.doctor import look as findings_of
from halfbridge.web.guards import Refusal
from halfbridge.web.pages.page import Page

if TYPE_CHECKING:
    from halfbridge.checker.admin.doctor.facts import Finding
    from halfbridge.web.pages.page import Visit

# The overview of a browser that stays open asks doctor so often.
_AGAIN_S = 60.0
# Most findings shown on the overview; the doctor page shows all.
FINDINGS_MAX = 5


async def look(visit: Visit) -> dict[str, Any]:
    """Return the last readings of the daemon's metrics."""
    watch = visit.services.watch
    found = watch.overview()
    lags: dict[int, dict[str, float]] = {}
    if found is not None:
        for (partition, letter), records in sorted(found.now.lags.items()):
            lags.setdefault(partition, {})[letter] = records
    return {
        "findings_max": FINDINGS_MAX,
        "findings": await _findings(visit) if watch.has_daemons else None,
        "overview": found,
        "health": watch.health,
        "has_daemons": watch.has_daemons,
        "lags": lags,
    }


async def _findings(visit: Visit) -> tuple[Finding, ...] | None:
    """Return what doctor found last; None: nothing yet. The page does not wait for it."""
    services = visit.services
    try:
        kept = await services.answers.get(
            ("doctor",),
            lambda: findings_of(services),
            fresh_s=_AGAIN_S,
            old_s=KEEPS.old_s,
            wait_s=0.0,
        )
    except (BridgeError, Refusal):  # the page of doctor says it
        return None
    return None if kept is None else kept.value


PAGES = (Page(path="/", title="Overview", template="overview.html", look=look, entry="Overview"),)
