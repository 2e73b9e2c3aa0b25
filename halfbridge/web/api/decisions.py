"""An operator's COMMIT or ROLLBACK of one transaction, as `halfbridge tx commit|rollback` write it.

The fence of a database is not asked here: this server has no way into users' databases. Where
local transactions have a fence, decide by the command with --fence-url.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.decisions import (
    Decided,
    Decider,
    DecisionRequest,
    decision_text,
    first_text,
    op_ends,
    refusal_of,
)
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import COUNT_UNKNOWN, ActionOutcome, OpKind
from halfbridge.web.api.routes import REASON, Argument, Call, Route
from halfbridge.web.api.transactions import FOUND_BY, life_of
from halfbridge.web.gate import Role
from halfbridge.web.guards import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.web.services import Services

_FORCE = Argument(
    "force",
    bool,
    "Also before the first check is due, and where messages are missing.",
    default=False,
)
ROLLED_BACK_BY = (REASON, _FORCE, FOUND_BY[0])
COMMITTED_BY = (
    *ROLLED_BACK_BY,
    Argument(
        "messages",
        int,
        "How many messages the transaction has.",
        minimum=1,
        maximum=TRANSACTION_MESSAGES_MAX,
    ),
    Argument("all_messages", bool, "Commit those that are there, also if it was half sent."),
)


def decide(services: Services, kind: OpKind, values: Mapping[str, Any], *, who: str) -> Decided:
    """Write a decision, and return it once it is known to be the first.

    Raises:
        Refusal: 400 for a COMMIT that does not say of how many messages; 404; 409 where the
            transaction is decided, may not be decided yet, or another decision was first; 502 where
            nothing was written, or that is not known; the text says what the operator does.
        AdminError: Kafka does not answer, or the audit topic takes no record; the operator acts.
    """
    requested = DecisionRequest(
        kind=kind, reason=values["reason"], message_count=_count(kind, values)
    )
    with services.changing():
        cluster, names = services.cluster(), services.config.names
        ends = op_ends(cluster, names, None)
        life = life_of(services, {**values, "until_ms": None})
        if life.undecided is None:
            raise Refusal(409, decision_text(life))
        refusal = refusal_of(life.undecided, requested, force=values["force"])
        if refusal:
            raise Refusal(409, refusal.replace("--force", "force"))
        with appending(cluster) as appender:
            log = OperatorLog(cluster, names, appender, who=who)
            decider = Decider(cluster, names, log, appender, requested=requested)
            (decided,) = decider.decide([life.undecided], ends)
    if decided.outcome is ActionOutcome.OVERRULED and decided.first is not None:
        raise Refusal(409, f"another decision was first: {first_text(decided.first)}")
    if decided.outcome is not ActionOutcome.DONE:
        raise Refusal(502, f"{decided.outcome.value}: {decided.detail}")
    return decided


def _count(kind: OpKind, values: Mapping[str, Any]) -> int:
    if kind is not OpKind.COMMIT:
        return COUNT_UNKNOWN
    if (values["messages"] is None) != bool(values["all_messages"]):
        raise Refusal(400, "give one of messages and all_messages")
    return COUNT_UNKNOWN if values["messages"] is None else int(values["messages"])


async def _decided(call: Call, *, kind: OpKind) -> dict[str, Any]:
    decided = await call.read(
        lambda services, values: decide(services, kind, values, who=call.principal.name)
    )
    call.services.answers.forget()
    undecided = decided.undecided
    return {
        "id": undecided.id,
        "outcome": decided.outcome.value,
        "decision": kind.value,
        "partition": undecided.partition,
        "offset": decided.offset,
    }


ROUTES = (
    Route(
        path="/transactions/{id}/commit",
        summary="Commit an undecided transaction, and read back that this decision is the first.",
        answer=partial(_decided, kind=OpKind.COMMIT),
        method="POST",
        role=Role.OPERATE,
        body=COMMITTED_BY,
    ),
    Route(
        path="/transactions/{id}/rollback",
        summary="Roll an undecided transaction back; read back that this decision is the first.",
        answer=partial(_decided, kind=OpKind.ROLLBACK),
        method="POST",
        role=Role.OPERATE,
        body=ROLLED_BACK_BY,
    ),
)
