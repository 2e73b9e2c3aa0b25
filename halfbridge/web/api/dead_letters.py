"""Dead letters, as `halfbridge dead list|show|resume|redeliver` handle them; never a payload."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.dead.describe import as_json, change_json
from halfbridge.checker.admin.dead.letters import Choice, DeadTransaction, Remedy, Wanted
from halfbridge.checker.admin.dead.redoing import Change, DeadLetters, Order, redo
from halfbridge.serde.records import DeadReason
from halfbridge.web.api.routes import PAGING, REASON, Argument, Call, Route, page_of
from halfbridge.web.gate import Role
from halfbridge.web.guards import Refusal
from halfbridge.web.work import CachePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.web.services import Services

# 2 s: reloads and several operators share a reading of the logs. Longer would show old letters
# after a change of them. 2 min: during a slow reading the page shows an old one and its age.
KEEPS = CachePolicy(fresh_s=2.0, old_s=120.0)
# A request of one form or call: for more of them there is the command, which reports progress.
BULK_MAX = 100
# Transactions a second: BULK_MAX takes one second, and the daemon's own deliveries hardly notice.
_RATE = 100.0
SELECTED_BY = (
    Argument("group", str, "Producer group.", default=""),
    Argument("topic", str, "Real topic of a message.", default=""),
    Argument(
        "reason",
        str,
        "Reason of a letter.",
        default="",
        words=("", *(each.value for each in DeadReason)),
    ),
    Argument("done", bool, "Also transactions whose letters are all dealt with.", default=False),
)
_UNVERIFIED = Argument(
    "accept_unverified",
    bool,
    "Also letters whose half record or op retention has deleted.",
    default=False,
)
_REDELIVERED = (
    Argument("accept_partial", bool, "INCOMPLETE: deliver what is there.", default=False),
    Argument(
        "accept_duplicates", bool, "LATE: deliver what may have been delivered.", default=False
    ),
)
CHANGED_BY = (REASON, _UNVERIFIED, *_REDELIVERED)


def read_letters(services: Services, values: Mapping[str, Any]) -> list[DeadTransaction]:
    """Return the dead letters that are asked for, by transaction."""
    wanted = Wanted(
        groups=_one(values["group"]),
        topics=_one(values["topic"]),
        reasons=frozenset({DeadReason(values["reason"])} if values["reason"] else ()),
        is_open=not values["done"],
    )
    return DeadLetters(services.cluster(), services.config.names).find(wanted)


def lives_of(services: Services, name: str) -> list[DeadTransaction]:
    """Return the dead letters of each life of one transaction; Refusal 404 if there are none."""
    wanted = Wanted(ids=frozenset({name}))
    found = DeadLetters(services.cluster(), services.config.names).find(wanted)
    if not found:
        raise Refusal(404, "there is no dead letter of this transaction")
    return found


def bring_back(
    services: Services,
    names: frozenset[str],
    remedy: Remedy,
    values: Mapping[str, Any],
    *,
    who: str,
) -> list[Change]:
    """Resume or redeliver transactions, at most `BULK_MAX`; return what became of each.

    Raises:
        Refusal: 400 for more transactions; 404 without an open letter; 409 where nothing can be
            done, or while another change is under way; the text says what the operator does.
    """
    if not 1 <= len(names) <= BULK_MAX:
        raise Refusal(400, f"choose 1 to {BULK_MAX} transactions")
    order = Order(
        wanted=Wanted(ids=names, is_open=True),
        limit=BULK_MAX,
        rate=_RATE,
        who=who,
        why=values["reason"],
    )
    choice = Choice(
        remedy=remedy,
        accept_partial=values.get("accept_partial", False),
        accept_duplicates=values.get("accept_duplicates", False),
        accept_unverified=values.get("accept_unverified", False),
    )
    with services.changing():
        letters = DeadLetters(services.cluster(), services.config.names)
        changes = redo(letters, order, choice, lambda _meant: True)
    if not changes:
        raise Refusal(404, "there is no open dead letter of this transaction")
    if all(each.refusal for each in changes):
        raise Refusal(409, "; ".join(sorted({each.refusal for each in changes})))
    return changes


async def _dead_letters(call: Call) -> dict[str, Any]:
    shown, paging = page_of(await call.read(read_letters), call.values)
    return {"transactions": [as_json(each) for each in shown], **paging}


async def _dead_letter(call: Call) -> dict[str, Any]:
    name = call.values["id"]
    found = await call.read(lambda services, _values: lives_of(services, name))
    return {"id": name, "lives": [as_json(each) for each in found]}


async def _brought_back(call: Call, *, remedy: Remedy) -> dict[str, Any]:
    names = frozenset({call.values["id"]})
    changes = await call.read(
        lambda services, values: bring_back(
            services, names, remedy, values, who=call.principal.name
        )
    )
    call.services.answers.forget()
    return {
        "done": [change_json(each) for each in changes if not each.refusal],
        "refused": [change_json(each) for each in changes if each.refusal],
    }


def _one(text: str) -> frozenset[str]:
    return frozenset({text} if text else ())


ROUTES = (
    Route(
        path="/dead-letters",
        summary="Dead letters by transaction, in the order of the decisions.",
        answer=_dead_letters,
        query=(*SELECTED_BY, *PAGING),
    ),
    Route(
        path="/dead-letters/{id}",
        summary="The dead letters of one transaction, and what was done about each.",
        answer=_dead_letter,
    ),
    Route(
        path="/dead-letters/{id}/resume",
        summary="Have a transaction asked about again that was given up.",
        answer=partial(_brought_back, remedy=Remedy.RESUME),
        method="POST",
        role=Role.OPERATE,
        body=(REASON, _UNVERIFIED),
    ),
    Route(
        path="/dead-letters/{id}/redeliver",
        summary="Have a transaction delivered that was committed and refused.",
        answer=partial(_brought_back, remedy=Remedy.REDELIVER),
        method="POST",
        role=Role.OPERATE,
        body=CHANGED_BY,
    ),
)
