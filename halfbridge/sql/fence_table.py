"""The fence table as such: made, identified, read and purged. Nothing of Kafka."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import MetaData, and_, func, inspect, select
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SQLAlchemyError

from halfbridge.sql.dialects import database_of, set_isolation
from halfbridge.sql.errors import Outcome, TableError
from halfbridge.sql.tables import OWN_KEY, OWN_OUTCOME, WATERMARK_ID, NowMs, fence_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

_LOG = logging.getLogger("halfbridge.sql")
DEFAULT_NAME = "halfbridge_fence"
# What clocks of clients and of the database may differ by, at most: an hour is a time zone taken
# for another, beyond which nothing is right. A purge is about rows that are days old.
CLOCK_MARGIN_MS = 3_600_000
# No purge has deleted a row of a transaction born so lately, for it keeps rows for this and the
# margin: such a transaction enters without a look at the watermark. Few enter a day after birth.
YOUNG_MS = 86_400_000
# A UUIDv7 begins with its time of birth: 48 bits, milliseconds.
BIRTH_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What a fence table says of itself.

    Attributes:
        table_id: Its UUID, 32 hexadecimal digits.
        purged_before_ms: Of transactions born before it rows may be missing, epoch milliseconds;
            None: nothing was purged yet.
    """

    table_id: str
    purged_before_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """What is in a fence table.

    Attributes:
        info: What it says of itself.
        groups: Rows by producer group and outcome.
        oldest_ms: When the oldest row was written, epoch milliseconds; None without rows.
        forgets: How the server may forget commits in a crash; empty: it does not.
    """

    info: TableInfo
    groups: dict[str, dict[str, int]]
    oldest_ms: int | None
    forgets: str


class FenceTable:
    """A fence table in one database. Thread-safe.

    Args:
        engine: SQLAlchemy's, of SQLite, PostgreSQL or MariaDB.
        name: Name of the table.
        schema: Its schema; None: the connection's own.

    Raises:
        ConfigError: the engine is of another kind of database; give another one.
    """

    def __init__(
        self, engine: Engine, *, name: str = DEFAULT_NAME, schema: str | None = None
    ) -> None:
        self.engine = engine
        self.database = database_of(engine.dialect.name)
        self.metadata = MetaData()
        self.table = fence_table(self.metadata, name=name, schema=schema)
        self._table_id: str | None = None

    def create(self) -> str:
        """Make the table where it is missing, and its own rows; return the table's UUID.

        May be called at each start, and by several processes at a time. Where a migration tool
        makes the table from `metadata`, this adds the rows.

        Raises:
            TableError: the table is there without InnoDB; an operator converts it.
            SQLAlchemyError: the database refuses; an operator looks at rights and settings.
        """
        try:
            self.metadata.create_all(self.engine)
        except DBAPIError:
            if not inspect(self.engine).has_table(self.table.name, schema=self.table.schema):
                raise  # else another process was faster
        own_row = {
            "producer_group": OWN_KEY,
            "transaction_id": OWN_KEY,
            "outcome": OWN_OUTCOME,
            "message_count": 0,
            "created_at_ms": NowMs(),
        }
        identity = {**own_row, "table_id": uuid4().hex}
        watermark = {**own_row, "transaction_id": WATERMARK_ID}
        with self.own_transaction() as connection:
            self._refuse_engine(connection)
            for row in (identity, watermark):
                self.database.insert_if_absent(connection, self.table, row)
            connection.commit()
        self._table_id = None
        return self.table_id()

    def table_id(self, *, anew: bool = False) -> str:
        """Return the table's UUID, read from the database once.

        Args:
            anew: Read it again: the table may have been made anew since.

        Raises:
            TableError: there is no such table, or it is not made by `create`.
            SQLAlchemyError: the database does not answer.
        """
        if anew or self._table_id is None:
            with self.own_transaction(writes=False) as connection:
                try:
                    info = self.read_info(connection)
                except DBAPIError as error:
                    raise self._missing(error) from error
                self._refuse_engine(connection)
                forgets = self.database.forgets(connection)
            if forgets:
                text = "the database of %s may forget commits in a crash of its machine: %s"
                _LOG.warning(text, self.table.fullname, forgets)
            self._table_id = info.table_id
        return self._table_id

    def read_info(self, connection: Connection) -> TableInfo:
        """Return what the table says of itself, as this transaction sees it.

        Raises:
            TableError: it has no row of its own; `create` adds it.
        """
        columns = self.table.c
        query = select(columns.transaction_id, columns.table_id, columns.purged_before_ms)
        found = connection.execute(query.where(columns.producer_group == OWN_KEY)).all()
        rows = {row.transaction_id: row for row in found}
        if OWN_KEY not in rows or rows[OWN_KEY].table_id is None or WATERMARK_ID not in rows:
            raise self._no_own_row()
        watermark = rows[WATERMARK_ID].purged_before_ms
        return TableInfo(table_id=rows[OWN_KEY].table_id, purged_before_ms=watermark)

    def hold_watermark(self, connection: Connection) -> int | None:
        """Return the watermark as it stands; no purge moves it before the open transaction ends.

        Raises:
            TableError: its row is missing; `create` adds it.
            SQLAlchemyError: a purge has moved it since the transaction's snapshot, for one.
        """
        query = select(self.table.c.purged_before_ms).where(self.is_watermark())
        row = connection.execute(query.with_for_update(read=True)).one_or_none()
        if row is None:
            raise self._no_own_row()
        watermark: int | None = row[0]
        return watermark

    def is_watermark(self) -> Any:
        """Return the condition of the row that has the watermark."""
        columns = self.table.c
        return and_(columns.producer_group == OWN_KEY, columns.transaction_id == WATERMARK_ID)

    @contextmanager
    def own_transaction(self, *, writes: bool = True) -> Iterator[Connection]:
        """Yield a connection for one short transaction, which is rolled back unless committed.

        At an isolation level of ours, also where the engine is in AUTOCOMMIT or SERIALIZABLE; no
        lock is waited for longer than CHECK_WAIT_MS, and what is committed is durable.
        """
        database = self.database
        with self.engine.connect() as connection:
            if database.own_isolation is not None:
                set_isolation(connection, database.own_isolation)
            with database.short_waits(connection):
                try:
                    if writes:
                        database.begin(connection)
                        database.check_commit(connection)
                        database.make_durable(connection)
                    yield connection
                finally:
                    connection.rollback()  # what is committed stays

    def report(self) -> FenceReport:
        """Return what is in the table; reads all of it."""
        columns = self.table.c
        query = (
            select(
                columns.producer_group,
                columns.outcome,
                func.count(),
                func.min(columns.created_at_ms),
            )
            .where(columns.producer_group != OWN_KEY)
            .group_by(columns.producer_group, columns.outcome)
            .order_by(columns.producer_group, columns.outcome)
        )
        with self.own_transaction(writes=False) as connection:
            try:
                info = self.read_info(connection)
            except DBAPIError as error:
                raise self._missing(error) from error
            found = connection.execute(query).all()
            forgets = self.database.forgets(connection)
        groups: dict[str, dict[str, int]] = {}
        for group, outcome, count, _ in found:
            groups.setdefault(group, {each.value: 0 for each in Outcome})[outcome] = count
        oldest = min((row[3] for row in found), default=None)
        return FenceReport(info=info, groups=groups, oldest_ms=oldest, forgets=forgets)

    def _refuse_engine(self, connection: Connection) -> None:
        engine = self.database.engine_of(connection, self.table)
        if engine:
            raise TableError(
                f"{self.table.fullname} is a table of {engine}, which has no transactions:"
                f" ALTER TABLE {self.table.fullname} ENGINE=InnoDB"
            )

    def _no_own_row(self) -> TableError:
        return TableError(
            f"{self.table.fullname} has no row of its own: fence.create() or"
            f" `halfbridge fence create` adds it"
        )

    def _missing(self, error: SQLAlchemyError) -> SQLAlchemyError | TableError:
        """Return the error to raise for one that reading the table's own row met."""
        try:
            there = inspect(self.engine).has_table(self.table.name, schema=self.table.schema)
        except (SQLAlchemyError, NoSuchTableError):
            return error
        if there:
            return error
        return TableError(
            f"there is no table {self.table.fullname}: fence.create() or"
            f" `halfbridge fence create` makes it"
        )


def birth_ms(transaction_id: str) -> int:
    """Return when a transaction id was made, by its maker's clock, epoch milliseconds."""
    return int(transaction_id[:BIRTH_DIGITS], 16)
