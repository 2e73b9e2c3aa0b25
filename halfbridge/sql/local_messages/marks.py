"""Writes a relay's events of rows into the local message table, each event as one UPDATE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, any_, bindparam, cast, false, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY

from halfbridge.sql.errors import SqlError
from halfbridge.sql.local_messages.rows import TO_RELAY, RowEvent, state_after, states_before
from halfbridge.sql.local_messages.tables import BUCKETS, CAUSE_CHARS_MAX
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine

    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.rows import LocalMessage
    from halfbridge.sql.local_messages.writer import LocalMessages


class RowsLostError(SqlError):
    """Rows of a batch must not be relayed any more, or their lease now belongs to another relay.

    The relay must roll back both transactions. Then it looks for rows again.
    """


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
        self._has_arrays = messages.database.name == "postgresql"
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

        Args:
            connection: Of the database transaction with the fence row.
            rows: The rows of all messages of `transaction`.
            transaction: Is stored in the rows, so that its COMMIT can be repeated.
            owner: Name of the relay.
            epochs: Bucket -> the epoch of its lease; None: the rows have no key, and are locked.
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
        """Store when rows are tried again, or give rows up; return the ids of both.

        Rows whose state another process has changed meanwhile are not returned.
        """
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
        is_to_relay = self._table.c.state.in_([state.value for state in TO_RELAY])
        waiting: list[int] = []
        given_up: list[int] = []
        for row, cause in sorted(failures, key=lambda failure: failure.message.id):
            retries = row.retries + 1
            is_last = config.is_last(retries, age_ms=now_ms - row.created_at)
            is_mine = self._table.c.id == row.id, self._table.c.retries == row.retries
            values = {"retries": retries, "cause": cause[:CAUSE_CHARS_MAX]}
            if is_last:
                statement = self._event(RowEvent.GIVE_UP).where(*is_mine, is_to_relay)
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
        ages: bool,
    ) -> Failed:
        """Send the rows of a dead transaction again, each alone, or give them up; return the ids.

        The connection's transaction has locked all `rows` of the message transaction. `ages`:
        whether rows are given up for their age.
        """
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
        failed = Failed([], [])
        for retries, is_last, ids in _by_fate(rows, now_ms, config, ages=ages):
            values: dict[str, Any] = {"cause": cause[:CAUSE_CHARS_MAX]}
            if not is_last:
                values["send_alone"] = true()
                values["next_attempt_at"] = now_ms + config.retry_wait_ms(retries)
            event = RowEvent.GIVE_UP if is_last else RowEvent.SEND_AGAIN
            self._leave(connection, event, transaction_id, ids, values)
            (failed.given_up if is_last else failed.waiting).extend(ids)
        return failed

    def give_up(
        self, connection: Connection, transaction_id: str, ids: Collection[int], cause: str
    ) -> int:
        """Give up rows of a dead transaction; return how many were found."""
        values = {"cause": cause[:CAUSE_CHARS_MAX]}
        return self._leave(connection, RowEvent.GIVE_UP, transaction_id, ids, values)

    def _leave(
        self,
        connection: Connection,
        event: RowEvent,
        transaction_id: str,
        ids: Collection[int],
        values: dict[str, Any],
    ) -> int:
        """Take marked rows out of GLOBAL_COMMIT, and clear the columns of a mark."""
        columns = self._table.c
        statement = self._event(event).where(
            columns.transaction_id == transaction_id, self._among(ids)
        )
        return connection.execute(
            statement.values(
                transaction_id=None,
                half_partition=None,
                half_offset=None,
                message_count=None,
                decision_acknowledged=false(),
                retries=columns.retries + 1,
                **values,
            )
        ).rowcount

    def _event(self, event: RowEvent) -> Any:
        return (
            update(self._table)
            .where(self._table.c.state.in_([state.value for state in states_before(event)]))
            .values(state=state_after(event).value, updated_at=NowMs())
        )

    def _marking(self, *conditions: Any) -> Any:
        """Return the UPDATE of the first mark. It is built once, because every batch runs it."""
        is_among = self._is_any_of_ids(self._table.c.id, BigInteger())
        kept: dict[str, Any] = {
            name: bindparam(f"new_{name}") for name in MarkedTransaction._fields
        }
        statement = self._event(RowEvent.MARK).where(is_among, *conditions)
        return statement.values(next_attempt_at=None, cause=None, **kept)

    def _acknowledging(self) -> Any:
        ids = self._table.c.transaction_id
        is_mine = self._is_any_of_ids(ids, ids.type), self._table.c.decision_acknowledged == false()
        return (
            self._event(RowEvent.ACKNOWLEDGE).where(*is_mine).values(decision_acknowledged=true())
        )

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

    def _among(self, ids: Collection[int]) -> ColumnElement[bool]:
        if self._has_arrays:  # one parameter, however many ids
            array = cast(bindparam(None, list(ids)), ARRAY(BigInteger))
            condition: ColumnElement[bool] = self._table.c.id == any_(array)
            return condition
        return self._table.c.id.in_(list(ids))


def _by_fate(
    rows: Collection[DeadRow], now_ms: int, config: RelayConfig, *, ages: bool
) -> list[tuple[int, bool, list[int]]]:
    """Return the rows' ids grouped by (failed attempts including this one, whether to give up)."""
    found: dict[tuple[int, bool], list[int]] = {}
    for row in rows:
        retries = row.retries + 1
        age_ms = now_ms - row.created_at if ages else 0
        is_last = config.is_last(retries, age_ms=age_ms)
        found.setdefault((retries, is_last), []).append(row.id)
    return [(*fate, ids) for fate, ids in found.items()]


def engine_of(messages: LocalMessages) -> Engine:
    """Return the table's engine with the isolation level that a relay needs.

    Each statement must see all transactions that were committed before it began. It must lock only
    the rows that it finds: gap locks between the rows would block writers.
    """
    if messages.database.name == "sqlite":
        return messages.engine
    return messages.engine.execution_options(isolation_level="READ COMMITTED")
