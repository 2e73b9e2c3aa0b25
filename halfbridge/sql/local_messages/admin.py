"""Commands of operators on a local message table: list, show, retry, purge, drop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, func, or_, select, true

from halfbridge.serde.units import DAY_MS
from halfbridge.sql.fence_purge import TRANSACTION_AGE_MS_MAX
from halfbridge.sql.local_messages.marks import engine_of
from halfbridge.sql.local_messages.rows import RowEvent, RowState
from halfbridge.sql.local_messages.tables import event_update, in_states
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfbridge.sql.local_messages.writer import LocalMessages

PURGE_AGE_MS_DEFAULT = 7 * DAY_MS  # settled rows are for questions about the last days
_PURGE_BATCH = 1_000  # rows locked at a time
_SHOWN = (
    *("id", "state", "topic", "partition", "key_hash", "transaction_id", "decision_acknowledged"),
    *("retries", "send_alone", "cause", "created_at", "updated_at", "next_attempt_at"),
    *("half_partition", "half_offset", "message_count"),
)


@dataclass(frozen=True, slots=True)
class RowReport:
    """A row as operators see it: columns without bodies, and the bodies as stored."""

    columns: dict[str, Any]
    key: bytes | None
    value: bytes | None
    headers: str | None


def list_rows(
    messages: LocalMessages, *, states: Collection[RowState], after_id: int, limit: int
) -> list[dict[str, Any]]:
    """Return rows in these states with a greater id than `after_id`, by id, without bodies."""
    columns = messages.tables.messages.c
    query = (
        select(*(columns[name] for name in _SHOWN))
        .where(in_states(messages.tables.messages, states), columns.id > after_id)
        .order_by(columns.id)
        .limit(limit)
    )
    with engine_of(messages).connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def count_rows(messages: LocalMessages) -> dict[RowState, int]:
    """Return how many rows are in each state; reads the index of all rows."""
    columns = messages.tables.messages.c
    query = select(columns.state, func.count()).group_by(columns.state)
    with engine_of(messages).connect() as connection:
        found = {RowState(state): count for state, count in connection.execute(query)}
    return {state: found.get(state, 0) for state in RowState}


def show_row(messages: LocalMessages, row_id: int) -> RowReport | None:
    """Return one row; None if it does not exist."""
    columns = messages.tables.messages.c
    bodies = columns.key, columns.value, columns.headers
    query = select(*(columns[name] for name in _SHOWN), *bodies).where(columns.id == row_id)
    with engine_of(messages).connect() as connection:
        row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    return RowReport({name: row[name] for name in _SHOWN}, row["key"], row["value"], row["headers"])


def retry(messages: LocalMessages, row_ids: Collection[int] | None) -> int:
    """Send rows again that were given up (None: all of them); return how many.

    The operator should remove the cause first. Each row is sent in its own message transaction, so
    that a row that fails again does not affect other rows.
    """
    table = messages.tables.messages
    statement = event_update(table, RowEvent.RETRY).values(
        next_attempt_at=None, retries=0, send_alone=true()
    )
    if row_ids is not None:
        statement = statement.where(table.c.id.in_(sorted(row_ids)))
    with engine_of(messages).begin() as connection:
        return connection.execute(statement).rowcount


def purge(
    messages: LocalMessages,
    *,
    older_than_ms: int = PURGE_AGE_MS_DEFAULT,
    transaction_age_ms_max: int = TRANSACTION_AGE_MS_MAX,
) -> int:
    """Delete rows that are done; return how many.

    Rows in GLOBAL_COMMIT that are acknowledged, and rows in LOCAL_ROLLBACK, are deleted if their
    last change is `older_than_ms` ago. Rows in other states are kept, whatever their age. A
    ValueError refuses less than the daemon's transaction_age_ms_max: until then a COMMIT takes
    effect, or a dead letter comes, whose row would be lost.
    """
    if older_than_ms < transaction_age_ms_max:
        raise ValueError(
            f"older_than_ms must be at least transaction_age_ms_max, {transaction_age_ms_max}:"
            " a dead letter may come as late as that"
        )
    columns = messages.tables.messages.c
    is_done = or_(
        and_(
            columns.state == RowState.GLOBAL_COMMIT.value, columns.decision_acknowledged == true()
        ),
        columns.state == RowState.LOCAL_ROLLBACK.value,
    )
    return _delete(messages, and_(is_done, columns.updated_at <= NowMs() - older_than_ms))


def drop_errors(messages: LocalMessages, row_ids: Collection[int]) -> int:
    """Delete rows that were given up, so that their keys continue; return how many."""
    columns = messages.tables.messages.c
    is_error = columns.state == RowState.MESSAGE_ERROR.value
    return _delete(messages, and_(is_error, columns.id.in_(sorted(row_ids))))


def _delete(messages: LocalMessages, condition: Any) -> int:
    """Delete rows in short transactions, which hold their locks only briefly."""
    table = messages.tables.messages
    query = select(table.c.id).where(condition).order_by(table.c.id).limit(_PURGE_BATCH)
    gone = 0
    while True:
        with engine_of(messages).begin() as connection:
            ids = list(connection.execute(query).scalars())
            if ids:
                found = delete(table).where(table.c.id.in_(ids), condition)
                gone += connection.execute(found).rowcount
        if len(ids) < _PURGE_BATCH:
            return gone
