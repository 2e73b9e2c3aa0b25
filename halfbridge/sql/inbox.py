"""The inbox: a consumer's work in a database, once for each message.

    inbox = Inbox(engine, group_id="billing")
    with engine.begin() as connection:
        if inbox.once(connection, message):
            connection.execute(...)  # the work; commits together with the mark

Kafka delivers a message again after a rebalance or a crash, and in one case twice (README.md). The
mark is a row that the caller's own database transaction inserts, so that work and mark stand or
fall together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, MetaData, delete, func, inspect, select
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge.errors import ConfigError
from halfbridge.sql.dialects import database_of
from halfbridge.sql.errors import FenceUsageError, InboxUsageError, TableError
from halfbridge.sql.inbox_guard import mark_guard_of
from halfbridge.sql.inbox_identity import identity_of, storage_flaw
from halfbridge.sql.inbox_table import KEY_CHARS_MAX, KEYED, inbox_table
from halfbridge.sql.retention import real_retention_ms
from halfbridge.sql.tables import NowMs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Engine, Table
    from sqlalchemy.orm import Session, scoped_session

    from halfbridge.sql.dialects import Database

# Rows deleted by one database transaction of a purge: some ten milliseconds of locks.
PURGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Marks:
    """What the inbox holds of one consumer group; ages by the database's clock.

    Attributes:
        group_id: The group.
        count: Its marks.
        oldest_ms: Age of the oldest one, milliseconds.
        newest_ms: Age of the newest one.
    """

    group_id: str
    count: int
    oldest_ms: int
    newest_ms: int


class Inbox:
    """Marks messages as taken, in the database transaction that does the work.

    Safe to use from many threads, each with a connection of its own.

    Args:
        engine: Of the database that the work is done in; for `create`, `purge` and `show`.
        group_id: The consumer group: each group takes each message once.
        name: Of the table.
        schema: Where the table is; None: where the database looks first.

    Attributes:
        metadata: Has the table alone, for Alembic.
        table: The table.

    Raises:
        ConfigError: a name is empty or too long; the calling code gives another one.
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
        database_of(engine.dialect.name)
        self.metadata = MetaData()
        self.table = inbox_table(self.metadata, name=name, schema=schema)
        self._engine = engine
        self._group_id = group_id
        self._has_transactions = False  # not looked yet

    def create(self) -> None:
        """Make the table unless it is there; several processes may do so at once.

        Raises:
            DBAPIError: the database refuses it; an operator must act.
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
        """Mark a message as taken; tell whether this is the first time in this database.

        The mark belongs to the database transaction of `connection`: True means that no other
        transaction of this group has taken the message and committed, and holds for good once
        this one commits. Where another transaction has taken it and is still open, the call waits
        for its end: False after its commit, True after its rollback.

        Whatever this raises, nothing was decided: roll the database transaction back, and take
        the message again. COMMIT raises too, InboxUsageError or the driver's error, where the
        database has rolled the mark back by itself meanwhile; then nothing was committed. What
        commits by itself inside (DDL on MariaDB) is not noticed, and must be left out.

        Args:
            connection: A SQLAlchemy Connection or Session of this database, not in AUTOCOMMIT.
            message: As confluent-kafka's consumer returns it, not an error; known by the
                transaction id and index in its headers.
            key: Text that names the message in place of these; for messages that halfbridge did
                not deliver. At most 255 characters.

        Raises:
            NoIdentityError: the message has no transaction id, and no key was given.
            InboxUsageError: the transaction would commit by itself; or the key cannot be stored.
            TableError: the table is of a storage engine without transactions.
            NotDurableError: the database may forget what it commits; by then Kafka may have been
                told that the message is done.
            DBAPIError: the database cannot say. A lock was not had in time, a deadlock was
                resolved, or the isolation level is above READ COMMITTED and another transaction
                took the message since this one began.
        """
        transaction_id, index = identity_of(message) if key is None else (key, KEYED)
        if flaw := storage_flaw(transaction_id):
            raise InboxUsageError(f"key {transaction_id[:KEY_CHARS_MAX]!r}: allowed is {flaw}")
        used = _connection(connection, self.table)
        if not used.in_transaction():
            used.begin()  # as its first statement would; what begins with it may be an event's
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
        if is_first:  # otherwise the one who was first has seen to it
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
        """Delete the group's marks of that age; return how many there were.

        A mark must outlive its message, which can be read again as long as its real topic keeps
        it. So either `retention_ms` or `topics` must be given.

        Args:
            older_than_ms: Least age of what is deleted, by the database's clock.
            retention_ms: For how long the real topics that the group reads keep a record at most:
                retention.ms + segment.ms + some minutes, the greatest of all topics.
            topics: These real topics, all of them: the brokers are asked.
            bootstrap_servers: The brokers, `host:port`, separated by commas.
            kafka: More properties of the Kafka client (security, say).

        Raises:
            ConfigError: less than the topics' retention, or that is not given, or for ever.
            AdminError: no broker answers.
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
                f"{retention_ms} or more: so long a message can be read again",
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
        """Return what the table holds, of all groups, by their names."""
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
        """Look once whether a rollback takes the mark back."""
        if self._has_transactions:
            return
        if engine := database.engine_of(connection, self.table):
            raise TableError(
                f"table {self.table.fullname} is of the storage engine {engine}, which has no"
                f" transactions: ALTER TABLE {self.table.fullname} ENGINE=InnoDB"
            )
        self._has_transactions = True

    def _purge_some(self, before_ms: int) -> tuple[int, bool]:
        """Delete some PURGE_ROWS of the oldest marks; return how many, and whether that is all."""
        row = self.table.c
        old = (row.group_id == self._group_id) & (row.created_at_ms < before_ms)
        nth = select(row.created_at_ms).where(old).order_by(row.created_at_ms)
        with self._engine.begin() as connection:
            last_ms = connection.execute(nth.offset(PURGE_ROWS - 1).limit(1)).scalar()
            chosen = old if last_ms is None else old & (row.created_at_ms <= last_ms)
            count = connection.execute(delete(self.table).where(chosen)).rowcount
        return count, last_ms is None


def _connection(given: Any, table: Table) -> Connection:
    """Return the connection of a Connection, or of the Session that would write the table.

    Raises:
        InboxUsageError: it is neither.
    """
    found = given
    if not isinstance(given, Connection):
        found = given.connection(bind_arguments={"clause": table})
    if not isinstance(found, Connection):
        raise InboxUsageError(
            f"{type(given).__name__}: give a SQLAlchemy Connection or Session; an asyncio one has"
            " them inside of run_sync()"
        )
    return found


def _refused(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=str(value), origin="the call", allowed=allowed)
