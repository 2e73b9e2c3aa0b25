"""Undecided transactions, and one transaction's life, as `halfbridge tx list|show` say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.transactions import logs as search
from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.explain import explain
from halfbridge.checker.admin.transactions.find import FindQuery, Found, find
from halfbridge.checker.admin.transactions.life import NOT_FOUND, Life
from halfbridge.checker.admin.transactions.look_up import Wanted, look_up
from halfbridge.checker.admin.transactions.undecided import Filter, Listing, list_undecided
from halfbridge.web.api.routes import PAGING, Argument, Call, Route
from halfbridge.web.guards import Refusal
from halfbridge.web.work import CachePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.web.services import Services

# 2 s: reloads and several operators share a reading of the logs. Longer would show old ones
# after a change of them. 2 min: during a slow reading the page shows an old one and its age.
KEEPS = CachePolicy(fresh_s=2.0, old_s=120.0)
_TIME_MS_MAX = 1 << 53  # what a number of JavaScript holds exactly
_OLDER_THAN = Argument(
    "older_than_s", int, "Least age, seconds.", default=0, minimum=0, maximum=10**9
)
LISTED_BY = (
    Argument("group", str, "Producer group.", default=""),
    Argument("topic", str, "Real topic of the first message.", default=""),
    _OLDER_THAN,
    *PAGING,
)
FOUND_BY_KEY = (
    Argument("group", str, "Producer group.", default=""),
    Argument("topic", str, "Real topic of the message.", default=""),
    Argument(
        "since_s",
        int,
        "How long ago the message was stored at most, seconds.",
        default=3_600,
        minimum=1,
        maximum=10**9,
    ),
    _OLDER_THAN,
    PAGING[0],
)
# A search has less time than the command's: this many take some six seconds (`find.RECORDS_MAX`).
SEARCHED_MAX = 1_000_000
FOUND_BY = (
    Argument(
        "from_ms",
        int,
        "Where the search begins, ms since 1970; for an id that does not hold a time.",
        minimum=0,
        maximum=_TIME_MS_MAX,
    ),
    Argument(
        "until_ms",
        int,
        "Where the search ends, ms since 1970; else at the ends of the logs.",
        minimum=0,
        maximum=_TIME_MS_MAX,
    ),
)


def read_listing(services: Services, values: Mapping[str, Any]) -> Listing:
    """Return the undecided transactions that are asked for, up to the end of the page."""
    wanted = Filter(
        group=values["group"],
        topic=values["topic"],
        older_than_ms=values["older_than_s"] * 1000,
        limit=values["offset"] + values["limit"],
    )
    return list_undecided(services.cluster(), services.config.names, wanted)


def found_by_key(services: Services, values: Mapping[str, Any]) -> Found:
    """Return the newest transactions with a message of a key."""
    cluster = services.cluster()
    now_ms = cluster.ports.clock.time_ms()
    sought = FindQuery(
        key=values["key"],
        topic=values["topic"],
        group=values["group"],
        since_ms=max(0, now_ms - values["since_s"] * 1000),
        until_ms=now_ms - values["older_than_s"] * 1000 if values["older_than_s"] else None,
        limit=values["limit"],
        records_max=SEARCHED_MAX,
    )
    return find(cluster, services.config.names, sought)


def paging_of(found: Listing, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many transactions there are, and where the next page begins."""
    following = values["offset"] + values["limit"]
    return {
        "total": found.undecided,
        "next_offset": following if following < found.undecided else None,
    }


def life_of(services: Services, values: Mapping[str, Any]) -> Life:
    """Return what the logs say of one transaction; refuses an id without a time by 400, or 404."""
    transaction_id, from_ms = values["id"], values["from_ms"]
    if from_ms is None and search.birth_ms(transaction_id) is None:
        raise Refusal(
            400,
            f"{transaction_id!r} is no id that halfbridge makes, so it does not say when the"
            " transaction began: give from_ms in the address, the time since which to search, in"
            " milliseconds since 1970",
        )
    wanted = Wanted(id=transaction_id, from_ms=from_ms, until_ms=values["until_ms"])
    life = look_up(services.cluster(), services.config.names, wanted)
    if life.state == NOT_FOUND:
        raise Refusal(404, "; ".join(life.notes) or "no record of this id was found")
    return life


async def _transactions(call: Call) -> dict[str, Any]:
    found = await call.read(read_listing)
    body = plain.listing(found)
    body["transactions"] = body["transactions"][call.values["offset"] :]
    return {**body, **paging_of(found, call.values)}


async def _search_by_key(call: Call) -> dict[str, Any]:
    return plain.found(await call.read(found_by_key))


async def _transaction(call: Call) -> dict[str, Any]:
    return plain.life(await call.read(life_of))


async def _explanation(call: Call) -> dict[str, Any]:
    life = await call.read(life_of)
    return {"id": life.id, "state": life.state, "sentences": list(explain(life))}


ROUTES = (
    Route(
        path="/transactions",
        summary="Undecided transactions, the oldest first.",
        answer=_transactions,
        query=LISTED_BY,
    ),
    Route(
        path="/find",
        summary="The newest transactions with a message of a key, and what became of each.",
        answer=_search_by_key,
        query=(
            Argument(
                "key",
                str,
                "Key of a message: text, with \\xff for a byte that is no UTF-8, or 0x and digits.",
                required=True,
                minimum=1,
            ),
            *FOUND_BY_KEY,
        ),
    ),
    Route(
        path="/transactions/{id}",
        summary="One transaction's life: every record of it, and what became of each.",
        answer=_transaction,
        query=FOUND_BY,
    ),
    Route(
        path="/transactions/{id}/explain",
        summary="Why a transaction is where it is, what happens next, and what can be done.",
        answer=_explanation,
        query=FOUND_BY,
    ),
)
