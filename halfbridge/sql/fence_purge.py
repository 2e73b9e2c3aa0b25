"""Deletes fence rows that nobody can ask for any more; what is too old to be known is no answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, select, update

from halfbridge.sql.fence_table import BIRTH_DIGITS
from halfbridge.sql.tables import OWN_KEY, NowMs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.sql.fence_table import FenceTable

_DAY_MS = 86_400_000
# Defaults of the daemon, and of `halfbridge topics create` for the dead-letter topic.
TRANSACTION_AGE_MS_MAX = 3 * _DAY_MS
DEAD_LETTER_RETENTION_MS = 30 * _DAY_MS
# Rows deleted by one database transaction: few enough that nobody waits for its locks.
_PURGE_BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """What a purge has done.

    Attributes:
        purged_before_ms: Rows of transactions born before it were deleted, epoch milliseconds.
        rows: How many rows were deleted.
    """

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
    """Delete rows that no check needs any more; may be interrupted and repeated.

    The watermark is stored and committed first: from then on a missing row of a transaction
    born before it proves nothing, and `check` gives no answer.

    Args:
        fence: Whose rows, of all producer groups.
        transaction_age_ms_max: The daemon's setting.
        dead_letter_retention_ms: Retention of the dead-letter topic.
        older_than_ms: Keep rows so long; None: as long as is needed.
        progress: Called with the number of rows deleted so far, after each batch.

    Raises:
        ValueError: older_than_ms is less than is needed; give more.
    """
    keep_ms = needed_ms(transaction_age_ms_max, dead_letter_retention_ms)
    if older_than_ms is not None:
        if older_than_ms < keep_ms:
            raise ValueError(
                f"older_than_ms is {older_than_ms}; rows are needed for {keep_ms} ms:"
                " max(2 x transaction_age_ms_max, dead_letter_retention_ms +"
                " transaction_age_ms_max)"
            )
        keep_ms = older_than_ms
    before_ms = _move_watermark(fence, keep_ms)
    rows = 0
    for group in _groups(fence):
        for deleted in _delete(fence, group, before_ms):
            rows += deleted
            if progress is not None:
                progress(rows)
    return PurgeResult(purged_before_ms=before_ms, rows=rows)


def _move_watermark(fence: FenceTable, keep_ms: int) -> int:
    """Store the watermark, which never goes back; return what this purge may delete up to."""
    column = fence.table.c.purged_before_ms
    with fence.own_transaction() as connection:
        before_ms = int(connection.execute(select(NowMs())).scalar_one()) - keep_ms
        is_behind = column.is_(None) | (column < before_ms)
        own_row = update(fence.table).where(fence.is_own_row(), is_behind)
        connection.execute(own_row.values(purged_before_ms=before_ms))
        connection.commit()
    return before_ms


def _groups(fence: FenceTable) -> list[str]:
    column = fence.table.c.producer_group
    with fence.own_transaction(writes=False) as connection:
        query = select(column).distinct().where(column != OWN_KEY).order_by(column)
        return list(connection.execute(query).scalars())


def _delete(fence: FenceTable, group: str, before_ms: int) -> Iterator[int]:
    """Delete a group's old rows batch by batch; yield how many each time.

    A row is old by both clocks: its id was born, by the client's, and the row was written, by
    the database's, before the watermark.
    """
    columns = fence.table.c
    mine = columns.producer_group == group
    end, at = lowest_id(before_ms), OWN_KEY
    while True:
        with fence.own_transaction() as connection:
            between = and_(mine, columns.transaction_id > at, columns.transaction_id < end)
            query = select(columns.transaction_id).where(between)
            ordered = query.order_by(columns.transaction_id).limit(_PURGE_BATCH)
            ids = list(connection.execute(ordered).scalars())
            if not ids:
                return
            old = and_(between, columns.transaction_id <= ids[-1])
            statement = delete(fence.table).where(old, columns.created_at_ms < before_ms)
            deleted = connection.execute(statement).rowcount
            connection.commit()
        at = ids[-1]
        yield deleted


def needed_ms(transaction_age_ms_max: int, dead_letter_retention_ms: int) -> int:
    """Return how long a row may be needed, milliseconds.

    By then the transaction was discarded, and its dead letter is gone, or was resumed last of all
    and aged once more.
    """
    return max(2 * transaction_age_ms_max, dead_letter_retention_ms + transaction_age_ms_max)


def lowest_id(at_ms: int) -> str:
    """Return the lowest transaction id that could be born at `at_ms`."""
    return f"{max(0, at_ms):0{BIRTH_DIGITS}x}"
