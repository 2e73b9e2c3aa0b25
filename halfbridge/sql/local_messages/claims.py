"""What there is to do: rows to relay, and COMMITs to repeat, as one statement sees them.

One statement, for the order of a key rests on it: a row is seen as to be relayed, or as marked by a
transaction whose COMMIT may not have been sent, or as done, and all of a key's rows are seen at one
moment. Rows are looked for by their state, never from an id on: ids are not in commit order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    and_,
    case,
    cast,
    false,
    func,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
)

from halfbridge.sql.local_messages.looked_at import Snapshot, Unacknowledged
from halfbridge.sql.local_messages.rows import ROW_BYTES_MAX, LocalMessage
from halfbridge.sql.local_messages.states import TO_RELAY, UNSETTLED, RowState
from halfbridge.sql.local_messages.tables import BUCKETS
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import ColumnElement, Connection, Select, Table

# COMMITs that are repeated in one round; where there are more, nothing else is sent in it.
REPEATS_MAX = 200
# How long a relay that lives may take from its mark to the acknowledgement of its COMMIT, before
# another one repeats the COMMIT of rows without keys, whose order is nobody's concern.
KEYLESS_GRACE_MS = 15_000
_COLUMNS = (
    *("id", "topic", "key", "value", "headers", "partition"),
    *("key_hash", "retries", "send_alone", "created_at"),
)
_BODIES = ("key", "value", "headers")
_OVERSIZE = "oversize_bytes"


class Claims:
    """Finds work in one local message table.

    Args:
        table: The local message table.
        window_rows: Most rows that are looked at together, of each state.
        window_bytes: Most bytes of them, but for the last row.
        waits_after_error: Whether a MESSAGE_ERROR keeps later rows of its key waiting.
        casts_nulls: Whether the database wants to be told the type of a null in a union
            (PostgreSQL; MariaDB does not know all types in a CAST).
    """

    def __init__(
        self,
        table: Table,
        *,
        window_rows: int,
        window_bytes: int,
        waits_after_error: bool,
        casts_nulls: bool,
    ) -> None:
        self._table = table
        self._window_bytes = window_bytes
        self._columns = [*_shown(table), _oversize(table)]
        self._casts_nulls = casts_nulls
        self._window_rows = window_rows
        # Of the buckets looked at last: to build and compile it takes longer than to run it.
        self._statement: tuple[tuple[int, ...], str, Any] = ((-1,), "", ())
        self._holding = [*UNSETTLED, *([RowState.MESSAGE_ERROR] if waits_after_error else [])]

    def look(self, connection: Connection, buckets: Collection[int]) -> Snapshot:
        """Return what there is to do for keys of `buckets`, and whether there is keyless work."""
        text, parameters = self._compiled(connection, tuple(sorted(buckets)))
        found: dict[int, list[LocalMessage]] = {what: [] for what in range(len(TO_RELAY))}
        unacknowledged: list[Unacknowledged] = []
        has_keyless = False
        cut = set()  # states whose rows end by their bytes
        for what, is_cut, *row in connection.exec_driver_sql(text, parameters):
            if what in found:
                found[what].append(LocalMessage(*row))
                if is_cut:
                    cut.add(what)
            elif what == _KEYLESS:
                has_keyless = True
            else:
                of = dict(zip(_COLUMNS, row, strict=False))
                place = of["partition"], of["created_at"], of["retries"]
                unacknowledged.append(Unacknowledged(of["topic"], *place))
        cut |= {what for what, rows in found.items() if len(rows) == self._window_rows}
        return Snapshot(_by_id(found, cut), unacknowledged, has_keyless)

    def _compiled(self, connection: Connection, buckets: tuple[int, ...]) -> tuple[str, Any]:
        """Return the statement as the driver takes it."""
        known, text, parameters = self._statement
        if known == buckets:
            return text, parameters
        arms = [self._any_keyless()]
        if buckets:
            arms += [self._unacknowledged(buckets), *self._to_relay(buckets)]
        compiled: Any = union_all(*(select(arm.subquery()) for arm in arms)).compile(
            connection, compile_kwargs={"render_postcompile": True}
        )
        text, parameters = str(compiled), compiled.construct_params()
        if compiled.positional:
            parameters = tuple(parameters[name] for name in compiled.positiontup)
        self._statement = buckets, text, parameters
        return text, parameters

    def lock_keyless(self, connection: Connection) -> list[LocalMessage]:
        """Lock rows without a key that no other relay has locked, by id, and return them.

        The locks last as long as the open transaction. (SQLite has no such locks: its relays are
        kept apart by the count of rows that a mark finds.)
        """
        columns = self._table.c
        ids: list[int] = []
        left_bytes = self._window_bytes
        for state in TO_RELAY:
            left = self._window_rows - len(ids)
            if left <= 0 or left_bytes <= 0:
                break
            query = (
                select(columns.id, columns.size_bytes)
                .where(self._is_todo(state, has_key=False), self._is_due())
                .order_by(columns.id)
                .limit(left)
                .with_for_update(skip_locked=True)
            )
            for row_id, size_bytes in connection.execute(query):
                if left_bytes > 0:  # else it is locked for nothing, until the transaction ends
                    ids.append(row_id)
                left_bytes -= size_bytes
        if not ids:
            return []
        bodies = select(*self._columns).where(columns.id.in_(ids)).order_by(columns.id)
        return [LocalMessage(*row) for row in connection.execute(bodies)]

    def orphans(self, connection: Connection) -> list[Unacknowledged]:
        """Return transactions of rows without keys whose relay seems to be dead."""
        columns = self._table.c
        query = (
            select(
                columns.transaction_id,
                func.max(columns.half_partition),
                func.max(columns.half_offset),
                func.max(columns.message_count),
            )
            .where(
                self._is_todo(RowState.GLOBAL_COMMIT, has_key=False),
                columns.updated_at <= NowMs() - KEYLESS_GRACE_MS,
            )
            .group_by(columns.transaction_id)
            .limit(REPEATS_MAX)
        )
        return [Unacknowledged(*row) for row in connection.execute(query)]

    def _to_relay(self, buckets: Collection[int]) -> list[Select[Any]]:
        """Return the rows that may be sent, state by state."""
        columns = self._table.c
        held_up = self._held_up()
        arms = []
        for what, state in enumerate(TO_RELAY):
            window = (
                select(columns.id, columns.size_bytes)
                .join_from(
                    self._table, held_up, columns.key_hash == held_up.c.key_hash, isouter=True
                )
                .where(
                    self._is_todo(state),
                    *_in_buckets(columns.key_hash, buckets),
                    self._is_due(),
                    or_(held_up.c.first_id.is_(None), columns.id < held_up.c.first_id),
                )
                .order_by(columns.id)
                .limit(self._window_rows)
                .subquery()
            )
            # Bodies are read of those rows only that stand before the limit of bytes, and of the
            # one that comes over it, lest nothing be read.
            total = func.sum(window.c.size_bytes).over(order_by=window.c.id).label("total")
            summed = select(window, total).subquery()
            is_last = case((summed.c.total >= self._window_bytes, 1), else_=0)
            arms.append(
                select(literal(what).label("what"), is_last.label("is_cut"), *self._columns)
                .join_from(self._table, summed, columns.id == summed.c.id)
                .where(summed.c.total - summed.c.size_bytes < self._window_bytes)
            )
        return arms

    def _held_up(self) -> Any:
        """Return the keys that wait for one of their rows, and the id of the first such row."""
        columns = self._table.c
        unsettled = select(columns.key_hash, columns.id).where(
            columns.decision_acknowledged == false(),
            columns.state.in_([state.value for state in self._holding]),
            columns.has_key == true(),
        )
        resting = select(columns.key_hash, columns.id).where(
            columns.next_attempt_at.is_not(None),  # what an index finds, for the clock goes on
            columns.next_attempt_at > NowMs(),
            columns.state.in_([state.value for state in TO_RELAY]),
            columns.key_hash.is_not(None),
        )
        both = union_all(unsettled, resting).subquery()
        first_id = func.min(both.c.id).label("first_id")
        return select(both.c.key_hash, first_id).group_by(both.c.key_hash).subquery("held_up")

    def _unacknowledged(self, buckets: Collection[int]) -> Select[Any]:
        """Return marked transactions, in the columns of rows: a union has one list of columns.

        topic is the transaction id, partition the half partition, created_at the half offset and
        retries the count of messages.
        """
        columns = self._table.c
        found = {
            "id": func.min(columns.id),
            "topic": columns.transaction_id,
            "partition": func.max(columns.half_partition),
            "retries": func.max(columns.message_count),
            "created_at": func.max(columns.half_offset),
        }
        return (
            self._padded(_TRANSACTION, found)
            .where(self._is_todo(RowState.GLOBAL_COMMIT), *_in_buckets(columns.key_hash, buckets))
            .group_by(columns.transaction_id)
            .limit(REPEATS_MAX)
        )

    def _any_keyless(self) -> Select[Any]:
        states = [self._is_todo(state, has_key=False) for state in TO_RELAY]
        return self._padded(_KEYLESS, {}).where(or_(*states), self._is_due()).limit(1)

    def _padded(self, what: int, found: dict[str, Any]) -> Select[Any]:
        padded = (found.get(name, self._null(name)).label(name) for name in _COLUMNS)
        numbers = literal(what).label("what"), literal(0).label("is_cut")
        oversize = literal(0).label(_OVERSIZE)
        return select(*numbers, *padded, oversize).select_from(self._table)

    def _null(self, name: str) -> Any:
        return cast(null(), self._table.c[name].type) if self._casts_nulls else null()

    def _is_todo(self, state: RowState, *, has_key: bool = True) -> ColumnElement[bool]:
        columns = self._table.c
        return and_(
            columns.decision_acknowledged == false(),
            columns.state == state.value,
            columns.has_key == (true() if has_key else false()),
        )

    def _is_due(self) -> ColumnElement[bool]:
        next_attempt_at = self._table.c.next_attempt_at
        return or_(next_attempt_at.is_(None), next_attempt_at <= NowMs())


# What an arm of the union has found: rows of TO_RELAY's states by number, or one of these.
_TRANSACTION, _KEYLESS = range(len(TO_RELAY), len(TO_RELAY) + 2)


def _by_id(found: dict[int, list[LocalMessage]], cut: Collection[int]) -> list[LocalMessage]:
    """Return the rows of several states in one order, as far as no row is missing in it.

    The rows of those that are cut end where their window does, and others may go on beyond that.
    """
    last_id = min((max(row.id for row in found[what]) for what in cut), default=None)
    rows = [row for each in found.values() for row in each if last_id is None or row.id <= last_id]
    return sorted(rows, key=lambda row: row.id)


def _shown(table: Table) -> list[Any]:
    """Return the columns of a row; without its bodies where nobody could send them."""
    is_readable = table.c.size_bytes <= ROW_BYTES_MAX
    return [
        case((is_readable, table.c[name])).label(name) if name in _BODIES else table.c[name]
        for name in _COLUMNS
    ]


def _oversize(table: Table) -> Any:
    size_bytes = table.c.size_bytes
    return case((size_bytes > ROW_BYTES_MAX, size_bytes), else_=0).label(_OVERSIZE)


def _in_buckets(key_hash: Any, buckets: Collection[int]) -> list[ColumnElement[bool]]:
    return [] if len(buckets) == BUCKETS else [(key_hash % BUCKETS).in_(sorted(buckets))]
