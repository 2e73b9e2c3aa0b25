"""Fenced leases on key buckets: which relay sends the rows of which keys.

Leases keep relays from doing the same work. They are not needed for sending each row once and in
order (docs/adr/0013-the-relay-is-a-producer.md). Times are by the database's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import delete, insert, select, update

from halfbridge.sql.local_messages.tables import BUCKETS
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy import Connection, Engine

    from halfbridge.sql.local_messages.writer import LocalMessages


class BucketRow(NamedTuple):
    """A bucket's row."""

    bucket: int
    owner: str
    epoch: int
    expires_at: int


class LeasePlan(NamedTuple):
    """What a relay does with the buckets now."""

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
    """Return what `owner` does to have its share of the buckets. Pure.

    Args:
        rows: All buckets, ascending.
        owner: Who asks.
        held: Its buckets, with the epochs at which it took them.
        members: All living relays, itself among them.
        now_ms: The database's clock.
        is_first: Its first plan: what a predecessor of its name held is free for it.
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
    """The buckets of one relay. Not thread-safe: for the relay's own loop.

    Args:
        messages: Whose tables.
        engine: For transactions that see what was committed before each statement.
        owner: Name of the relay; no two that run may have the same.
        lease_ms: How long a lease lasts without renewal.

    Attributes:
        held: Bucket -> the epoch at which it was taken.
        is_alone: Whether no other relay lived at the last renewal.
    """

    def __init__(
        self, messages: LocalMessages, engine: Engine, *, owner: str, lease_ms: int
    ) -> None:
        self.owner = owner
        self.held: dict[int, int] = {}
        self.is_alone = False
        self._buckets = messages.tables.buckets
        self._relays = messages.tables.relays
        self._database = messages.database
        self._engine = engine
        self._lease_ms = lease_ms
        self._is_first = True

    def renew(self) -> None:
        """Renew leases, hand some over, or take free ones; `held` says what became of it.

        Raises:
            SQLAlchemyError: nothing changed; leases run out in the end.
        """
        try:
            with self._engine.begin() as connection:
                held = self._renewed(connection)
        except BaseException:
            self.held = {}  # not known: the marks that rest on them would fail
            self._is_first = True
            raise
        self.held, self._is_first = held, False

    def release(self) -> None:
        """Leave all buckets to others at once.

        Raises:
            SQLAlchemyError: they run out in the end.
        """
        self.held = {}
        buckets, relays = self._buckets.c, self._relays.c
        with self._engine.begin() as connection:
            connection.execute(delete(self._relays).where(relays.owner == self.owner))
            free = update(self._buckets).where(buckets.owner == self.owner)
            connection.execute(free.values(owner="", expires_at=0))

    def _renewed(self, connection: Connection) -> dict[int, int]:
        now_ms, members = self._register(connection)
        self.is_alone = len(members) == 1
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
        """Say that this relay lives; return the database's time, and who lives."""
        relays = self._relays.c
        until = NowMs() + self._lease_ms
        mine = update(self._relays).where(relays.owner == self.owner).values(expires_at=until)
        if not connection.execute(mine).rowcount:
            connection.execute(insert(self._relays).values(owner=self.owner, expires_at=until))
        now_ms: int = connection.execute(select(NowMs())).scalar_one()
        found = connection.execute(select(relays.owner, relays.expires_at)).all()
        # A row of a relay that is gone is nobody's concern before others have its buckets.
        gone = [owner for owner, expires_at in found if expires_at + self._lease_ms < now_ms]
        if gone:
            connection.execute(delete(self._relays).where(relays.owner.in_(gone)))
        return now_ms, {owner for owner, expires_at in found if expires_at > now_ms} | {self.owner}

    def _claim(self, connection: Connection, wanted: list[int], now_ms: int) -> dict[int, int]:
        """Take those of `wanted` that are still free, and that nobody else is taking now."""
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
