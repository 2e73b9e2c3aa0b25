"""Rows of the fence table that say how a local transaction ended: written, and read.

A row is written once: by `enter`, as committed, inside of the local transaction; or by `settle`,
as rolled_back, in a transaction of its own. The primary key lets one of them through, and makes
the other one wait while that is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, String, and_, bindparam, insert, literal, select
from sqlalchemy.exc import IntegrityError

from halfbridge.bridge.errors import NoAnswerError
from halfbridge.sql.dialects import COUNTED
from halfbridge.sql.errors import FencedError, Outcome, TableError
from halfbridge.sql.fence_table import CLOCK_MARGIN_MS, YOUNG_MS, birth_ms
from halfbridge.sql.tables import OWN_KEY, NowMs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Insert, Table

    from halfbridge.sql.fence_table import FenceTable, TableInfo

_ANY_AGE_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class Ended:
    """How a local transaction ended, for good.

    Attributes:
        outcome: Committed or rolled back.
        message_count: How many messages it has, where it was committed; else 0.
    """

    outcome: Outcome
    message_count: int


def write_committed(
    fence: FenceTable,
    connection: Connection,
    *,
    producer_group: str,
    transaction_id: str,
    message_count: int,
) -> None:
    """Write into the open transaction that the local transaction commits with it.

    The statement looks at the table's own row too, so that a connection to another database, or a
    table that was made anew, takes no row that the check would never find. On MariaDB it locks
    that row until the transaction ends, which nobody minds, for nobody changes it. The watermark is
    read for old transactions only, and locked: whoever had read it before a purge moved it could
    enter after that had deleted the row of a check.

    Raises:
        FencedError: a row is there, or could have been purged; the transaction must not commit.
        TableError: this connection's table is not the fence's; the caller gives the right one.
        SQLAlchemyError: the database refuses; the transaction must not commit.
    """
    parameters = {
        "group": producer_group,
        "id": transaction_id,
        "count": message_count,
        "table_id": fence.table_id(),
        "born_ms": birth_ms(transaction_id),
    }
    if _write(fence, connection, {**parameters, "young_ms": YOUNG_MS}):
        return
    info = fence.read_info(connection)
    if info.table_id != fence.table_id():
        raise TableError(
            f"{fence.table.fullname} of this connection is {info.table_id}, the fence's own is"
            f" {fence.table_id()}: give a connection to the fence's database; where the table was"
            " made anew, make a new Fence"
        )
    if _is_purged(fence.hold_watermark(connection), transaction_id) or not _write(
        fence, connection, {**parameters, "young_ms": _ANY_AGE_MS}
    ):
        raise FencedError(
            f"{transaction_id} is as old as rows that were purged: its row could be one of them",
            transaction_id=transaction_id,
        )


def _write(fence: FenceTable, connection: Connection, parameters: Mapping[str, Any]) -> bool:
    """Write the row, if the table is the fence's and the transaction is so young; tell whether.

    Raises:
        FencedError: a row is there.
    """
    try:
        written = connection.execute(_committed(fence.table), parameters, execution_options=COUNTED)
    except IntegrityError as error:
        transaction_id = parameters["id"]
        raise FencedError(
            f"{transaction_id} has a fence row already: a check came before `enter` and rolled the"
            " message transaction back, or it was entered before",
            transaction_id=transaction_id,
        ) from error
    return written.rowcount == 1


def settle(fence: FenceTable, *, producer_group: str, transaction_id: str) -> Ended:
    """Return how a local transaction ended; one that has not ended never commits from now on.

    Raises:
        NoAnswerError: its row may have been purged, or the table is another one now.
        SQLAlchemyError, SqlError: the database cannot tell now; ask again. A local transaction in
            flight that lasts longer than CHECK_WAIT_MS is one reason.
    """
    row = {
        "producer_group": producer_group,
        "transaction_id": transaction_id,
        "outcome": Outcome.ROLLED_BACK.value,
        "message_count": 0,
        "created_at_ms": NowMs(),
    }
    with fence.own_transaction() as connection:
        if fence.database.insert_if_absent(connection, fence.table, row):
            # Behind the insert: a purge that took the row before it had stored its watermark.
            _refuse_purged(fence, fence.read_info(connection), transaction_id)
            connection.commit()
            return Ended(Outcome.ROLLED_BACK, 0)
    # In another transaction, whose snapshot is taken after the row was committed.
    with fence.own_transaction(writes=False) as connection:
        columns = fence.table.c
        mine = and_(
            columns.producer_group == producer_group, columns.transaction_id == transaction_id
        )
        query = select(columns.outcome, columns.message_count).where(mine)
        found = connection.execute(query).one_or_none()
        _refuse_other(fence, fence.read_info(connection), transaction_id)
    if found is None:
        raise NoAnswerError(f"the row of {transaction_id} went while it was looked for")
    return Ended(Outcome(found[0]), found[1])


@lru_cache(maxsize=64)  # made anew it costs as much as the statement
def _committed(table: Table) -> Insert:
    """Return the statement of `_write`."""
    own = table.alias("own")
    born_ms = bindparam("born_ms", type_=BigInteger())
    values = select(
        bindparam("group", type_=String()),
        bindparam("id", type_=String()),
        literal(Outcome.COMMITTED.value),
        bindparam("count", type_=Integer()),
        NowMs(),
    ).where(
        and_(own.c.producer_group == OWN_KEY, own.c.transaction_id == OWN_KEY),
        own.c.table_id == bindparam("table_id"),
        NowMs() - bindparam("young_ms", type_=BigInteger()) <= born_ms,
    )
    names = ("producer_group", "transaction_id", "outcome", "message_count", "created_at_ms")
    return insert(table).from_select(names, values)


def _refuse_purged(fence: FenceTable, info: TableInfo, transaction_id: str) -> None:
    _refuse_other(fence, info, transaction_id)
    if _is_purged(info.purged_before_ms, transaction_id):
        raise NoAnswerError(
            f"{transaction_id} has no row in {fence.table.fullname}, and rows as old as it were"
            " purged: how it ended is not known any more"
        )


def _is_purged(watermark_ms: int | None, transaction_id: str) -> bool:
    """Tell whether a row of the transaction may have been purged."""
    return watermark_ms is not None and birth_ms(transaction_id) < watermark_ms + CLOCK_MARGIN_MS


def _refuse_other(fence: FenceTable, info: TableInfo, transaction_id: str) -> None:
    if info.table_id != fence.table_id():
        raise NoAnswerError(
            f"{fence.table.fullname} was made anew: it knows nothing of {transaction_id}"
        )
