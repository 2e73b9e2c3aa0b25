"""The fence table and its rows, which say how local transactions ended. It does not use Kafka.

A row is written as committed, inside the local transaction, or as rolled_back by `settle`, in a
separate transaction. The primary key accepts only one of the two rows. The second insert waits
while the transaction of the first insert is open. That transaction may correct the number of
messages in its row until it commits.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    Integer,
    MetaData,
    String,
    and_,
    bindparam,
    func,
    insert,
    inspect,
    literal,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchTableError, SQLAlchemyError

from halfbridge.checker.errors import AdminRequestError, AdminRetriableError, AdminSetupError
from halfbridge.kafka.errors import NoAnswerError
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.errors import DecodeError
from halfbridge.sql.dialects import database_of_engine
from halfbridge.sql.dialects.base import COUNTED, own_transaction
from halfbridge.sql.errors import FencedError, Outcome, SqlError, TableError
from halfbridge.sql.tables import (
    OWN_KEY,
    OWN_OUTCOME,
    WATERMARK_ID,
    NowMs,
    create_tables,
    fence_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from sqlalchemy import ColumnElement, Connection, Engine, Insert, Table

    from halfbridge.checker.admin.transactions.waits import Undecided

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
_TABLES_MAX = 64  # whose statements are kept: one for each fence of a process, which has a few


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A fence table's own rows: its UUID, and the watermark in epoch milliseconds.

    Rows of transactions born before the watermark may be missing. None: nothing was purged yet.
    """

    table_id: str
    purged_before_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """The content of a fence table.

    `groups` is producer group -> outcome -> number of rows; `oldest_ms` is when the oldest row was
    written, epoch milliseconds; `lossy_settings` are settings with which a crash may lose commits.
    """

    info: TableInfo
    groups: dict[str, dict[str, int]]
    oldest_ms: int | None
    lossy_settings: str


class FenceTable:
    """A fence table in one database. Thread-safe."""

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

        May be called at each start, by several processes at a time, and after a migration tool has
        created the table from `metadata`.

        Raises:
            TableError: The table is not InnoDB; an operator converts it.
        """
        create_tables(self.engine, self.metadata)
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
            self.database.check_table(connection, self.table)
            for row in (identity, watermark):
                self.database.insert_if_absent(connection, self.table, row)
            connection.commit()
        self._table_id = None
        return self.table_id()

    def table_id(self, *, reread: bool = False) -> str:
        """Return the table's UUID (`reread`: from the database); TableError: call `create`."""
        if reread or self._table_id is None:
            with self.own_transaction(writes=False) as connection:
                info = self._own_info(connection)
                self.database.check_table(connection, self.table)
                lossy_settings = self.database.lossy_settings(connection)
            if lossy_settings:
                text = "the database of %s may lose commits in a crash of its machine: %s"
                _LOG.warning(text, self.table.fullname, lossy_settings)
            self._table_id = info.table_id
        return self._table_id

    def read_info(self, connection: Connection) -> TableInfo:
        """Return the own rows as this transaction sees them.

        Raises TableError: one is missing; an operator calls `create`.
        """
        columns = self.table.c
        query = select(columns.transaction_id, columns.table_id, columns.purged_before_ms)
        found = connection.execute(query.where(columns.producer_group == OWN_KEY)).all()
        rows = {row.transaction_id: row for row in found}
        if OWN_KEY not in rows or rows[OWN_KEY].table_id is None or WATERMARK_ID not in rows:
            raise self._no_own_row()
        watermark = rows[WATERMARK_ID].purged_before_ms
        return TableInfo(table_id=rows[OWN_KEY].table_id, purged_before_ms=watermark)

    def _own_info(self, connection: Connection) -> TableInfo:
        try:
            return self.read_info(connection)
        except DBAPIError as error:
            raise self._missing(error) from error

    def hold_watermark(self, connection: Connection) -> int | None:
        """Return the current watermark, and lock it until the open transaction ends.

        Raises TableError: its row is missing; an operator calls `create`.
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
            info = self._own_info(connection)
            found = connection.execute(query).all()
            lossy_settings = self.database.lossy_settings(connection)
        groups: dict[str, dict[str, int]] = {}
        for group, outcome, count, _ in found:
            groups.setdefault(group, {each.value: 0 for each in Outcome})[outcome] = count
        oldest = min((row[3] for row in found), default=None)
        return FenceReport(
            info=info, groups=groups, oldest_ms=oldest, lossy_settings=lossy_settings
        )

    def _no_own_row(self) -> TableError:
        return TableError(
            f"{self.table.fullname} has no row of its own: fence.create() or"
            f" `halfbridge fence create` adds it"
        )

    def _missing(self, error: SQLAlchemyError) -> SQLAlchemyError | TableError:
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


# Only a statement that commits by itself can show such a row to others.
UNCOUNTED = (
    "its local transaction was committed inside its block, by a statement that commits by itself,"
    " before its messages were counted: compare them with the work, and decide without a fence by"
    " `halfbridge tx commit` or `rollback`"
)
_ANY_AGE_MS = 1 << 62  # older than every row


@dataclass(frozen=True, slots=True)
class Ended:
    """How a local transaction ended; final. `message_count` is 0 if it was rolled back."""

    outcome: Outcome
    message_count: int


def write_committed(
    fence: FenceTable,
    connection: Connection,
    *,
    producer_group: str,
    transaction_id: str,
    message_count: int,
) -> str:
    """Write the fence row, as committed, into the open transaction, and return its tag.

    See `Database.tag`: the commit is durable.

    The statement also reads the table's own row. So nothing is written on a connection to another
    database, or into a table that was created again: the check would never find such a row. On
    MariaDB the statement locks the own row until the transaction ends; nobody changes the own row.

    The watermark is read for old transactions only, with a lock. Without the lock, a purge could
    move the watermark and delete the row of a check between the read and the insert.

    After an error the transaction must not commit.

    Raises:
        FencedError: a row exists, or may have been purged; the caller begins another transaction.
        TableError: the connection is of another table; the caller gives another connection.
    """
    parameters = {
        "group": producer_group,
        "id": transaction_id,
        "count": message_count,
        "table_id": fence.table_id(),
        "born_ms": birth_ms(transaction_id),
    }
    tag = _write(fence, connection, {**parameters, "young_ms": YOUNG_MS})
    if tag is not None:
        return tag
    info = fence.read_info(connection)
    if info.table_id != fence.table_id():
        raise TableError(
            f"{fence.table.fullname} of this connection is {info.table_id}, the fence's own is"
            f" {fence.table_id()}: give a connection to the fence's database; if the table was"
            " created again, make a new Fence"
        )
    if not _is_purged(fence.hold_watermark(connection), transaction_id):
        tag = _write(fence, connection, {**parameters, "young_ms": _ANY_AGE_MS})
    if tag is None:
        raise FencedError(
            f"{transaction_id} is as old as rows that were purged: its row could be one of them",
            transaction_id=transaction_id,
        )
    return tag


def _write(fence: FenceTable, connection: Connection, parameters: Mapping[str, Any]) -> str | None:
    """Write the row if the table is the fence's and the transaction is young; return the tag."""
    database = fence.database
    statement = _committed(fence.table, database.returns_tag)
    try:
        written = connection.execute(statement, parameters, execution_options=COUNTED)
    except IntegrityError as error:
        transaction_id = parameters["id"]
        raise FencedError(
            f"{transaction_id} has a fence row already: a check came before `enter` and rolled the"
            " message transaction back, or it was entered before",
            transaction_id=transaction_id,
        ) from error
    if database.returns_tag:
        row = written.one_or_none()
        return None if row is None else str(row[0])
    return database.tag(connection) if written.rowcount == 1 else None


def write_count(
    fence: FenceTable,
    connection: Connection,
    *,
    producer_group: str,
    transaction_id: str,
    message_count: int,
) -> bool:
    """Write the number of messages into the row that the open transaction has inserted.

    Returns False if there is no such row. Nobody else reads or locks the row before COMMIT.
    """
    columns = fence.table.c
    statement = update(fence.table).where(
        columns.producer_group == producer_group,
        columns.transaction_id == transaction_id,
        columns.outcome == Outcome.COMMITTED.value,
    )
    return connection.execute(statement.values(message_count=message_count)).rowcount == 1


def settle(fence: FenceTable, *, producer_group: str, transaction_id: str) -> Ended:
    """Return how a local transaction ended; prevent its commit if it has not ended.

    Raises NoAnswerError: the row may have been purged, or the table was replaced; the daemon asks
    again, or an operator looks the work up elsewhere. After the database's errors ask again: the
    local transaction is in flight for CHECK_WAIT_MS, say.
    """
    row = {
        "producer_group": producer_group,
        "transaction_id": transaction_id,
        "outcome": Outcome.ROLLED_BACK.value,
        "message_count": 0,
        "created_at_ms": NowMs(),
    }
    with fence.own_transaction() as connection:
        if fence.database.insert_if_absent(connection, fence.table, row):
            # Read after the insert: a purge stores its watermark before it deletes rows, so a row
            # that a purge has deleted before the insert is noticed here.
            info = fence.read_info(connection)
            _refuse_other(fence, info, transaction_id)
            if _is_purged(info.purged_before_ms, transaction_id):
                raise NoAnswerError(
                    f"{transaction_id} has no row in {fence.table.fullname}, and rows of that age"
                    " were purged: how it ended is not known any more"
                )
            connection.commit()
            return Ended(Outcome.ROLLED_BACK, 0)
    # A new transaction, whose snapshot is taken after the other row was committed.
    ended = find(fence, producer_group=producer_group, transaction_id=transaction_id)
    if ended is None:
        raise NoAnswerError(f"the row of {transaction_id} was deleted while it was read")
    return ended


def find(fence: FenceTable, *, producer_group: str, transaction_id: str) -> Ended | None:
    """Return how a local transaction ended; None: no row. Writes nothing. Raises as `settle`."""
    with fence.own_transaction(writes=False) as connection:
        columns = fence.table.c
        mine = and_(
            columns.producer_group == producer_group, columns.transaction_id == transaction_id
        )
        query = select(columns.outcome, columns.message_count).where(mine)
        found = connection.execute(query).one_or_none()
        _refuse_other(fence, fence.read_info(connection), transaction_id)
    return None if found is None else Ended(Outcome(found[0]), found[1])


@lru_cache(_TABLES_MAX)  # building the statement takes as long as executing it
def _committed(table: Table, returned: tuple[ColumnElement[Any], ...]) -> Insert:
    own = table.alias("own")
    born_ms = bindparam("born_ms", type_=BigInteger())
    values = select(
        bindparam("group", type_=String()),
        bindparam("id", type_=String()),
        literal(Outcome.COMMITTED.value),
        bindparam("count", type_=Integer()),
        NowMs(),
    ).where(
        and_(own.c.producer_group == OWN_KEY, own.c.transaction_id == OWN_KEY),
        own.c.table_id == bindparam("table_id"),
        NowMs() - bindparam("young_ms", type_=BigInteger()) <= born_ms,
    )
    names = ("producer_group", "transaction_id", "outcome", "message_count", "created_at_ms")
    statement = insert(table).from_select(names, values)
    return statement.returning(*returned) if returned else statement


def _is_purged(watermark_ms: int | None, transaction_id: str) -> bool:
    return watermark_ms is not None and birth_ms(transaction_id) < watermark_ms + CLOCK_MARGIN_MS


def _refuse_other(fence: FenceTable, info: TableInfo, transaction_id: str) -> None:
    if info.table_id != fence.table_id():
        raise NoAnswerError(
            f"{fence.table.fullname} was created again after {transaction_id} began"
        )


_UUID7 = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


def check_context(
    fence: FenceTable, context: bytes | None, *, producer_group: str, transaction_id: str
) -> None:
    """Refuse a transaction that was not begun with this fence: its missing row proves nothing.

    Raises NoAnswerError: it was not; the daemon asks again, or an operator decides.
    """
    whose = f"{transaction_id} of {producer_group}"
    if not _UUID7.fullmatch(transaction_id):
        raise NoAnswerError(f"{whose}: no id that halfbridge makes")
    if context is None:
        raise NoAnswerError(f"{whose} was begun without a fence: a missing row proves nothing")
    try:
        theirs = FENCE_CONTEXT.decode(context).table_id
    except DecodeError as error:
        raise NoAnswerError(f"{whose}: its context is of no fence: {error}") from error
    mine = fence.table_id()
    if theirs != mine:
        mine = fence.table_id(reread=True)  # the table may have been created again
    if theirs != mine:
        raise NoAnswerError(f"{whose} is fenced by table {theirs}; this one is {mine}")


class OperatorFence:
    """A fence as `halfbridge tx commit` and `rollback` use it; a FencePort of checker.admin.

    A transaction that was not begun with this fence is refused: a row in a wrong database would
    contradict what the right one says. Each refusal is an AdminError.
    """

    def __init__(
        self, engine: Engine, *, name: str = DEFAULT_NAME, schema: str | None = None
    ) -> None:
        self._table = FenceTable(engine, name=name, schema=schema)

    def committed_count(self, undecided: Undecided, context: bytes | None) -> int:
        """Return how many messages the committed fence row names; write nothing.

        Raises:
            AdminRequestError: there is no such row, or it gives no count; the operator follows the
                text.
            AdminRetriableError: it names more messages than were found; the operator runs the
                command again.
        """
        ended = self._asked(undecided, context, find)
        if ended is None:
            raise AdminRequestError(
                f"{undecided.id} has no row in {self._table.table.fullname}: its local transaction"
                " is not committed; roll it back, or decide without --fence-url",
                transaction_id=undecided.id,
            )
        if ended.outcome is not Outcome.COMMITTED:
            raise AdminRequestError(
                f"the fence row of {undecided.id} says {ended.outcome.value}: roll it back",
                transaction_id=undecided.id,
            )
        if not ended.message_count:
            raise AdminRequestError(f"{undecided.id}: {UNCOUNTED}", transaction_id=undecided.id)
        if ended.message_count > undecided.messages:
            # The op would name a half offset below the messages that were sent since.
            raise AdminRetriableError(
                f"the fence row of {undecided.id} names {ended.message_count} messages, and"
                f" {undecided.messages} were found: run the command again; if the others are lost,"
                " decide without --fence-url",
                transaction_id=undecided.id,
            )
        return ended.message_count

    def roll_back(self, undecided: Undecided, context: bytes | None) -> None:
        """Return once a fence row says rolled_back: the local transaction cannot commit.

        Raises AdminRequestError: the row says committed; the operator commits.
        """
        ended = self._asked(undecided, context, settle)
        if ended is None or ended.outcome is Outcome.COMMITTED:
            raise AdminRequestError(
                f"the fence row of {undecided.id} says committed: its local transaction has"
                " committed; commit it",
                transaction_id=undecided.id,
            )

    def _asked(
        self,
        undecided: Undecided,
        context: bytes | None,
        ask: Callable[..., Ended | None],
    ) -> Ended | None:
        group = undecided.producer_group
        try:
            check_context(self._table, context, producer_group=group, transaction_id=undecided.id)
            return ask(self._table, producer_group=group, transaction_id=undecided.id)
        except (NoAnswerError, SQLAlchemyError, SqlError) as error:
            text = " ".join(str(error).split())
            # Without an answer from a fence that works, the caller names another fence, or none.
            kind = AdminRequestError if isinstance(error, NoAnswerError) else AdminSetupError
            raise kind(
                f"the fence of {undecided.id} gives no answer: {text}", transaction_id=undecided.id
            ) from error
