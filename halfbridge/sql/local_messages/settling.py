"""Rows whose local transaction has not said yet what becomes of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import false, func, or_, select, update

from halfbridge.sql.local_messages.relay import engine_of
from halfbridge.sql.local_messages.rows import headers_of
from halfbridge.sql.local_messages.states import (
    TO_RELAY,
    UNSETTLED,
    RowEvent,
    RowState,
    state_after,
    states_before,
)
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement

    from bridge.message import Header
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.writer import LocalMessages

_LOG = logging.getLogger("halfbridge.sql")
# Rows that one look withdraws or asks about; the next look takes the next ones.
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
        created_at: When it was prepared, by the database's clock, epoch milliseconds.
        asked: How often the callback did not know yet.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    created_at: int
    asked: int


class Settling:
    """Withdraws what nobody confirmed, and asks a callback about what is prepared.

    Args:
        messages: The table.
        config: When.
        callback: Returns True (the work is done: relay it), False (it never will be), or None
            (not known yet: it is asked again later). It must not say False while the work can
            still be done. Raising is None.
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

        A row whose confirmation is under way is locked, and left alone until that has ended; a
        confirmation that comes later finds it withdrawn, and fails.
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

        Several relays may ask about one row; its first settlement stands.
        """
        if self._callback is None:
            return 0
        return sum(self._settle(each) for each in self._due())

    def _due(self) -> list[PreparedMessage]:
        columns = self._table.c
        query = (
            select(
                *(columns.id, columns.topic, columns.key, columns.value),
                *(columns.headers, columns.created_at, columns.retries),
            )
            .where(
                columns.decision_acknowledged == false(),
                columns.state == RowState.PREPARED.value,
                columns.created_at <= NowMs() - self._config.prepared_ms_min,
                or_(columns.next_attempt_at.is_(None), columns.next_attempt_at <= NowMs()),
            )
            .order_by(columns.id)
            .limit(ROWS_MAX)
        )
        with self._engine.connect() as connection:
            found = connection.execute(query).all()
        return [
            PreparedMessage(
                id=row.id,
                topic=row.topic,
                key=row.key,
                value=row.value,
                headers=headers_of(row.headers),
                created_at=row.created_at,
                asked=row.retries,
            )
            for row in found
        ]

    def _settle(self, row: PreparedMessage) -> bool:
        answer = self._answer(row)
        if answer is None:
            wait_ms = self._config.retry_wait_ms(row.asked + 1)
            values = {"next_attempt_at": NowMs() + wait_ms, "retries": row.asked + 1}
            condition = self._is_before(RowEvent.SETTLE_SUCCESS)
        else:
            event = RowEvent.SETTLE_SUCCESS if answer else RowEvent.SETTLE_ROLLBACK
            values = {
                "state": state_after(event).value,
                "updated_at": NowMs(),
                "next_attempt_at": None,
                "retries": 0,
            }
            condition = self._is_before(event)
        statement = update(self._table).where(self._table.c.id == row.id, condition)
        with self._engine.begin() as connection:
            found = connection.execute(statement.values(**values)).rowcount
        return bool(found) and answer is not None

    def _answer(self, row: PreparedMessage) -> bool | None:
        if self._callback is None:
            return None
        try:
            answer = self._callback(row)
        except Exception:  # noqa: BLE001  (the user's code; it is asked again)
            _LOG.exception("the callback failed for local message %d; it is asked again", row.id)
            return None
        if answer is None or isinstance(answer, bool):
            return answer
        _LOG.error("the callback said %r of local message %d: no bool, no None", answer, row.id)
        return None

    def _is_before(self, event: RowEvent) -> ColumnElement[bool]:
        before: ColumnElement[bool] = self._table.c.state.in_(
            [state.value for state in states_before(event)]
        )
        return before


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is not done.

    Attributes:
        rows: State -> number of rows; each state that can be waiting is there.
        oldest_age_ms: Of the oldest row that is neither relayed nor given up; 0 without any.
    """

    rows: dict[str, int]
    oldest_age_ms: int


def backlog(messages: LocalMessages) -> Backlog:
    """Return what is not done; reads the index of all such rows."""
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
