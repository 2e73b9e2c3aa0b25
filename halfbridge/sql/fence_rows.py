"""Writes and reads fence rows, which say how local transactions ended.

A row is written once: as committed by `enter`, inside the local transaction, or as rolled_back by
`settle`, in a separate transaction. The primary key accepts only one of the two rows. The second
insert waits while the transaction of the first insert is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, String, and_, bindparam, insert, literal, select
from sqlalchemy.exc import IntegrityError

from halfbridge.kafka.errors import NoAnswerError
from halfbridge.sql.dialects import COUNTED
from halfbridge.sql.errors import FencedError, Outcome, TableError
from halfbridge.sql.fence_table import CLOCK_MARGIN_MS, YOUNG_MS, birth_ms
from halfbridge.sql.tables import OWN_KEY, NowMs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Insert, Table

    from halfbridge.sql.fence_table import FenceTable, TableInfo

_ANY_AGE_MS = 1 << 62  # older than every row


@dataclass(frozen=True, slots=True)
class Ended:
    """How a local transaction ended; final.

    Attributes:
        outcome: Committed or rolled back.
        message_count: Number of messages if it was committed; else 0.
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
    """Write the fence row, as committed, into the open transaction.

    The statement also reads the table's own row. So nothing is written on a connection to another
    database, or into a table that was created again: the check would never find such a row. On
    MariaDB the statement locks the own row until the transaction ends; nobody changes the own row.

    The watermark is read for old transactions only, with a lock. Without the lock, a purge could
    move the watermark and delete the row of a check between the read and the insert.

    Raises:
        FencedError: A row exists, or may have been purged; the transaction must not commit.
        TableError: The connection's table is not the fence's; the caller gives another connection.
        SQLAlchemyError: The database refuses; the transaction must not commit.
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
            f" {fence.table_id()}: give a connection to the fence's database; if the table was"
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
    """Write the row if the table is the fence's and the transaction is young; tell whether.

    Raises:
        FencedError: A row exists.
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
    """Return how a local transaction ended; prevent its commit if it has not ended.

    Raises:
        NoAnswerError: The row may have been purged, or the table was replaced.
        SQLAlchemyError, SqlError: The database cannot tell now; ask again. For example, the local
            transaction is in flight for longer than CHECK_WAIT_MS.
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
            # Read after the insert: a purge stores its watermark before it deletes rows, so a row
            # that a purge has deleted before the insert is noticed here.
            _refuse_purged(fence, fence.read_info(connection), transaction_id)
            connection.commit()
            return Ended(Outcome.ROLLED_BACK, 0)
    # A new transaction, whose snapshot is taken after the other row was committed.
    ended = find(fence, producer_group=producer_group, transaction_id=transaction_id)
    if ended is None:
        raise NoAnswerError(f"the row of {transaction_id} was deleted while it was read")
    return ended


def find(fence: FenceTable, *, producer_group: str, transaction_id: str) -> Ended | None:
    """Return how a local transaction ended; None: no row. Writes nothing.

    Raises:
        NoAnswerError: The table was replaced.
        SQLAlchemyError, SqlError: The database cannot tell now; ask again.
    """
    with fence.own_transaction(writes=False) as connection:
        columns = fence.table.c
        mine = and_(
            columns.producer_group == producer_group, columns.transaction_id == transaction_id
        )
        query = select(columns.outcome, columns.message_count).where(mine)
        found = connection.execute(query).one_or_none()
        _refuse_other(fence, fence.read_info(connection), transaction_id)
    return None if found is None else Ended(Outcome(found[0]), found[1])


@lru_cache(maxsize=64)  # building the statement takes as long as executing it
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
            f"{transaction_id} has no row in {fence.table.fullname}, and rows of that age were"
            " purged: how it ended is not known any more"
        )


def _is_purged(watermark_ms: int | None, transaction_id: str) -> bool:
    """Tell whether a row of the transaction may have been purged."""
    return watermark_ms is not None and birth_ms(transaction_id) < watermark_ms + CLOCK_MARGIN_MS


def _refuse_other(fence: FenceTable, info: TableInfo, transaction_id: str) -> None:
    if info.table_id != fence.table_id():
        raise NoAnswerError(f"{fence.table.fullname} was made anew after {transaction_id} began")
