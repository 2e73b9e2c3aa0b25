"""The inbox: does a consumer's work in a database once for each message.

    inbox = Inbox(engine, group_id="billing")
    with engine.begin() as connection:
        if inbox.once(connection, message):
            connection.execute(...)  # the work; commits together with the mark

A consumer reads a message again after a rebalance or a crash, and in one case the daemon delivers a
message twice (README.md). The mark is a row that the caller's own database transaction inserts, so
that work and mark commit together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, MetaData, delete, func, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from halfbridge.kafka.errors import ConfigError
from halfbridge.sql.dialects import database_of, database_of_engine
from halfbridge.sql.errors import FenceUsageError, InboxUsageError, TableError
from halfbridge.sql.inbox_guard import mark_guard_of
from halfbridge.sql.inbox_identity import identity_of, storage_flaw
from halfbridge.sql.inbox_table import KEY_CHARS_MAX, KEYED, inbox_table
from halfbridge.sql.retention import real_retention_ms
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Engine, Table

    from halfbridge.sql.dialects import Database

# Rows deleted by one database transaction of a purge: some ten milliseconds of locks.
PURGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one consumer group; ages by the database's clock.

    Attributes:
        group_id: The group.
        count: Number of marks.
        oldest_ms: Age of the oldest mark, milliseconds.
        newest_ms: Age of the newest mark, milliseconds.
    """

    group_id: str
    count: int
    oldest_ms: int
    newest_ms: int


class Inbox:
    """Marks messages as taken, in the database transaction that does the work.

    May be used by many threads, each with its own connection.

    Args:
        engine: SQLAlchemy engine for the database of the work; for `create`, `purge` and `show`.
        group_id: The consumer group. Each group takes each message once.
        name: Name of the table.
        schema: Schema of the table; None: the connection's default schema.

    Attributes:
        metadata: Contains only the table, for Alembic.
        table: The table.

    Raises:
        ConfigError: The group's name is empty or too long; the calling code gives another name.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        group_id: str,
        name: str = "halfbridge_inbox",
        schema: str | None = None,
    ) -> None:
        if flaw := storage_flaw(group_id):
            raise ConfigError(field="group_id", value=group_id, origin="the call", allowed=flaw)
        database_of_engine(engine)
        self.metadata = MetaData()
        self.table = inbox_table(self.metadata, name=name, schema=schema)
        self._engine = engine
        self._group_id = group_id
        self._has_transactions = False  # not known yet

    def create(self) -> None:
        """Create the table if it does not exist; several processes may do so at the same time.

        Raises:
            DBAPIError: The database refuses; an operator must act.
        """
        try:
            self.metadata.create_all(self._engine)
        except DBAPIError:
            if not inspect(self._engine).has_table(self.table.name, schema=self.table.schema):
                raise  # not another process that came first

    def once(
        self,
        connection: Connection | Session | scoped_session[Any],
        message: Any,
        key: str | None = None,
    ) -> bool:
        """Mark a message as taken; return False if this group has taken the message before.

        The mark is part of the database transaction of `connection`. True means that no committed
        transaction of this group has taken the message; this is final once the transaction of
        `connection` commits. If another open transaction has taken the message, the call waits for
        its end: it returns False after a commit, and True after a rollback.

        After an error, roll the database transaction back, and take the message again. COMMIT
        raises an error too (InboxUsageError or the driver's) if the database has rolled the mark
        back by itself; then nothing was committed. Statements that commit implicitly (DDL on
        MariaDB) are not detected, and must not be used in such a transaction.

        Args:
            connection: A SQLAlchemy Connection or Session of this database, not in AUTOCOMMIT.
            message: A message from confluent-kafka's consumer, not an error. It is identified by
                the transaction id and the message index in its headers.
            key: Text that identifies the message instead, for messages that halfbridge did not
                deliver. At most 255 characters.

        Raises:
            NoIdentityError: The message has no transaction id, and no key was given.
            InboxUsageError: The connection is in AUTOCOMMIT, or the key cannot be stored.
            TableError: The storage engine of the table has no transactions.
            NotDurableError: The database may lose a commit after the offset of the message was
                committed to Kafka.
            DBAPIError: The database cannot tell. For example: a lock time-out; a deadlock; or the
                isolation level is above READ COMMITTED, and another transaction took the message
                since this one began.
        """
        transaction_id, index = identity_of(message) if key is None else (key, KEYED)
        if flaw := storage_flaw(transaction_id):
            raise InboxUsageError(f"key {transaction_id[:KEY_CHARS_MAX]!r}: allowed is {flaw}")
        used = _connection(connection, self.table)
        if not used.in_transaction():
            used.begin()  # as the first statement would; event listeners may run statements here
        database = database_of(used.dialect.name)
        try:
            database.check_commit(used)
        except FenceUsageError as error:
            raise InboxUsageError(
                "the connection is in AUTOCOMMIT: the mark would stand without the work that"
                " fails after it; give a connection with a transaction"
            ) from error
        self._look_at_table(database, used)
        row = {
            "group_id": self._group_id,
            "transaction_id": transaction_id,
            "message_index": index,
            "created_at_ms": NowMs(),
        }
        is_first = database.insert_if_absent(used, self.table, row)
        if is_first:  # otherwise the first transaction has done the same
            database.make_durable(used)
            mark_guard_of(used).add(self.table, (self._group_id, transaction_id, index))
        return is_first

    def purge(
        self,
        *,
        older_than_ms: int,
        retention_ms: int | None = None,
        topics: Collection[str] = (),
        bootstrap_servers: str = "",
        kafka: Mapping[str, str] | None = None,
    ) -> int:
        """Delete the group's old marks; return how many were deleted.

        A mark must be kept longer than its message, because the message can be read again while its
        real topic keeps it. So either `retention_ms` or `topics` must be given.

        Args:
            older_than_ms: Least age of the deleted marks, by the database's clock.
            retention_ms: Longest time for which the real topics of the group keep a record:
                retention.ms + segment.ms + some minutes, the maximum over all topics.
            topics: All real topics that the group reads. Their retention is read from the brokers.
            bootstrap_servers: The brokers, `host:port`, separated by commas.
            kafka: More properties of the Kafka client, such as security settings.

        Raises:
            ConfigError: `older_than_ms` is less than the retention of the topics, or the retention
                is not given or infinite.
            AdminError: No broker answers.
        """
        if (retention_ms is None) == (not topics):
            raise _refused("retention_ms", retention_ms, "retention_ms or topics, one of the two")
        if retention_ms is None:
            retention_ms = real_retention_ms(
                topics, bootstrap_servers=bootstrap_servers, kafka=kafka
            )
        if retention_ms < 0:
            raise _refused("retention_ms", retention_ms, "0 or more: what is kept is never purged")
        if older_than_ms < retention_ms:
            raise _refused(
                "older_than_ms",
                older_than_ms,
                f"{retention_ms} or more: a message can be read again for that long",
            )
        with self._engine.begin() as connection:
            before_ms = connection.execute(select(NowMs())).scalar_one() - older_than_ms
        deleted = 0
        while True:
            count, is_last = self._purge_some(before_ms)
            deleted += count
            if is_last:
                return deleted

    def show(self) -> tuple[Marks, ...]:
        """Return the marks of all groups, in the order of the groups' names."""
        row = self.table.c
        grouped = (
            select(
                row.group_id,
                func.count().label("marks"),
                func.min(row.created_at_ms).label("oldest"),
                func.max(row.created_at_ms).label("newest"),
            )
            .group_by(row.group_id)
            .subquery()
        )
        query = select(grouped, NowMs().label("now")).order_by(grouped.c.group_id)
        with self._engine.begin() as connection:
            found = connection.execute(query).all()
        return tuple(
            Marks(each.group_id, each.marks, each.now - each.oldest, each.now - each.newest)
            for each in found
        )

    def _look_at_table(self, database: Database, connection: Connection) -> None:
        """Check, once, that the table's storage engine has transactions."""
        if self._has_transactions:
            return
        if engine := database.engine_of(connection, self.table):
            raise TableError(
                f"table {self.table.fullname} has the storage engine {engine}, which has no"
                f" transactions: ALTER TABLE {self.table.fullname} ENGINE=InnoDB"
            )
        self._has_transactions = True

    def _purge_some(self, before_ms: int) -> tuple[int, bool]:
        """Delete about PURGE_ROWS of the oldest marks; return how many, and if all are gone."""
        row = self.table.c
        old = (row.group_id == self._group_id) & (row.created_at_ms < before_ms)
        nth = select(row.created_at_ms).where(old).order_by(row.created_at_ms)
        with self._engine.begin() as connection:
            last_ms = connection.execute(nth.offset(PURGE_ROWS - 1).limit(1)).scalar()
            chosen = old if last_ms is None else old & (row.created_at_ms <= last_ms)
            count = connection.execute(delete(self.table).where(chosen)).rowcount
        return count, last_ms is None


def _connection(given: Any, table: Table) -> Connection:
    """Return the given Connection, or the connection with which a Session writes the table.

    Raises:
        InboxUsageError: `given` is neither a Connection nor a Session.
    """
    found = given
    if isinstance(given, (Session, scoped_session)):
        found = given.connection(bind_arguments={"clause": table})
    if not isinstance(found, Connection):
        raise InboxUsageError(
            f"{type(given).__name__}: give a SQLAlchemy Connection or Session; an asyncio one has"
            " them inside of run_sync()"
        )
    return found


def _refused(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=str(value), origin="the call", allowed=allowed)
