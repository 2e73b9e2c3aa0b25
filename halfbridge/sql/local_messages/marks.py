"""Writes a relay's events of rows into the local message table, each event as one UPDATE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, any_, bindparam, false, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY

from halfbridge.sql.errors import SqlError
from halfbridge.sql.local_messages.rows import TO_RELAY, RowEvent
from halfbridge.sql.local_messages.tables import (
    BUCKETS,
    CAUSE_CHARS_MAX,
    event_update,
    in_states,
)
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine

    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.rows import LocalMessage
    from halfbridge.sql.local_messages.writer import LocalMessages


class RowsLostError(SqlError):
    """Rows must not be relayed any more, or another relay has their lease: roll both back."""


class MarkedTransaction(NamedTuple):
    """The columns of the rows' message transaction that a mark writes."""

    transaction_id: str
    half_partition: int
    half_offset: int
    message_count: int


class Failure(NamedTuple):
    """A row whose attempt failed, because of the row itself."""

    message: LocalMessage
    cause: str


class Failed(NamedTuple):
    """Ids of rows whose failure was written."""

    waiting: list[int]
    given_up: list[int]


class DeadRow(NamedTuple):
    """A row of a message transaction that became dead letters."""

    id: int
    retries: int
    created_at: int


class Marks:
    """Writes events of rows. Each call is part of the caller's database transaction."""

    def __init__(self, messages: LocalMessages) -> None:
        self._table = messages.tables.messages
        self._buckets = messages.tables.buckets
        self._has_arrays = messages.database.has_arrays
        self._mark_keyless = self._marking()
        self._mark_keyed = self._marking(self._holds())
        self._acknowledge = self._acknowledging()

    def mark(
        self,
        connection: Connection,
        rows: Sequence[LocalMessage],
        transaction: MarkedTransaction,
        *,
        owner: str,
        epochs: Mapping[int, int] | None,
    ) -> None:
        """Mark rows as sent by a message transaction: the first mark. RowsLostError: roll back.

        The connection's transaction has the fence row; `rows` are those of all messages of
        `transaction`, which is stored so that its COMMIT can be repeated. `epochs` is bucket -> the
        epoch of its lease; None: the rows have no key, and are locked.
        """
        values: dict[str, Any] = {f"new_{name}": v for name, v in transaction._asdict().items()}
        values["ids"] = [row.id for row in rows]
        if epochs is not None:
            buckets = {row.key_hash % BUCKETS for row in rows if row.key_hash is not None}
            values["held"] = [(each, epochs.get(each, -1)) for each in sorted(buckets)]
            values["lease_owner"] = owner
        statement = self._mark_keyless if epochs is None else self._mark_keyed
        found = connection.execute(statement, values).rowcount
        if found != len(rows):
            raise RowsLostError(
                f"{len(rows) - found} of {len(rows)} rows must not be sent by this relay any more"
            )

    def acknowledge(self, connection: Connection, transaction_ids: Collection[str]) -> None:
        """Record that the COMMITs of message transactions are in the op log: the second mark."""
        connection.execute(self._acknowledge, {"ids": sorted(transaction_ids)})

    def fail(
        self, connection: Connection, failures: Collection[Failure], config: RelayConfig
    ) -> Failed:
        """Store when rows are tried again, or give rows up; return the ids of the changed rows."""
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
        is_to_relay = in_states(self._table, TO_RELAY)
        waiting: list[int] = []
        given_up: list[int] = []
        for row, cause in sorted(failures, key=lambda failure: failure.message.id):
            retries = row.retries + 1
            is_last = config.is_last(retries, age_ms=now_ms - row.created_at)
            is_mine = self._table.c.id == row.id, self._table.c.retries == row.retries
            values = {"retries": retries, "cause": cause[:CAUSE_CHARS_MAX]}
            if is_last:
                statement = event_update(self._table, RowEvent.GIVE_UP).where(*is_mine, is_to_relay)
            else:
                # Not an event: the row keeps its state, and waits.
                values["next_attempt_at"] = now_ms + config.retry_wait_ms(retries)
                statement = update(self._table).where(*is_mine, is_to_relay)
            if connection.execute(statement.values(**values)).rowcount:
                (given_up if is_last else waiting).append(row.id)
        return Failed(waiting, given_up)

    def send_again(
        self,
        connection: Connection,
        transaction_id: str,
        rows: Collection[DeadRow],
        cause: str,
        config: RelayConfig,
        *,
        is_aged: bool,
    ) -> Failed:
        """Send the rows of a dead transaction again, each alone, or give them up; return the ids.

        The connection's transaction has locked all `rows` of the message transaction. If that has
        one row, the row is the cause, and is given up. A transaction that was discarded for its age
        (`is_aged`) was not decided or delivered in time, which no row has caused. Its rows are sent
        again whatever their age.
        """
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
        is_cause = len(rows) == 1 and not is_aged
        fates: dict[tuple[int, bool], list[int]] = {}  # (failed attempts, whether it is given up)
        for row in rows:
            age_ms = 0 if is_aged else now_ms - row.created_at
            is_last = is_cause or config.is_last(row.retries + 1, age_ms=age_ms)
            fates.setdefault((row.retries + 1, is_last), []).append(row.id)
        failed = Failed([], [])
        columns = self._table.c
        for (retries, is_last), ids in fates.items():
            event = RowEvent.GIVE_UP if is_last else RowEvent.SEND_AGAIN
            values: dict[str, Any] = {"cause": cause[:CAUSE_CHARS_MAX], "retries": retries}
            if not is_last:
                values["send_alone"] = true()
                values["next_attempt_at"] = now_ms + config.retry_wait_ms(retries)
            statement = event_update(self._table, event).where(
                columns.transaction_id == transaction_id,
                self._is_any_of_ids(columns.id, BigInteger()),
            )
            no_mark = dict.fromkeys(MarkedTransaction._fields)
            statement = statement.values(**no_mark, decision_acknowledged=false(), **values)
            connection.execute(statement, {"ids": ids})
            (failed.given_up if is_last else failed.waiting).extend(ids)
        return failed

    def _marking(self, *conditions: Any) -> Any:
        """Return the UPDATE of the first mark. It is built once, because every batch runs it."""
        is_among = self._is_any_of_ids(self._table.c.id, BigInteger())
        kept: dict[str, Any] = {
            name: bindparam(f"new_{name}") for name in MarkedTransaction._fields
        }
        statement = event_update(self._table, RowEvent.MARK).where(is_among, *conditions)
        return statement.values(next_attempt_at=None, cause=None, **kept)

    def _acknowledging(self) -> Any:
        ids = self._table.c.transaction_id
        is_mine = self._is_any_of_ids(ids, ids.type), self._table.c.decision_acknowledged == false()
        statement = event_update(self._table, RowEvent.ACKNOWLEDGE).where(*is_mine)
        return statement.values(decision_acknowledged=true())

    def _is_any_of_ids(self, column: Any, kind: Any) -> ColumnElement[bool]:
        if self._has_arrays:  # one parameter, however many ids
            is_any: ColumnElement[bool] = column == any_(bindparam("ids", type_=ARRAY(kind)))
            return is_any
        is_in: ColumnElement[bool] = column.in_(bindparam("ids", expanding=True))
        return is_in

    def _holds(self) -> ColumnElement[bool]:
        """Return the condition that `lease_owner` has the row's bucket at an epoch of `held`."""
        buckets = self._buckets.c
        condition: ColumnElement[bool] = (
            select(buckets.bucket)
            .where(
                buckets.bucket == self._table.c.key_hash % BUCKETS,
                buckets.owner == bindparam("lease_owner"),
                tuple_(buckets.bucket, buckets.epoch).in_(bindparam("held", expanding=True)),
            )
            .exists()
        )
        return condition


def engine_of(messages: LocalMessages) -> Engine:
    """Return the table's engine with the isolation level that a relay needs.

    Each statement must see all transactions that were committed before it began. It must lock only
    the rows that it finds: gap locks between the rows would block writers.
    """
    if not messages.database.locks_rows:
        return messages.engine
    return messages.engine.execution_options(isolation_level="READ COMMITTED")
