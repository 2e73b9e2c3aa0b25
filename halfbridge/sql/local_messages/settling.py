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
    state_after,
    states_before,
)
from halfbridge.sql.local_messages.tables import CAUSE_CHARS_MAX
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement

    from halfbridge.serde.headers import Header
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# Most rows that one pass withdraws or asks about; the next pass handles the next rows.
ROWS_MAX = 200
_NOT_CONFIRMED = "its local transaction did not confirm it in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMessage:
    """A prepared row, as shown to the callback.

    Attributes:
        id: What `LocalMessages.prepare` returned.
        topic: The real topic.
        key: As written.
        value: As written.
        headers: As written.
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
            return connection.execute(
                update(self._table)
                .where(columns.id.in_(ids), self._is_before(RowEvent.WITHDRAW))
                .values(
                    state=state_after(RowEvent.WITHDRAW).value,
                    cause=_NOT_CONFIRMED,
                    updated_at=NowMs(),
                )
            ).rowcount

    def ask(self) -> int:
        """Ask the callback about prepared rows that are old enough; return how many it settled.

        Several relays may ask about the same row; the first settlement is final. A row that cannot
        be decoded stays prepared, gets the cause, and is tried again later.
        """
        if self._callback is None:
            return 0
        return sum(self._take(row_id) for row_id in self._due())

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

    def _take(self, row_id: int) -> bool:
        """Ask about one row, and write the answer; return whether the row is settled."""
        row = self._read(row_id)
        if row is None:  # another relay or the row's writer has settled it
            return False
        try:
            shown = _shown(row)
        except ValueError as error:
            _LOG.error("cannot ask the callback about local message %d: %s", row.id, error)
            self._postpone(row, str(error)[:CAUSE_CHARS_MAX])
            return False
        answer = self._answer(shown)
        if answer is None:
            self._postpone(row, None)
            return False
        event = RowEvent.SETTLE_SUCCESS if answer else RowEvent.SETTLE_ROLLBACK
        return self._write(
            row.id,
            event,
            state=state_after(event).value,
            updated_at=NowMs(),
            next_attempt_at=None,
            retries=0,
            cause=None,
        )

    def _postpone(self, row: Any, cause: str | None) -> None:
        asked = row.retries + 1
        again_at = NowMs() + self._config.retry_wait_ms(asked)
        # Not an event: the row keeps its state.
        self._write(
            row.id, RowEvent.SETTLE_SUCCESS, next_attempt_at=again_at, retries=asked, cause=cause
        )

    def _write(self, row_id: int, event: RowEvent, **values: Any) -> bool:
        """Update a row if `event` is legal in its state; return whether it was."""
        statement = update(self._table).where(self._table.c.id == row_id, self._is_before(event))
        with self._engine.begin() as connection:
            return bool(connection.execute(statement.values(**values)).rowcount)

    def _answer(self, row: PreparedMessage) -> bool | None:
        if self._callback is None:
            return None
        try:
            answer = self._callback(row)
        except Exception:  # noqa: BLE001  (the user's code; the callback is asked again)
            _LOG.exception("the callback failed for local message %d; it is asked again", row.id)
            return None
        if answer is None or isinstance(answer, bool):
            return answer
        _LOG.error("the callback returned %r for local message %d: not a bool", answer, row.id)
        return None

    def _is_before(self, event: RowEvent) -> ColumnElement[bool]:
        before: ColumnElement[bool] = self._table.c.state.in_(
            [state.value for state in states_before(event)]
        )
        return before


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


@dataclass(frozen=True, slots=True)
class Backlog:
    """The rows that are not done, by state; and the age of the oldest to be relayed, or 0."""

    rows: dict[str, int]
    oldest_age_ms: int


def backlog(messages: LocalMessages) -> Backlog:
    """Return the rows that are not done; reads the index of all such rows."""
    columns = messages.tables.messages.c
    waiting = (*UNSETTLED, *TO_RELAY)
    shown = (*waiting, RowState.GLOBAL_COMMIT, RowState.MESSAGE_ERROR)
    query = (
        select(columns.state, func.count(), func.min(columns.created_at))
        .where(
            columns.decision_acknowledged == false(),
            columns.state.in_([state.value for state in shown]),
        )
        .group_by(columns.state)
    )
    with engine_of(messages).connect() as connection:
        found = connection.execute(query).all()
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
    rows = {state.value: 0 for state in shown} | {state: count for state, count, _ in found}
    oldest = min((born for state, _, born in found if RowState(state) in waiting), default=now_ms)
    return Backlog(rows, max(0, now_ms - oldest))
