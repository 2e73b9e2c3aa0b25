"""The installation's topics, and what `halfbridge topics check` says is wrong with them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.admin.shape import HALF_RETENTION_MS
from halfbridge.checker.admin.topics import (
    ListedTopic,
    Report,
    check_topics,
    list_topics,
    plan_layout,
)
from halfbridge.web.api.routes import Call, Route
from halfbridge.web.work import Keeps

if TYPE_CHECKING:
    from halfbridge.web.services import Services

KEEPS = Keeps(fresh_s=10.0, old_s=300.0)


class TopicsFound(NamedTuple):
    """The installation's topics, and the report of `topics check`."""

    report: Report
    topics: tuple[ListedTopic, ...]


def look(services: Services) -> TopicsFound:
    """Return the installation's topics, and every problem of topics and offsets."""
    cluster, names = services.cluster(), services.config.names
    layout = plan_layout(
        cluster,
        partitions=None,
        replication_factor=None,
        producer_groups=tuple(names.groups_of(cluster.topics())),
        retention_ms=HALF_RETENTION_MS,
    )
    report = check_topics(cluster, names, layout)
    return TopicsFound(report, list_topics(cluster, names, report.problems))


async def topics(call: Call) -> dict[str, Any]:
    """Return the report of `topics check`, and the topics."""
    kept = await call.kept("topics", look, KEEPS)
    report = kept.value.report
    listed = [asdict(each) for each in kept.value.topics]
    return {"ok": report.ok, **asdict(report), "topics": listed, "age_s": kept.age_s}


ROUTES = (
    Route(
        path="/topics",
        summary="The installation's topics; problems of topics and offsets, each with a fix.",
        answer=topics,
    ),
)
