"""Producer groups, as `halfbridge groups list|show` say it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.groups import Groups, read_groups
from halfbridge.web.api.routes import PAGING, Argument, Call, Route, page_of
from halfbridge.web.guards import Refusal
from halfbridge.web.work import Keeps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.web.services import Services

KEEPS = Keeps(fresh_s=5.0, old_s=120.0)
SINCE = Argument(
    "since_s",
    int,
    "Count ops of the last so many seconds.",
    default=600,
    minimum=1,
    maximum=30 * 86_400,
)


def look(services: Services, values: Mapping[str, Any], *, only: str = "") -> Groups:
    """Return the producer groups that were seen, those with the most undecided first."""
    cluster = services.cluster()
    since_ms = max(0, cluster.ports.clock.time_ms() - values["since_s"] * 1000)
    return read_groups(cluster, services.config.names, since_ms=since_ms, only=only)


async def groups(call: Call) -> dict[str, Any]:
    """Return the producer groups."""
    body = plain.groups(await call.read(look))
    body["groups"], paging = page_of(body["groups"], call.values)
    return {**body, **paging}


async def group(call: Call) -> dict[str, Any]:
    """Return one producer group; Refusal 404 if no such group was seen."""
    found = await call.read(partial(look, only=call.values["name"]))
    if not found.groups:
        raise Refusal(404, "no such producer group was seen")
    return plain.group(found.groups[0])


ROUTES = (
    Route(
        path="/groups",
        summary="Producer groups: who answers checks, and what is undecided.",
        answer=groups,
        query=(SINCE, *PAGING),
    ),
    Route(path="/groups/{name}", summary="One producer group.", answer=group, query=(SINCE,)),
)
