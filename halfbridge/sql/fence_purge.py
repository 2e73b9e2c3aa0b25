"""Deletes fence rows that no check can ask for any more.

A check of a transaction that is older than the watermark, and has no row, gets no answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from time import sleep, time_ns
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import and_, bindparam, delete, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from halfbridge.serde.units import DAY_MS, NS_PER_MS
from halfbridge.sql.dialects.base import CHECK_WAIT_MS
from halfbridge.sql.errors import PurgeError
from halfbridge.sql.fence_table import BIRTH_DIGITS, CLOCK_MARGIN_MS, YOUNG_MS
from halfbridge.sql.tables import OWN_KEY, NowMs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.sql.fence_table import FenceTable

Result = TypeVar("Result")

# The daemon's default, and the default of `halfbridge topics create` for the dead-letter topic.
TRANSACTION_AGE_MS_MAX = 3 * DAY_MS
DEAD_LETTER_RETENTION_MS = 30 * DAY_MS
# Rows deleted by one database transaction: so few that its locks are held only briefly.
_PURGE_BATCH = 1_000
# How often a transaction of the purge is tried that meets a lock, each time for CHECK_WAIT_MS.
# Transactions that wait behind the purge continue between two tries. Locks that are held longer
# need an operator.
ATTEMPTS_MAX = 5
_PAUSE_S = 1.0  # between two tries


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """How many rows, of transactions born before which time (epoch milliseconds), were deleted."""

    purged_before_ms: int
    rows: int


def purge(
    fence: FenceTable,
    *,
    transaction_age_ms_max: int = TRANSACTION_AGE_MS_MAX,
    dead_letter_retention_ms: int = DEAD_LETTER_RETENTION_MS,
    older_than_ms: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> PurgeResult:
    """Delete rows that no check needs any more. A purge may be interrupted and repeated.

    The watermark is committed first. From then on a missing row of a transaction born before the
    watermark proves nothing, and `check` gives no answer for such a transaction.

    Local transactions continue during a purge, which does not wait for those in flight, except on
    SQLite, which has one writer. It waits for locks on the rows that it deletes, ATTEMPTS_MAX times
    CHECK_WAIT_MS in each of its transactions.

    Args:
        fence: The table; the rows of all producer groups are purged.
        transaction_age_ms_max: The daemon's setting.
        dead_letter_retention_ms: Retention of the dead-letter topic.
        older_than_ms: Least age of the deleted rows; None: the least age that is allowed.
        progress: Called after each batch with the number of rows deleted so far.

    Raises:
        ValueError: older_than_ms is too small; the caller gives a greater age.
        PurgeError: Locks are held for too long, or a clock is wrong; run the purge again.
    """
    keep_ms = needed_ms(transaction_age_ms_max, dead_letter_retention_ms)
    if older_than_ms is not None:
        if older_than_ms < keep_ms:
            raise ValueError(
                f"older_than_ms is {older_than_ms}; rows are needed for {keep_ms} ms:"
                " max(2 x transaction_age_ms_max, dead_letter_retention_ms +"
                " transaction_age_ms_max, 25 hours)"
            )
        keep_ms = older_than_ms
    before_ms = _patiently(fence, lambda: _move_watermark(fence, keep_ms))
    rows = 0
    for group in _patiently(fence, partial(_groups, fence)):
        for deleted in _delete(fence, group, before_ms):
            rows += deleted
            if progress is not None:
                progress(rows)
    return PurgeResult(purged_before_ms=before_ms, rows=rows)


def _patiently(fence: FenceTable, step: Callable[[], Result]) -> Result:
    """Run one transaction of the purge, and repeat it when it meets a lock; return its result."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return step()
        except DBAPIError as error:
            if not fence.database.is_held_up(error):
                raise
            if attempt == ATTEMPTS_MAX:
                raise _held_up(fence, error) from error
        _pause(fence)
    raise AssertionError  # the last attempt has returned or raised


def _pause(fence: FenceTable) -> None:
    if fence.engine.dialect.is_async:  # in a greenlet of AsyncFence
        await_only(asyncio.sleep(_PAUSE_S))
    else:
        sleep(_PAUSE_S)


def _held_up(fence: FenceTable, error: DBAPIError) -> PurgeError:
    try:
        with fence.own_transaction(writes=False) as connection:
            others = fence.database.others(connection, fence.table)
    except DBAPIError as cause:
        others = f"which transaction holds the locks is not known ({cause.orig})"
    text = " ".join(str(error.orig).split())
    return PurgeError(
        f"others have locked rows that a purge of {fence.table.fullname} needs: it waited"
        f" {ATTEMPTS_MAX} times for {CHECK_WAIT_MS} ms ({text}): {others}; run the purge again"
    )


def _move_watermark(fence: FenceTable, keep_ms: int) -> int:
    """Store the watermark, which never moves back; return the time up to which rows are deleted."""
    column = fence.table.c.purged_before_ms
    with fence.own_transaction() as connection:
        now_ms = int(connection.execute(select(NowMs())).scalar_one())
        apart_ms = now_ms - time_ns() // NS_PER_MS
        if abs(apart_ms) > CLOCK_MARGIN_MS:
            raise PurgeError(
                f"the database's clock and the one of this machine are {apart_ms} ms apart, at most"
                f" {CLOCK_MARGIN_MS} are allowed: nothing was deleted, for rows could be younger"
                " than they appear; set the clock that is wrong"
            )
        before_ms = now_ms - keep_ms
        fence.read_info(connection)  # whether there is a row to store it in
        is_behind = column.is_(None) | (column < before_ms)
        watermark = update(fence.table).where(fence.is_watermark(), is_behind)
        connection.execute(watermark.values(purged_before_ms=before_ms))
        connection.commit()
    return before_ms


def _groups(fence: FenceTable) -> list[str]:
    column = fence.table.c.producer_group
    with fence.own_transaction(writes=False) as connection:
        query = select(column).distinct().where(column != OWN_KEY).order_by(column)
        return list(connection.execute(query).scalars())


def _delete(fence: FenceTable, group: str, before_ms: int) -> Iterator[int]:
    """Delete a group's old rows in batches; yield the number of rows of each batch.

    A row is old if both clocks say so: its transaction was born, by the client's clock, and the row
    was written, by the database's clock, before the watermark.
    """
    end, at = f"{max(0, before_ms):0{BIRTH_DIGITS}x}", OWN_KEY  # no younger id is below `end`
    while True:
        ids = _patiently(fence, partial(_ids, fence, group, at, end))
        if not ids:
            return
        yield _patiently(fence, partial(_delete_rows, fence, group, ids, before_ms))
        at = ids[-1]


def _ids(fence: FenceTable, group: str, at: str, end: str) -> list[str]:
    """Return a group's next ids above `at` and below `end`, in order; at most one batch."""
    columns = fence.table.c
    mine = columns.producer_group == group
    between = and_(mine, columns.transaction_id > at, columns.transaction_id < end)
    query = select(columns.transaction_id).where(between)
    ordered = query.order_by(columns.transaction_id).limit(_PURGE_BATCH)
    with fence.own_transaction(writes=False) as connection:
        return list(connection.execute(ordered).scalars())


def _delete_rows(fence: FenceTable, group: str, ids: list[str], before_ms: int) -> int:
    """Delete rows, each by its whole key; return how many were deleted.

    With a condition on a range, MariaDB would lock the next row too, or read the whole table. Then
    the purge would wait for local transactions in flight, and new ones would wait for the purge.
    """
    columns = fence.table.c
    statement = delete(fence.table).where(
        columns.producer_group == group,
        columns.transaction_id == bindparam("id"),
        columns.created_at_ms < before_ms,
    )
    given = [{"id": each} for each in ids]
    with fence.own_transaction() as connection:
        if connection.dialect.supports_sane_multi_rowcount:
            deleted = connection.execute(statement, given).rowcount
        else:  # asyncpg, which does not count the rows of several executions
            deleted = sum(connection.execute(statement, each).rowcount for each in given)
        connection.commit()
    return deleted


def needed_ms(transaction_age_ms_max: int, dead_letter_retention_ms: int) -> int:
    """Return how long a row may be needed, milliseconds.

    Until the transaction was discarded, and its dead letter deleted, also one that was resumed on
    its last day. The transaction is also too old then to enter without reading the watermark.
    """
    last_asked_ms = dead_letter_retention_ms + transaction_age_ms_max
    return max(2 * transaction_age_ms_max, last_asked_ms, YOUNG_MS + CLOCK_MARGIN_MS)
