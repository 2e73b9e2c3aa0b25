"""Deletes fence rows that nobody can ask for any more; what is too old to be known is no answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import sleep, time_ns
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import and_, bindparam, delete, select, update
from sqlalchemy.exc import DBAPIError

from halfbridge.sql.dialects import CHECK_WAIT_MS
from halfbridge.sql.errors import PurgeError
from halfbridge.sql.fence_table import BIRTH_DIGITS, CLOCK_MARGIN_MS, YOUNG_MS
from halfbridge.sql.tables import OWN_KEY, NowMs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.sql.fence_table import FenceTable

Result = TypeVar("Result")

_DAY_MS = 86_400_000
# Defaults of the daemon, and of `halfbridge topics create` for the dead-letter topic.
TRANSACTION_AGE_MS_MAX = 3 * _DAY_MS
DEAD_LETTER_RETENTION_MS = 30 * _DAY_MS
# Rows deleted by one database transaction: few enough that nobody waits for its locks.
_PURGE_BATCH = 1_000
# How often one of its transactions is tried that meets a lock, each time for CHECK_WAIT_MS. Who
# queued up behind it meanwhile goes on in between. Longer locks are for an operator to look at.
ATTEMPTS_MAX = 5
_PAUSE_S = 1.0
_NS_PER_MS = 1_000_000


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

    Local transactions go on beside it, and it does not wait for those in flight, but on SQLite,
    which has one writer. What it waits for are locks on the rows themselves: ATTEMPTS_MAX times
    CHECK_WAIT_MS for each of its transactions.

    Args:
        fence: Whose rows, of all producer groups.
        transaction_age_ms_max: The daemon's setting.
        dead_letter_retention_ms: Retention of the dead-letter topic.
        older_than_ms: Keep rows so long; None: as long as is needed.
        progress: Called with the number of rows deleted so far, after each batch.

    Raises:
        ValueError: older_than_ms is less than is needed; give more.
        PurgeError: others hold locks for too long, or a clock is wrong; run it again.
        SQLAlchemyError: the database refuses.
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
    """Return what one transaction of the purge returns, tried again where others hold it up.

    Raises:
        PurgeError: they do so for too long.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return step()
        except DBAPIError as error:
            if not fence.database.is_held_up(error):
                raise
            if attempt == ATTEMPTS_MAX:
                raise _held_up(fence, error) from error
        sleep(_PAUSE_S)
    raise AssertionError  # the last attempt has returned or raised


def _held_up(fence: FenceTable, error: DBAPIError) -> PurgeError:
    try:
        with fence.own_transaction(writes=False) as connection:
            others = fence.database.others(connection, fence.table)
    except DBAPIError as trouble:
        others = f"who does is not known ({trouble.orig})"
    told = " ".join(str(error.orig).split())
    return PurgeError(
        f"others have locked what a purge of {fence.table.fullname} needs, {ATTEMPTS_MAX} times for"
        f" {CHECK_WAIT_MS} ms ({told}): {others}; run the purge again"
    )


def _move_watermark(fence: FenceTable, keep_ms: int) -> int:
    """Store the watermark, which never goes back; return what this purge may delete up to.

    Raises:
        PurgeError: a clock is wrong.
    """
    column = fence.table.c.purged_before_ms
    with fence.own_transaction() as connection:
        now_ms = int(connection.execute(select(NowMs())).scalar_one())
        apart_ms = now_ms - time_ns() // _NS_PER_MS
        if abs(apart_ms) > CLOCK_MARGIN_MS:
            raise PurgeError(
                f"the database's clock and the one of this machine are {apart_ms} ms apart, at most"
                f" {CLOCK_MARGIN_MS} are allowed: nothing was deleted, for rows could be younger"
                " than they look; set the clock that is wrong"
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
    """Delete a group's old rows batch by batch; yield how many each time.

    A row is old by both clocks: its id was born, by the client's, and the row was written, by
    the database's, before the watermark.
    """
    end, at = lowest_id(before_ms), OWN_KEY
    while True:
        ids = _patiently(fence, partial(_ids, fence, group, at, end))
        if not ids:
            return
        yield _patiently(fence, partial(_delete_rows, fence, group, ids, before_ms))
        at = ids[-1]


def _ids(fence: FenceTable, group: str, at: str, end: str) -> list[str]:
    """Return a group's next ids behind `at` and below `end`, by id; at most a batch."""
    columns = fence.table.c
    mine = columns.producer_group == group
    between = and_(mine, columns.transaction_id > at, columns.transaction_id < end)
    query = select(columns.transaction_id).where(between)
    ordered = query.order_by(columns.transaction_id).limit(_PURGE_BATCH)
    with fence.own_transaction(writes=False) as connection:
        return list(connection.execute(ordered).scalars())


def _delete_rows(fence: FenceTable, group: str, ids: list[str], before_ms: int) -> int:
    """Delete rows, each by its whole key; return how many.

    A condition on many rows would have MariaDB lock the row behind them, or read the whole table:
    it would wait for local transactions in flight, and new ones for it.
    """
    columns = fence.table.c
    statement = delete(fence.table).where(
        columns.producer_group == group,
        columns.transaction_id == bindparam("id"),
        columns.created_at_ms < before_ms,
    )
    with fence.own_transaction() as connection:
        deleted = connection.execute(statement, [{"id": each} for each in ids]).rowcount
        connection.commit()
    return deleted


def needed_ms(transaction_age_ms_max: int, dead_letter_retention_ms: int) -> int:
    """Return how long a row may be needed, milliseconds.

    By then the transaction was discarded, and its dead letter is gone, or was resumed last of all
    and aged once more; and it is too old to enter without a look at the watermark.
    """
    last_asked_ms = dead_letter_retention_ms + transaction_age_ms_max
    return max(2 * transaction_age_ms_max, last_asked_ms, YOUNG_MS + CLOCK_MARGIN_MS)


def lowest_id(at_ms: int) -> str:
    """Return the lowest transaction id that could be born at `at_ms`."""
    return f"{max(0, at_ms):0{BIRTH_DIGITS}x}"
