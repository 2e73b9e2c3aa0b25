"""Rates, latency, workers and health, from the daemon's metrics."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from halfbridge.web.api.routes import Call, Route

if TYPE_CHECKING:
    from halfbridge.web.watch import Watch


async def overview(call: Call) -> dict[str, Any]:
    """Return what the overview page shows."""
    return overview_body(call.services.watch)


async def workers(call: Call) -> dict[str, Any]:
    """Return the daemons and their workers."""
    watch = call.services.watch
    found = watch.overview()
    return {
        "daemons": [_health(each) for each in watch.health],
        "workers": []
        if found is None
        else [{"worker": name, "up": up} for name, up in sorted(found.now.workers.items())],
    }


def overview_body(watch: Watch) -> dict[str, Any]:
    """Return the overview as a JSON-able object; numbers that are not known are null."""
    found = watch.overview()
    if found is None:
        return {"read": False, "daemons": []}
    now = found.now
    return {
        "read": True,
        "per_second": dict(found.rates),
        "latency_s": {f"p{share * 100:g}": _number(s) for share, s in found.latency_s.items()},
        "undecided_messages": now.totals["undecided"],
        "oldest_undecided_s": now.oldest_s,
        "partitions_stopped": now.totals["stopped"],
        "partitions_waiting": now.totals["waiting"],
        "retention_left_s": _number(now.retention_s),
        "lag": [
            {"partition": partition, "offset": letter, "records": records}
            for (partition, letter), records in sorted(now.lags.items())
        ],
        "daemons": [_health(each) for each in watch.health],
    }


def _health(each: Any) -> dict[str, Any]:
    return {**asdict(each), "partition_errors": dict(each.partition_errors)}


def _number(value: float | None) -> float | None:
    """Return a number as JSON can have it: infinity is null."""
    return None if value is None or math.isinf(value) else value


ROUTES = (
    Route(path="/overview", summary="Rates, latency, lag and health.", answer=overview),
    Route(path="/workers", summary="Daemons and workers, and whether they are up.", answer=workers),
)
