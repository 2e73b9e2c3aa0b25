"""Settles rows that are neither confirmed nor withdrawn: pre-sent rows and prepared rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import false, func, or_, select, update

from halfbridge.sql.local_messages.marks import engine_of
from halfbridge.sql.local_messages.rows import (
    TO_RELAY,
    UNSETTLED,
    RowEvent,
    RowState,
    headers_of,
)
from halfbridge.sql.local_messages.tables import CAUSE_CHARS_MAX, event_update, in_states
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement, Update

    from halfbridge.serde.headers import Header
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# Most rows that one pass withdraws or asks about; the next pass handles the next rows. A pass locks
# the rows that it withdraws, and asks a user's callback for each of the others.
ROWS_MAX = 200
_NOT_CONFIRMED = "its local transaction did not confirm it in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMessage:
    """A prepared row, as shown to the callback.

    Attributes:
        id: What `LocalMessages.prepare` returned.
        topic: The real topic.
        key: As written, as are value and headers.
        created_at: When the row was written, by the database's clock, epoch milliseconds.
        asked: How often the callback has answered that it does not know yet.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    created_at: int
    asked: int


class Settling:
    """Withdraws rows that were not confirmed, and asks a callback about prepared rows.

    The callback returns True (the work is done: relay the row), False (the work will never be
    done), or None (not known yet: ask again later). It must not return False while the work can
    still be done. An exception counts as None.
    """

    def __init__(
        self,
        messages: LocalMessages,
        config: RelayConfig,
        callback: Callable[[PreparedMessage], bool | None] | None,
    ) -> None:
        self._table = messages.tables.messages
        self._engine = engine_of(messages)
        self._config = config
        self._callback = callback

    def withdraw(self) -> int:
        """Withdraw pre-sent rows that are too old; return how many.

        A row that an open local transaction has confirmed is locked, and skipped. A confirmation
        after the withdrawal fails.
        """
        columns = self._table.c
        query = (
            select(columns.id)
            .where(
                columns.decision_acknowledged == false(),
                columns.state == RowState.UNKNOWN.value,
                columns.created_at <= NowMs() - self._config.unknown_ms_max,
            )
            .order_by(columns.id)
            .limit(ROWS_MAX)
            .with_for_update(skip_locked=True)
        )
        with self._engine.begin() as connection:
            ids = list(connection.execute(query).scalars())
            if not ids:
                return 0
            withdrawn = event_update(self._table, RowEvent.WITHDRAW).where(columns.id.in_(ids))
            return connection.execute(withdrawn.values(cause=_NOT_CONFIRMED)).rowcount

    def ask(self) -> int:
        """Ask the callback about prepared rows that are old enough; return how many it settled.

        Several relays may ask about the same row; the first settlement is final. A row that cannot
        be decoded stays prepared, gets the cause, and is tried again later.
        """
        callback = self._callback
        return 0 if callback is None else sum(self._take(each, callback) for each in self._due())

    def _due(self) -> list[int]:
        columns = self._table.c
        query = (
            select(columns.id)
            .where(*self._is_due(), columns.created_at <= NowMs() - self._config.prepared_ms_min)
            .order_by(columns.id)
            .limit(ROWS_MAX)
        )
        with self._engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def _is_due(self) -> list[ColumnElement[bool]]:
        columns = self._table.c
        return [
            columns.decision_acknowledged == false(),
            columns.state == RowState.PREPARED.value,
            or_(columns.next_attempt_at.is_(None), columns.next_attempt_at <= NowMs()),
        ]

    def _read(self, row_id: int) -> Any:
        """Return one row with its body, which may be large; None when the row is not due now."""
        columns = self._table.c
        query = select(
            *(columns.id, columns.topic, columns.key, columns.value),
            *(columns.headers, columns.created_at, columns.retries),
        ).where(columns.id == row_id, *self._is_due())
        with self._engine.connect() as connection:
            return connection.execute(query).one_or_none()

    def _take(self, row_id: int, callback: Callable[[PreparedMessage], bool | None]) -> bool:
        row = self._read(row_id)
        if row is None:  # another relay or the row's writer has settled it
            return False
        try:
            shown = _shown(row)
        except ValueError as error:
            _LOG.error("cannot ask the callback about local message %d: %s", row.id, error)
            self._postpone(row, str(error)[:CAUSE_CHARS_MAX])
            return False
        answer = _answer(callback, shown)
        if answer is None:
            self._postpone(row, None)
            return False
        event = RowEvent.SETTLE_SUCCESS if answer else RowEvent.SETTLE_ROLLBACK
        settled = event_update(self._table, event)
        return self._write(row.id, settled, next_attempt_at=None, retries=0, cause=None)

    def _postpone(self, row: Any, cause: str | None) -> None:
        asked = row.retries + 1
        again_at = NowMs() + self._config.retry_wait_ms(asked)
        # Not an event: the row keeps its state.
        postponed = update(self._table).where(in_states(self._table, [RowState.PREPARED]))
        self._write(row.id, postponed, next_attempt_at=again_at, retries=asked, cause=cause)

    def _write(self, row_id: int, statement: Update, **values: object) -> bool:
        """Run an UPDATE for one row; return whether the row was in the right state."""
        statement = statement.where(self._table.c.id == row_id).values(**values)
        with self._engine.begin() as connection:
            return bool(connection.execute(statement).rowcount)


def _answer(
    callback: Callable[[PreparedMessage], bool | None], row: PreparedMessage
) -> bool | None:
    try:
        answer = callback(row)
    except Exception:  # noqa: BLE001  (the user's code; the callback is asked again)
        _LOG.exception("the callback failed for local message %d; it is asked again", row.id)
        return None
    if answer is None or isinstance(answer, bool):
        return answer
    _LOG.error("the callback returned %r for local message %d: not a bool", answer, row.id)
    return None


def _shown(row: Any) -> PreparedMessage:
    return PreparedMessage(
        id=row.id,
        topic=row.topic,
        key=row.key,
        value=row.value,
        headers=headers_of(row.headers),
        created_at=row.created_at,
        asked=row.retries,
    )


def backlog(messages: LocalMessages) -> tuple[dict[str, int], int]:
    """Return how many rows are not done, by state; reads the index of all such rows.

    Also returns the age of the oldest row that is neither relayed nor given up, or 0, milliseconds.
    """
    columns = messages.tables.messages.c
    waiting = (*UNSETTLED, *TO_RELAY)
    shown = (*waiting, RowState.GLOBAL_COMMIT, RowState.MESSAGE_ERROR)
    query = (
        select(columns.state, func.count(), func.min(columns.created_at))
        .where(
            columns.decision_acknowledged == false(),
            in_states(messages.tables.messages, shown),
        )
        .group_by(columns.state)
    )
    with engine_of(messages).connect() as connection:
        found = connection.execute(query).all()
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
    rows = {state.value: 0 for state in shown} | {state: count for state, count, _ in found}
    oldest = min((born for state, _, born in found if RowState(state) in waiting), default=now_ms)
    return rows, max(0, now_ms - oldest)
