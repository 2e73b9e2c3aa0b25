"""The local message table, and the tables of the relay's leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    column,
    false,
    func,
    or_,
    update,
)
from sqlalchemy.dialects import mysql

from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.sql.local_messages.rows import RowEvent, RowState, state_after, states_before
from halfbridge.sql.tables import ID_CHARS, NowMs, ascii_text, transactional

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement, Update

DEFAULT_NAME = "halfbridge_local_message"
DEFAULT_RELAY_NAME = "halfbridge_relay"
# Relays divide the buckets among themselves, so at most 64 relays have rows with keys to send. A
# constant and not a setting, so that all programs compute the same bucket.
BUCKETS = 64
OWNER_CHARS_MAX = 200  # a host's name (64 on Linux) or a pod's, a pid and a random part
# Most characters of a stored cause; a longer cause is truncated, as in a log
# (logs.SHOWN_CHARS_MAX).
CAUSE_CHARS_MAX = 1_000

# Size of key, value and headers. Headers are counted in characters; they are ASCII.
_SIZE = sum(
    (func.coalesce(func.length(column(name)), 0) for name in ("value", "headers")),
    start=func.coalesce(func.length(column("key")), 0),
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one local message table.

    `metadata` has all of them, for `create_all` and for Alembic. `buckets` has one row for each
    bucket: its relay, the epoch, and when the lease expires. `relays` has one row for each running
    relay.
    """

    metadata: MetaData
    messages: Table
    buckets: Table
    relays: Table


def make_tables(*, name: str, relay_name: str, schema: str | None) -> Tables:
    """Return the tables; `relay_name` begins the names of the two that relays need."""
    metadata = MetaData()
    return Tables(
        metadata=metadata,
        messages=_messages(metadata, name, schema),
        buckets=Table(
            f"{relay_name}_bucket",
            metadata,
            Column("bucket", Integer, primary_key=True, autoincrement=False),
            Column("owner", ascii_text(OWNER_CHARS_MAX), nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("expires_at", BigInteger, nullable=False),
            schema=schema,
            **transactional(),
        ),
        relays=Table(
            f"{relay_name}_member",
            metadata,
            Column("owner", ascii_text(OWNER_CHARS_MAX), primary_key=True),
            Column("expires_at", BigInteger, nullable=False),
            schema=schema,
            **transactional(),
        ),
    )


def _messages(metadata: MetaData, name: str, schema: str | None) -> Table:
    """Return the local message table. Times are the database's clock, epoch milliseconds.

    key_hash: Kafka's positive murmur2 of the key; NULL without a key. Rows with the same hash are
    sent in order, and are in bucket `key_hash % BUCKETS`. size_bytes is computed, so that a relay
    knows the size before it reads the row. partition: of the real topic; NULL: by key. headers:
    JSON, a list of [name, base64 or null]; NULL: none. next_attempt_at: NULL: now. half_partition,
    half_offset and message_count: of the message transaction, once the row is marked.
    """
    states = ", ".join(f"'{state.value}'" for state in RowState)
    number = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER is auto-incremented
    # MariaDB's BLOB holds 64 KB; MEDIUMBLOB holds 16 MB, twice the limit of a transaction.
    body = LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
    table = Table(
        name,
        metadata,
        Column("id", number, primary_key=True, autoincrement=True),
        Column("transaction_id", ascii_text(ID_CHARS)),
        Column("state", ascii_text(14), nullable=False),
        Column("topic", ascii_text(TOPIC_CHARS_MAX), nullable=False),
        Column("key", body),
        Column("value", body),
        Column("headers", Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")),
        Column("partition", Integer),
        Column("key_hash", Integer),
        Column("size_bytes", BigInteger, Computed(_SIZE, persisted=True)),
        Column("has_key", Boolean, Computed("key_hash IS NOT NULL", persisted=True)),
        Column("cause", Text),
        Column("retries", Integer, nullable=False, server_default="0"),
        Column("send_alone", Boolean, nullable=False, server_default=false()),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("next_attempt_at", BigInteger),
        Column("decision_acknowledged", Boolean, nullable=False, server_default=false()),
        Column("half_partition", Integer),
        Column("half_offset", BigInteger),
        Column("message_count", Integer),
        CheckConstraint(f"state IN ({states})", name=f"{name}_state"),
        schema=schema,
        sqlite_autoincrement=True,  # the id of a purged row is never used again
        **transactional(),
    )
    _add_indexes(table)
    return table


def _add_indexes(table: Table) -> None:
    name, columns = table.name, table.c
    # The three indexes are for: rows of one state that are not done, by id; the few rows whose
    # attempt has failed lately; the rows of a dead letter's transaction.
    Index(
        f"{name}_todo",
        columns.decision_acknowledged,
        columns.state,
        columns.has_key,
        columns.id,
    )
    # Programs in other languages compute the hash themselves. A signed hash would give a negative
    # bucket, which no relay has.
    CheckConstraint(
        or_(
            and_(columns.key.is_(None), columns.key_hash.is_(None)),
            and_(columns.key.is_not(None), columns.key_hash.is_not(None), columns.key_hash >= 0),
        ),
        name=f"{name}_key_hash",
    )
    is_resting = columns.next_attempt_at.is_not(None)
    Index(
        f"{name}_resting",
        columns.next_attempt_at,
        postgresql_where=is_resting,
        sqlite_where=is_resting,
    )
    Index(f"{name}_transaction", columns.transaction_id)


def in_states(messages: Table, states: Iterable[RowState]) -> ColumnElement[bool]:
    """Return the condition that a row is in one of these states."""
    condition: ColumnElement[bool] = messages.c.state.in_([state.value for state in states])
    return condition


def event_update(messages: Table, event: RowEvent) -> Update:
    """Return the UPDATE by which `event` happens to the rows in whose state it is legal."""
    return (
        update(messages)
        .where(in_states(messages, states_before(event)))
        .values(state=state_after(event).value, updated_at=NowMs())
    )
