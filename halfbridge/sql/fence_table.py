"""The fence table: how it is created, identified and read. This module does not use Kafka."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import MetaData, and_, func, inspect, select
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SQLAlchemyError

from halfbridge.sql.dialects import database_of_engine, own_transaction
from halfbridge.sql.errors import Outcome, TableError
from halfbridge.sql.tables import OWN_KEY, OWN_OUTCOME, WATERMARK_ID, NowMs, fence_table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine

_LOG = logging.getLogger("halfbridge.sql")
DEFAULT_NAME = "halfbridge_fence"
# Largest allowed difference between the clocks of clients and of the database. A wrong time zone
# makes an hour; a larger difference is refused. A purge deletes rows that are days old.
CLOCK_MARGIN_MS = 3_600_000
# A purge never deletes rows of transactions that are younger than this plus the margin. So a
# transaction that is younger than a day enters without reading the watermark. Few are older.
YOUNG_MS = 86_400_000
# A UUIDv7 begins with its time of birth: 48 bits, milliseconds.
BIRTH_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """The content of a fence table's own rows.

    Attributes:
        table_id: UUID of the table, 32 hexadecimal digits.
        purged_before_ms: The watermark, epoch milliseconds: rows of transactions born before it may
            be missing. None: nothing was purged yet.
    """

    table_id: str
    purged_before_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """The content of a fence table.

    Attributes:
        info: The table's own rows.
        groups: Producer group -> outcome -> number of rows.
        oldest_ms: When the oldest row was written, epoch milliseconds; None without rows.
        forgets: Settings with which the server may lose commits in a crash; empty without.
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
        self.database = database_of_engine(engine)
        self.metadata = MetaData()
        self.table = fence_table(self.metadata, name=name, schema=schema)
        self._table_id: str | None = None

    def create(self) -> str:
        """Create the table and its own rows if they do not exist; return the table's UUID.

        May be called at each start, and by several processes at a time. If a migration tool creates
        the table from `metadata`, this method adds the rows.

        Raises:
            TableError: The table exists, but is not InnoDB; an operator converts it.
            SQLAlchemyError: The database refuses; an operator checks rights and settings.
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
        """Return the table's UUID, which is read from the database once.

        Args:
            anew: Read the UUID again: the table may have been replaced.

        Raises:
            TableError: The table does not exist, or `create` did not create it.
            SQLAlchemyError: The database does not answer.
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
                text = "the database of %s may lose commits in a crash of its machine: %s"
                _LOG.warning(text, self.table.fullname, forgets)
            self._table_id = info.table_id
        return self._table_id

    def read_info(self, connection: Connection) -> TableInfo:
        """Return the table's own rows, as this transaction sees them.

        Raises:
            TableError: An own row is missing; `create` adds it.
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
        """Return the current watermark, and lock it until the open transaction ends.

        Raises:
            TableError: The row of the watermark is missing; `create` adds it.
            SQLAlchemyError: For example, a purge has moved the watermark since the transaction's
                snapshot.
        """
        query = select(self.table.c.purged_before_ms).where(self.is_watermark())
        row = connection.execute(query.with_for_update(read=True)).one_or_none()
        if row is None:
            raise self._no_own_row()
        watermark: int | None = row[0]
        return watermark

    def is_watermark(self) -> Any:
        """Return the SQL condition that selects the row of the watermark."""
        columns = self.table.c
        return and_(columns.producer_group == OWN_KEY, columns.transaction_id == WATERMARK_ID)

    def own_transaction(self, *, writes: bool = True) -> AbstractContextManager[Connection]:
        """Return a block with one short transaction; see dialects.own_transaction."""
        return own_transaction(self.engine, self.database, writes=writes)

    def report(self) -> FenceReport:
        """Return the content of the table; reads all rows."""
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
        """Return the error to raise after reading the own rows failed with `error`."""
        try:
            there = inspect(self.engine).has_table(self.table.name, schema=self.table.schema)
        except (SQLAlchemyError, NoSuchTableError):
            return error
        if there:
            return error
        return TableError(
            f"there is no table {self.table.fullname}: fence.create() or"
            f" `halfbridge fence create` creates it"
        )


def birth_ms(transaction_id: str) -> int:
    """Return when a transaction id was made, by the client's clock, epoch milliseconds."""
    return int(transaction_id[:BIRTH_DIGITS], 16)
