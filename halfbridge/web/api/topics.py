"""The internal topics and what is wrong with them, as `halfbridge topics check` says it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.shape import HALF_RETENTION_MS
from halfbridge.checker.admin.topics import Report, check_topics, plan_layout
from halfbridge.web.api.routes import Call, Route
from halfbridge.web.work import Keeps

if TYPE_CHECKING:
    from halfbridge.web.services import Services

KEEPS = Keeps(fresh_s=10.0, old_s=300.0)


def look(services: Services) -> Report:
    """Return every problem of topics and offsets.

    Raises:
        AdminError: Kafka does not answer; the operator acts.
    """
    cluster, names = services.cluster(), services.config.names
    layout = plan_layout(
        cluster,
        partitions=None,
        replication_factor=None,
        producer_groups=tuple(names.groups_of(cluster.topics())),
        retention_ms=HALF_RETENTION_MS,
    )
    return check_topics(cluster, names, layout)


async def topics(call: Call) -> dict[str, Any]:
    """Return the report of `topics check`."""
    services = call.services
    kept = await services.answers.get(("topics",), lambda: look(services), fresh_s=KEEPS.fresh_s)
    if kept is None:
        raise AssertionError("an answer is waited for to its end")
    return {"ok": kept.value.ok, **asdict(kept.value), "age_s": kept.age_s}


ROUTES = (
    Route(
        path="/topics", summary="Problems of topics and offsets, each with a fix.", answer=topics
    ),
)
