"""The inbox: does a consumer's work in a database once for each message.

    inbox = Inbox(engine, group_id="billing")
    with engine.begin() as connection:
        if inbox.once(connection, message):
            connection.execute(...)  # the work; commits together with the mark

A consumer reads a message again after a rebalance or a crash, and in one case the daemon delivers a
message twice (README.md). The caller's own database transaction inserts the mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    delete,
    func,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Session, scoped_session

from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import headers_of, real_identity
from halfbridge.sql.dialects import database_of, database_of_engine
from halfbridge.sql.dialects.base import required_connection
from halfbridge.sql.errors import FenceUsageError, InboxUsageError, NoIdentityError
from halfbridge.sql.guards import mark_guard_of
from halfbridge.sql.tables import NowMs, create_tables, transactional

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Dialect, Engine
    from sqlalchemy.types import TypeEngine

    from halfbridge.checker.admin.shape import SeenTopic

# Rows deleted by one database transaction of a purge: some ten milliseconds of locks.
PURGE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one consumer group, and their ages, milliseconds by the database's clock."""

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
            SQLAlchemyError: The database refuses; an operator gives the user the right to create.
        """
        create_tables(self._engine, self.metadata)

    def once(
        self,
        connection: Connection | Session | scoped_session[Any],
        message: Any,
        key: str | None = None,
    ) -> bool:
        """Mark a message as taken; return False if this group has taken the message before.

        The mark is part of the database transaction of `connection`, and the answer is final once
        that commits. If another open transaction has taken the message, the call waits for its end.

        After an error, roll the database transaction back, and take the message again. COMMIT
        raises an error too (InboxUsageError or the driver's) if the database has rolled the mark
        back by itself; then nothing was committed. Statements that commit implicitly (DDL on
        MariaDB) are not detected, and must not be used in such a transaction.

        Args:
            connection: A SQLAlchemy Connection or Session of this database, not in AUTOCOMMIT.
            message: A message from confluent-kafka's consumer, or a record from aiokafka's. It is
                identified by the transaction id and the message index in its headers.
            key: Text that identifies the message instead, for messages that halfbridge did not
                deliver. At most 255 characters.

        Raises:
            NoIdentityError: The message has no transaction id, and no key was given; the caller
                gives key=, or skips the message.
            InboxUsageError: The connection is in AUTOCOMMIT, or the key cannot be stored; the
                calling code is wrong.
            TableError: The storage engine of the table has no transactions; an operator changes it.
            NotDurableError: The database may lose a commit after the message's offset was
                committed; an operator changes its settings.
            DBAPIError: The database cannot tell: a lock time-out; a deadlock; or, above READ
                COMMITTED, another transaction took the message since this one began. The caller
                rolls back and takes the message again.
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
                "the connection is in AUTOCOMMIT: the mark would be committed without the work that"
                " fails after it; give a connection with a transaction"
            ) from error
        if not self._has_transactions:
            database.check_table(used, self.table)
            self._has_transactions = True
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
        kafka: Mapping[str, object] | None = None,
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
            ConfigError: `older_than_ms` is less than the retention, or the retention is missing or
                infinite; the caller gives another age.
            AdminSetupError: No broker answers; an operator acts.
        """
        if (retention_ms is None) == (not topics):
            raise _refused("retention_ms", retention_ms, "retention_ms or topics, one of the two")
        if retention_ms is None:
            retention_ms = real_retention_ms(
                topics, bootstrap_servers=bootstrap_servers, kafka=kafka
            )
        if retention_ms < 0:
            raise _refused(
                "retention_ms", retention_ms, "0 or more: rows that are kept are never purged"
            )
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
        """Return the marks of all groups, in the order of the groups' names.

        Raises:
            SQLAlchemyError: The table does not exist, or the database does not answer; the caller
                calls `create`, or tries again later.
        """
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
    found = given
    if isinstance(given, (Session, scoped_session)):
        found = given.connection(bind_arguments={"clause": table})
    return required_connection(found, InboxUsageError)


def _refused(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=str(value), origin="the call", allowed=allowed)


def identity_of(message: Any) -> tuple[str, int]:
    """Return transaction id and message index of a message from confluent-kafka or aiokafka.

    Raises:
        InboxUsageError: an error of the client, no message; the calling code is wrong.
        NoIdentityError: halfbridge did not write it; the caller gives key=, or skips it.
    """
    has_methods = callable(message.headers)  # confluent-kafka's; aiokafka's records have attributes
    if has_methods and message.error() is not None:
        raise InboxUsageError(f"not a message, but an error of the client: {message.error()}")
    topic, partition, offset = (
        each() if has_methods else each
        for each in (message.topic, message.partition, message.offset)
    )
    place = f"{topic}[{partition}]@{offset}"
    try:
        identity = real_identity(headers_of(message) if has_methods else message.headers)
    except DecodeError as error:
        raise NoIdentityError(f"{place}: {error}; give key=") from error
    if identity is None:
        raise NoIdentityError(
            f"{place} has no transaction id: halfbridge did not write it; give key="
        )
    return identity


def storage_flaw(text: str) -> str:
    """Return the texts that are allowed if `text` cannot be stored unchanged; empty if it can."""
    is_good = 0 < len(text) <= KEY_CHARS_MAX and "\0" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        is_good = False
    return "" if is_good else f"text of 1 to {KEY_CHARS_MAX} characters without NUL"


KEY_CHARS_MAX = 255  # two such columns fit into an index of each database (MySQL: 3,072 bytes)
# The message index of rows with a user's key, so that they differ from the rows of messages.
KEYED = -1
_CHAR_BYTES_MAX = 4  # of UTF-8


def inbox_table(metadata: MetaData, *, name: str, schema: str | None) -> Table:
    """Return the inbox's table. A user's key is stored as transaction_id, with index KEYED."""
    return Table(
        name,
        metadata,
        Column("group_id", ExactText(KEY_CHARS_MAX), primary_key=True),
        Column("transaction_id", ExactText(KEY_CHARS_MAX), primary_key=True),
        Column("message_index", Integer, primary_key=True, autoincrement=False),
        Column("created_at_ms", BigInteger, nullable=False),
        Index(f"{name}_age", "group_id", "created_at_ms"),
        schema=schema,
        **transactional(),
    )


class ExactText(TypeDecorator[str]):
    """Text that is compared byte by byte on every database.

    In MariaDB's collations 'A' and 'a', or 'a' and 'a ', are the same key, and one of two messages
    would be lost. So on MariaDB the text is stored as its bytes in UTF-8.
    """

    impl = String
    cache_ok = True

    def __init__(self, chars_max: int) -> None:
        super().__init__(chars_max)
        self._chars_max = chars_max

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the column."""
        if not _is_mariadb(dialect):
            return dialect.type_descriptor(String(self._chars_max))
        return dialect.type_descriptor(mysql.VARBINARY(self._chars_max * _CHAR_BYTES_MAX))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Return the stored value."""
        return value.encode() if value is not None and _is_mariadb(dialect) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Return the text of a stored value."""
        del dialect
        return value.decode() if isinstance(value, bytes) else value


def _is_mariadb(dialect: Dialect) -> bool:
    return dialect.name in ("mysql", "mariadb")


# Brokers look for segments to delete every 5 minutes (log.retention.check.interval.ms), and remove
# the file a minute later (file.delete.delay.ms). This is twice the sum.
_DELETION_MS = 12 * 60_000


def real_retention_ms(
    topics: Collection[str], *, bootstrap_servers: str, kafka: Mapping[str, object] | None = None
) -> int:
    """Return after how many milliseconds no record of `topics` can be read any more.

    Kafka deletes a whole segment when its newest record is old enough, and closes the active
    segment after `segment.ms`. So the result is retention.ms + segment.ms + the time for deletion.
    Raises ConfigError: a topic does not exist, or keeps records for ever; the caller names others.
    """
    # Imported here, because it imports the Kafka client, which `Inbox.once` does not need.
    from halfbridge.checker.admin.cluster import Cluster  # noqa: PLC0415

    seen = Cluster(bootstrap_servers, kafka=kafka).describe(topics)
    return max(_kept_ms(topic, seen.get(topic)) for topic in topics)


def _kept_ms(name: str, topic: SeenTopic | None) -> int:
    if topic is None:
        raise _refused("topics", name, "a topic that exists")
    kept_ms = topic.settings.get("retention.ms", "")
    if "delete" not in topic.settings.get("cleanup.policy", "") or not kept_ms.isdecimal():
        raise _refused(
            "topics",
            name,
            "a topic that deletes by age: this one keeps records for ever, and so must marks",
        )
    return int(kept_ms) + int(topic.settings["segment.ms"]) + _DELETION_MS
