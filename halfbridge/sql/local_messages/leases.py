"""Fenced leases on key buckets, which decide which relay sends the rows of which keys.

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

    Args:
        rows: All buckets, ascending.
        owner: Name of the relay.
        held: Bucket of the relay -> epoch at which the relay took the bucket.
        members: All running relays, including `owner`.
        now_ms: Time of the database's clock.
        is_first: Whether this is the relay's first plan: then the buckets of a predecessor with the
            same name are free.
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
        messages: The tables.
        engine: SQLAlchemy engine with READ COMMITTED; see `engine_of`.
        owner: Name of the relay, unique among running relays.
        lease_ms: How long a lease lasts without renewal.

    Attributes:
        held: Bucket -> the epoch at which the bucket was taken.
        is_alone: Whether no other relay ran at the last renewal.
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
        """Renew leases, hand some over, or take free ones; updates `held`.

        Raises:
            SQLAlchemyError: nothing changed; leases expire unless a later call renews them.
        """
        try:
            with self._engine.begin() as connection:
                held = self._renewed(connection)
        except BaseException:
            self.held = {}  # not known: marks under these leases would fail
            self._is_first = True
            raise
        self.held, self._is_first = held, False

    def release(self) -> None:
        """Release all buckets at once.

        Raises:
            SQLAlchemyError: not released; the leases expire.
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
