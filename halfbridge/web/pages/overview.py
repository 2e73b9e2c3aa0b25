"""The overview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.web.pages.page import Page

if TYPE_CHECKING:
    from halfbridge.web.pages.page import Visit


async def look(visit: Visit) -> dict[str, Any]:
    """Return the last readings of the daemon's metrics."""
    watch = visit.services.watch
    found = watch.overview()
    lags: dict[int, dict[str, float]] = {}
    if found is not None:
        for (partition, letter), records in sorted(found.now.lags.items()):
            lags.setdefault(partition, {})[letter] = records
    return {
        "overview": found,
        "health": watch.health,
        "has_daemons": watch.has_daemons,
        "lags": lags,
    }


PAGES = (Page(path="/", title="Overview", template="overview.html", look=look, entry="Overview"),)
