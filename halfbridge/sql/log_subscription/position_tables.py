"""The tables of log subscriptions."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects import mysql

from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.sql.tables import GROUP_CHARS_MAX, ID_CHARS, ascii_text, transactional

# With `halfbridge_` before it 61 of the 63 that PostgreSQL gives a slot's name.
SUBSCRIPTION_CHARS_MAX = 50
OWNER_CHARS_MAX = 200
_POSITION_CHARS_MAX = 1_000  # a GTID of 42 characters for each of 23 domains


def position_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """Return the table of positions: one row a subscription; see positions.Stored.

    The columns are described by comments in the database.
    """
    return Table(
        name,
        metadata,
        Column(
            "name",
            ascii_text(SUBSCRIPTION_CHARS_MAX),
            primary_key=True,
            comment="of the subscription",
        ),
        Column(
            "producer_group",
            ascii_text(GROUP_CHARS_MAX),
            nullable=False,
            comment="of the relay, whose fence rows and half messages belong to it",
        ),
        Column(
            "commit_position",
            ascii_text(_POSITION_CHARS_MAX),
            nullable=False,
            comment="in the log; what committed before it was turned into messages: LSN or GTIDs",
        ),
        Column(
            "inserts",
            BigInteger,
            nullable=False,
            comment="so many inserts of the next database transaction were too",
        ),
        Column(
            "staged_after",
            BigInteger,
            comment="number of the last staged row that was sent; NULL: none is staged",
        ),
        Column(
            "transaction_id",
            ascii_text(ID_CHARS),
            comment="of the message transaction that moved the row last; NULL: none",
        ),
        Column("half_partition", Integer, comment="of its half messages"),
        Column("half_offset", BigInteger, comment="of the last of them"),
        Column("message_count", Integer, comment="how many there are"),
        Column(
            "decision_acknowledged",
            Boolean,
            nullable=False,
            comment="its COMMIT is known to stand in the op log",
        ),
        Column("version", BigInteger, nullable=False, comment="grows by one with each move"),
        Column(
            "owner",
            String(OWNER_CHARS_MAX),
            nullable=False,
            comment="process that moved the row last: host and process id",
        ),
        Column(
            "updated_at",
            BigInteger,
            nullable=False,
            comment="when, by the database's clock, epoch milliseconds",
        ),
        schema=schema,
        **transactional(),
    )


def staged_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """Return the table of a snapshot's rows that are not messages yet, numbered from 1."""
    binary = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    return Table(
        name,
        metadata,
        Column(
            "name",
            ascii_text(SUBSCRIPTION_CHARS_MAX),
            primary_key=True,
            comment="of the subscription",
        ),
        Column(
            "number",
            BigInteger,
            primary_key=True,
            autoincrement=False,
            comment="place in the snapshot, from 1",
        ),
        Column("topic", ascii_text(TOPIC_CHARS_MAX), nullable=False, comment="of the message"),
        Column("message_key", binary, comment="NULL: the message has none"),
        Column("message_value", binary, comment="NULL: a tombstone"),
        schema=schema,
        **transactional(),
    )
