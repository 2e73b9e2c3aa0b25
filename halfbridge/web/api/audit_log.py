"""What operators did, as `halfbridge audit-log list` says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.operator_log import ActionFilter, KeptAction, action_json, read
from halfbridge.web.api.routes import LIMIT_DEFAULT, LIMIT_MAX, Argument, Call, Route
from halfbridge.web.work import Keeps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.web.services import Services

KEEPS = Keeps(fresh_s=2.0, old_s=60.0)
ARGUMENTS = (
    Argument("action", str, "Such as `tx commit`, or `tx` for all of tx.", default=""),
    Argument("actor", str, "Who acted.", default=""),
    Argument("subject", str, "Such as a transaction id.", default=""),
    Argument(
        "limit", int, "The newest so many.", default=LIMIT_DEFAULT, minimum=1, maximum=LIMIT_MAX
    ),
)


def look(services: Services, values: Mapping[str, Any]) -> list[KeptAction]:
    """Return the newest records of the audit topic that are asked for, the newest first."""
    wanted = ActionFilter(
        action=values["action"],
        who=values["actor"],
        subject=values["subject"],
        limit=values["limit"],
    )
    return read(services.cluster(), services.config.names, wanted)[::-1]


async def audit_log(call: Call) -> dict[str, Any]:
    """Return what operators did."""
    return {"actions": [action_json(each) for each in await call.read(look)]}


ROUTES = (
    Route(
        path="/audit-log",
        summary="What operators did, the newest first.",
        answer=audit_log,
        query=ARGUMENTS,
    ),
)
