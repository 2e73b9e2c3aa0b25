"""The position of a log subscription: one row that says which inserts became messages.

The row moves in the same database transaction that writes the fence row of the messages, and only
if it still has the version that the relay has read. Of several relays, one succeeds at each step. A
relay that was killed has either moved the row and written the fence row, or neither.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, and_, delete, func, insert, inspect, select, text, update

from halfbridge.bridge.message import Message
from halfbridge.sql.dialects import connected, database_of, own_transaction
from halfbridge.sql.log_subscription.errors import (
    LogUnavailableError,
    PositionTakenError,
    ReadingStoppedError,
)
from halfbridge.sql.log_subscription.position_tables import (
    OWNER_CHARS_MAX,
    position_table,
    staged_table,
)
from halfbridge.sql.log_subscription.staging import stage
from halfbridge.sql.log_subscription.stored import Stored, stored_of
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection, Engine

    from halfbridge.sql.log_subscription.changes import Position

DEFAULT_NAME = "halfbridge_log_position"
_FIRST_VERSION_BITS = 48  # of the column's 63: a row may be moved often


class Positions:
    """The tables of positions and of staged rows, in the fence's database. Thread-safe.

    Args:
        engine: SQLAlchemy engine for PostgreSQL or MariaDB.
        owner: Name of this relay, stored with each move.
        name: Name of the table of positions; the table of staged rows is `<name>_staged`.
        schema: Schema of both tables; None: the connection's default schema.
    """

    def __init__(
        self, engine: Engine, *, owner: str, name: str = DEFAULT_NAME, schema: str | None = None
    ) -> None:
        self.engine = engine
        self.metadata = MetaData()
        self._owner = owner[:OWNER_CHARS_MAX]
        self._database = database_of(engine.dialect.name)
        self._table = position_table(self.metadata, name, schema)
        self._staged = staged_table(self.metadata, f"{name}_staged", schema)

    def create(self) -> None:
        """Create the tables if they do not exist."""
        self.metadata.create_all(self.engine)

    def read(self, name: str) -> Stored | None:
        """Return a subscription's row; None: the subscription has not begun."""
        with self._own_transaction() as connection:
            row = connection.execute(
                select(self._table).where(self._table.c.name == name)
            ).one_or_none()
        return None if row is None else stored_of(row)

    @contextmanager
    def beginning(self, name: str) -> Iterator[None]:
        """Prevent other relays from beginning the same subscription during the block.

        Raises:
            LogUnavailableError: Another relay is beginning the subscription; try again later.
        """
        with connected(self.engine, "AUTOCOMMIT") as connection:
            lock, unlock = _LOCKS[self.engine.dialect.name]
            named = {"name": f"{self._table.name}:{name}"}
            if not connection.execute(text(lock), named).scalar():
                raise LogUnavailableError(f"another relay is beginning subscription {name}")
            try:
                yield
            finally:
                connection.execute(text(unlock), named)

    def begin(
        self,
        name: str,
        position: Position,
        messages: Iterable[Message] = (),
        *,
        producer_group: str,
    ) -> Stored:
        """Write a subscription's row, and stage a snapshot's messages, in one transaction.

        Args:
            name: Name of the subscription.
            position: Position of the snapshot, or where reading the log begins.
            producer_group: The relay's group.
            messages: Messages of the snapshot's rows; they are staged until they are sent.
        """
        rest = iter(messages)
        # For the first message PostgreSQL may have to sort the whole table. Meanwhile it would end
        # an idle database transaction (Bounds.idle_transaction_s).
        first = list(islice(rest, 1))
        with self._own_transaction() as connection:
            of_name = self._table.c.name == name
            # FOR UPDATE: a relay that moves the row now would get the version that is written here.
            version = select(self._table.c.version).where(of_name).with_for_update()
            before = connection.execute(version).scalar()
            connection.execute(delete(self._staged).where(self._staged.c.name == name))
            connection.execute(delete(self._table).where(of_name))
            count = stage(connection, self._staged, name, chain(first, rest))
            stored = Stored(
                position=position,
                staged_after=0 if count else None,
                decision=None,
                is_acknowledged=True,
                # A new version: a relay may still know the version of a removed row.
                version=(secrets.randbits(_FIRST_VERSION_BITS) if before is None else before) + 1,
                producer_group=producer_group,
            )
            connection.execute(insert(self._table).values(name=name, **self._columns(stored)))
            connection.commit()
        return stored

    def staged(self, name: str, after: int, limit: int) -> list[tuple[int, Message]]:
        """Return the next staged messages with their numbers, in order."""
        columns = self._staged.c
        query = (
            select(columns.number, columns.topic, columns.message_key, columns.message_value)
            .where(and_(columns.name == name, columns.number > after))
            .order_by(columns.number)
            .limit(limit)
        )
        with self._own_transaction() as connection:
            rows = connection.execute(query).all()
        return [
            (number, Message(topic, key=_bytes(key), value=_bytes(value)))
            for number, topic, key, value in rows
        ]

    def claim(self, connection: Connection, name: str, before: Stored, after: Stored) -> Stored:
        """Move the row in the open database transaction; return the new row.

        Args:
            connection: Connection of the fence's database transaction.
            name: Name of the subscription.
            before: The row as this relay has last read or moved it.
            after: The new row; its version is set here.

        Raises:
            PositionTakenError: Another relay has moved the row, or an operator has removed it;
                nothing was claimed.
        """
        after = replace(after, version=before.version + 1)
        moved = connection.execute(
            update(self._table)
            .where(and_(self._table.c.name == name, self._table.c.version == before.version))
            .values(**self._columns(after))
        )
        if moved.rowcount != 1:
            raise PositionTakenError(f"another relay has moved subscription {name}")
        if before.staged_after is not None:
            done = self._staged.c.name == name
            if after.staged_after is not None:
                done &= self._staged.c.number <= after.staged_after
            connection.execute(delete(self._staged).where(done))
        return after

    def move(self, name: str, before: Stored, after: Stored) -> Stored:
        """Move the row in a separate database transaction; see `claim`."""
        with self._own_transaction() as connection:
            moved = self.claim(connection, name, before, after)
            connection.commit()
        return moved

    def count_staged(self, name: str) -> int:
        """Return how many staged rows of a snapshot were not sent yet."""
        query = select(func.count()).where(self._staged.c.name == name)
        with self._own_transaction() as connection:
            return int(connection.execute(query).scalar_one())

    def is_there(self) -> bool:
        """Return whether the tables exist."""
        return inspect(self.engine).has_table(self._table.name, self._table.schema)

    def forget(self, name: str) -> bool:
        """Remove a subscription's row and its staged rows; return whether there was a row."""
        with self._own_transaction() as connection:
            connection.execute(delete(self._staged).where(self._staged.c.name == name))
            gone = connection.execute(delete(self._table).where(self._table.c.name == name))
            connection.commit()
        return bool(gone.rowcount)

    @contextmanager
    def claiming(self) -> Iterator[Connection]:
        """Yield a connection for a claim, with short lock waits and a durable commit."""
        with self._own_transaction() as connection:
            yield connection

    @contextmanager
    def _own_transaction(self) -> Iterator[Connection]:
        """Yield a connection; uncommitted work is rolled back at the end of the block."""
        with own_transaction(self.engine, self._database) as connection:
            try:
                yield connection
            except ReadingStoppedError:
                connection.invalidate()  # the server undoes what was staged without our waiting
                raise

    def _columns(self, stored: Stored) -> dict[str, Any]:
        decision = stored.decision
        return {
            "commit_position": stored.position.commit,
            "inserts": stored.position.inserts,
            "staged_after": stored.staged_after,
            "transaction_id": decision and decision.transaction_id,
            "half_partition": decision and decision.half_partition,
            "half_offset": decision and decision.half_offset,
            "message_count": decision and decision.message_count,
            "decision_acknowledged": stored.is_acknowledged,
            "version": stored.version,
            "producer_group": stored.producer_group,
            "owner": self._owner,
            "updated_at": NowMs(),
        }


# Both locks last until they are released or the connection ends. Neither keeps a transaction open,
# because PostgreSQL waits for open transactions before it creates a slot.
_LOCKS = {
    "postgresql": (
        "SELECT pg_try_advisory_lock(hashtextextended(:name, 0))",
        "SELECT pg_advisory_unlock(hashtextextended(:name, 0))",
    ),
    "mariadb": ("SELECT GET_LOCK(MD5(:name), 0)", "SELECT RELEASE_LOCK(MD5(:name))"),
    "mysql": ("SELECT GET_LOCK(MD5(:name), 0)", "SELECT RELEASE_LOCK(MD5(:name))"),
}


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
