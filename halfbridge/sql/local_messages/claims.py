"""Finds the work of a relay: rows to relay, and COMMITs to repeat.

One statement finds all of it, because the order of a key depends on a view of all its rows at one
moment. In this view each row is to be relayed, or marked by a transaction whose COMMIT may not have
been sent, or done. Rows are found by their state, never by a lowest id, because ids are not in the
order of commits.

Fenced leases on key buckets keep relays from doing the same work. They are not needed for sending
each row once and in order (docs/adr/0013-the-relay-is-a-producer.md). Times are by the database's
clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    and_,
    case,
    cast,
    delete,
    false,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)

from halfbridge.sql.local_messages.config import WAIT
from halfbridge.sql.local_messages.marks import MarkedTransaction
from halfbridge.sql.local_messages.rows import (
    ROW_BYTES_MAX,
    TO_RELAY,
    UNSETTLED,
    LocalMessage,
    RowState,
)
from halfbridge.sql.local_messages.tables import BUCKETS, in_states
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy import ColumnElement, Connection, Engine, Select, Table

    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.writer import LocalMessages

# COMMITs that are repeated in one round; if there are more, the round sends nothing else. A round
# must stay short, since it renews the relay's leases.
REPEATS_MAX = 200
# After this time from a mark without an acknowledged COMMIT, another relay repeats the COMMIT of
# rows without keys, which have no order. Above decision_timeout_ms (10 s), by which a relay that
# lives has its acknowledgement; longer delays the rows of a dead relay.
KEYLESS_GRACE_MS = 15_000
_COLUMNS = (
    *("id", "topic", "key", "value", "headers", "partition"),
    *("key_hash", "retries", "send_alone", "created_at"),
)
_BODIES = ("key", "value", "headers")
_OVERSIZE = "oversize_bytes"


class Claims:
    """Finds work in one local message table, within the windows of the settings."""

    def __init__(self, messages: LocalMessages, config: RelayConfig) -> None:
        self._table = messages.tables.messages
        self._window_rows = config.window_rows
        self._window_bytes = config.window_bytes
        self._columns = _shown(self._table)
        # PostgreSQL needs the type of a null in a union; MariaDB does not know all types in a CAST.
        self._casts_nulls = messages.database.casts_nulls
        # The statement for the buckets of the last `read`: building takes longer than running it.
        self._statement: tuple[tuple[int, ...], str, Any] = ((-1,), "", ())
        self._holding = [
            *UNSETTLED,
            *([RowState.MESSAGE_ERROR] if config.after_error == WAIT else []),
        ]

    def read(self, connection: Connection, buckets: Collection[int]) -> Snapshot:
        """Return the work for keys of `buckets`, and whether rows without a key wait."""
        text, parameters = self._compiled(connection, tuple(sorted(buckets)))
        found: dict[int, list[LocalMessage]] = {what: [] for what in range(len(TO_RELAY))}
        unacknowledged: list[MarkedTransaction] = []
        has_keyless = False
        cut = set()  # states whose rows were cut off by `window_bytes`
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
                unacknowledged.append(MarkedTransaction(of["topic"], *place))
        cut |= {what for what, rows in found.items() if len(rows) == self._window_rows}
        return Snapshot(_by_id(found, cut), unacknowledged, has_keyless)

    def _compiled(self, connection: Connection, buckets: tuple[int, ...]) -> tuple[str, Any]:
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
        """Lock and return rows without a key that no other relay has locked, by id.

        SQLite has no such locks: there, a relay notices other relays by the number of rows that its
        mark changes.
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
                if left_bytes > 0:  # else the row stays locked, unused, until the transaction ends
                    ids.append(row_id)
                left_bytes -= size_bytes
        if not ids:
            return []
        bodies = select(*self._columns).where(columns.id.in_(ids)).order_by(columns.id)
        return [LocalMessage(*row) for row in connection.execute(bodies)]

    def orphans(self, connection: Connection) -> list[MarkedTransaction]:
        """Return transactions of rows without keys whose relay is probably dead."""
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
        return [MarkedTransaction(*row) for row in connection.execute(query)]

    def _to_relay(self, buckets: Collection[int]) -> list[Select[Any]]:
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
            # Bodies are read only up to the limit of bytes, and of the row that exceeds it, so that
            # at least one row is read.
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
        """Return a SELECT of keys with a row that later rows wait for, and the lowest such id."""
        columns = self._table.c
        unsettled = select(columns.key_hash, columns.id).where(
            columns.decision_acknowledged == false(),
            in_states(self._table, self._holding),
            columns.has_key == true(),
        )
        postponed = select(columns.key_hash, columns.id).where(
            columns.next_attempt_at.is_not(None),  # lets an index find the rows
            columns.next_attempt_at > NowMs(),
            in_states(self._table, TO_RELAY),
            columns.key_hash.is_not(None),
        )
        both = union_all(unsettled, postponed).subquery()
        first_id = func.min(both.c.id).label("first_id")
        return select(both.c.key_hash, first_id).group_by(both.c.key_hash).subquery("held_up")

    def _unacknowledged(self, buckets: Collection[int]) -> Select[Any]:
        """Return a SELECT of marked transactions, in the columns of rows; see `read`."""
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


# Numbers of the SELECTs in the union: the states of TO_RELAY in order, then these two.
_TRANSACTION, _KEYLESS = range(len(TO_RELAY), len(TO_RELAY) + 2)


def _by_id(found: dict[int, list[LocalMessage]], cut: Collection[int]) -> list[LocalMessage]:
    """Return the rows of several states in the order of ids, up to the first possible gap.

    Rows of a cut state may be missing after its window, so rows of other states beyond it are left
    out.
    """
    last_id = min((max(row.id for row in found[what]) for what in cut), default=None)
    rows = [row for each in found.values() for row in each if last_id is None or row.id <= last_id]
    return sorted(rows, key=lambda row: row.id)


def _shown(table: Table) -> list[Any]:
    """Return the columns of a row, without key, value and headers if it is too large; its size."""
    size_bytes = table.c.size_bytes
    columns = [
        case((size_bytes <= ROW_BYTES_MAX, table.c[name])).label(name)
        if name in _BODIES
        else table.c[name]
        for name in _COLUMNS
    ]
    oversize = case((size_bytes > ROW_BYTES_MAX, size_bytes), else_=0).label(_OVERSIZE)
    return [*columns, oversize]


def _in_buckets(key_hash: Any, buckets: Collection[int]) -> list[ColumnElement[bool]]:
    return [] if len(buckets) == BUCKETS else [(key_hash % BUCKETS).in_(sorted(buckets))]


class BucketRow(NamedTuple):
    """The row of a bucket."""

    bucket: int
    owner: str
    epoch: int
    expires_at: int


class LeasePlan(NamedTuple):
    """The changes that a relay makes to its buckets now."""

    keep: list[int]
    release: list[int]
    claim: list[int]


def plan_leases(
    rows: Iterable[BucketRow],
    *,
    owner: str,
    held: Mapping[int, int],
    members: Collection[str],
    now_ms: int,
    is_first: bool,
) -> LeasePlan:
    """Return the changes by which `owner` gets its share of the buckets. Pure.

    `rows` are all buckets, ascending; `held` is bucket -> epoch at which the relay took it;
    `members` are all running relays, including `owner`. In a relay's first plan (`is_first`) the
    buckets of a predecessor with the same name are free.
    """
    names = sorted(members)
    whole, rest = divmod(BUCKETS, len(names))
    share = whole + (names.index(owner) < rest)
    mine, free = [], []
    for row in rows:
        if row.owner == owner and held.get(row.bucket) == row.epoch:
            mine.append(row.bucket)
        elif row.expires_at <= now_ms or (is_first and row.owner == owner):
            free.append(row.bucket)
    keep, release = mine[:share], mine[share:]
    return LeasePlan(keep, release, free[: share - len(keep)])


class Leases:
    """The buckets of one relay, bucket -> epoch in `held`. Not thread-safe.

    `owner` is unique among running relays. A lease lasts `lease_ms` without renewal.
    """

    def __init__(
        self, messages: LocalMessages, engine: Engine, *, owner: str, lease_ms: int
    ) -> None:
        self.owner = owner
        self.held: dict[int, int] = {}
        self._buckets = messages.tables.buckets
        self._relays = messages.tables.relays
        self._database = messages.database
        self._engine = engine
        self._lease_ms = lease_ms
        self._is_first = True

    def renew(self) -> None:
        """Renew leases, hand some over, or take free ones. After an error none is held."""
        try:
            with self._engine.begin() as connection:
                held = self._renewed(connection)
        except BaseException:
            self.held = {}  # not known: marks under these leases would fail
            self._is_first = True
            raise
        self.held, self._is_first = held, False

    def release(self) -> None:
        """Release all buckets at once. After an error the leases expire."""
        self.held = {}
        buckets, relays = self._buckets.c, self._relays.c
        with self._engine.begin() as connection:
            connection.execute(delete(self._relays).where(relays.owner == self.owner))
            free = update(self._buckets).where(buckets.owner == self.owner)
            connection.execute(free.values(owner="", expires_at=0))

    def _renewed(self, connection: Connection) -> dict[int, int]:
        now_ms, members = self._register(connection)
        columns = self._buckets.c
        query = select(columns.bucket, columns.owner, columns.epoch, columns.expires_at)
        rows = [BucketRow(*row) for row in connection.execute(query.order_by(columns.bucket))]
        plan = plan_leases(
            rows,
            owner=self.owner,
            held=self.held,
            members=members,
            now_ms=now_ms,
            is_first=self._is_first,
        )
        mine = update(self._buckets).where(columns.owner == self.owner)
        if plan.keep:
            kept = mine.where(columns.bucket.in_(plan.keep))
            connection.execute(kept.values(expires_at=NowMs() + self._lease_ms))
        if plan.release:
            released = mine.where(columns.bucket.in_(plan.release))
            connection.execute(released.values(owner="", expires_at=0))
        held = {bucket: self.held[bucket] for bucket in plan.keep}
        if plan.claim:
            held |= self._claim(connection, plan.claim, now_ms)
        return held

    def _register(self, connection: Connection) -> tuple[int, set[str]]:
        """Record that this relay runs; return the database's time, and the running relays."""
        relays = self._relays.c
        until = NowMs() + self._lease_ms
        mine = update(self._relays).where(relays.owner == self.owner).values(expires_at=until)
        if not connection.execute(mine).rowcount:
            connection.execute(insert(self._relays).values(owner=self.owner, expires_at=until))
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
        found = connection.execute(select(relays.owner, relays.expires_at)).all()
        # A relay's row is kept for a lease after its expiry, until other relays have its buckets.
        gone = [owner for owner, expires_at in found if expires_at + self._lease_ms < now_ms]
        if gone:
            connection.execute(delete(self._relays).where(relays.owner.in_(gone)))
        return now_ms, {owner for owner, expires_at in found if expires_at > now_ms} | {self.owner}

    def _claim(self, connection: Connection, wanted: list[int], now_ms: int) -> dict[int, int]:
        """Take the buckets of `wanted` that are still free, and that no other relay is taking."""
        columns = self._buckets.c
        is_free = columns.expires_at <= now_ms
        if self._is_first:
            is_free |= columns.owner == self.owner
        query = (
            select(columns.bucket, columns.epoch)
            .where(columns.bucket.in_(wanted), is_free)
            .order_by(columns.bucket)
            .with_for_update(skip_locked=True)  # on SQLite this transaction is the only writer
        )
        taken = {bucket: epoch + 1 for bucket, epoch in connection.execute(query)}
        if taken:
            claimed = update(self._buckets).where(columns.bucket.in_(taken))
            connection.execute(
                claimed.values(
                    owner=self.owner, epoch=columns.epoch + 1, expires_at=NowMs() + self._lease_ms
                )
            )
        return taken


class Snapshot(NamedTuple):
    """The work of a relay at one moment.

    `messages` are rows with keys, by id; for each key its first waiting rows, without a gap.
    `unacknowledged` are transactions of the same keys, to repeat first; at most REPEATS_MAX.
    """

    messages: list[LocalMessage]
    unacknowledged: list[MarkedTransaction]
    has_keyless: bool


# How long reads of a connection use one plan. A plan fits the table's size at planning time.
# With 50,000 done rows, a plan for an empty table reads all rows (3.0 ms; a new plan: 0.7 ms).
# After a plan is dropped, ten reads take 2 ms more each, until the next plan is kept.
PLAN_S_MAX = 5.0
_PLAN_UNTIL = "halfbridge_plan_until"


def end_read(connection: Connection, now_s: float) -> None:
    """End the transaction of `read`, which has written nothing, by COMMIT or ROLLBACK.

    At ROLLBACK, and not at COMMIT, psycopg forgets the statements that are prepared on a
    connection. Parsing and planning a read takes PostgreSQL three times as long as running it. The
    other drivers prepare nothing. The pool's connection remembers when its plan ends.
    """
    until = connection.info.setdefault(_PLAN_UNTIL, now_s + PLAN_S_MAX)
    if now_s < until:
        connection.commit()
    else:
        connection.rollback()
        connection.info[_PLAN_UNTIL] = now_s + PLAN_S_MAX
