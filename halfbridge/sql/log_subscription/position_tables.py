"""The tables of log subscriptions."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.dialects import mysql

from halfbridge.sql.tables import ID_CHARS, ascii_text, transactional
from serde.limits import TOPIC_CHARS_MAX

SUBSCRIPTION_CHARS_MAX = 50
OWNER_CHARS_MAX = 200
_POSITION_CHARS_MAX = 1_000  # a GTID of 42 characters for each of 23 domains


def position_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """Return the table of positions: one row a subscription; see positions.Stored."""
    return Table(
        name,
        metadata,
        Column("name", ascii_text(SUBSCRIPTION_CHARS_MAX), primary_key=True),
        Column("commit_position", ascii_text(_POSITION_CHARS_MAX), nullable=False),
        Column("inserts", BigInteger, nullable=False),
        Column("staged_after", BigInteger),
        Column("transaction_id", ascii_text(ID_CHARS)),
        Column("half_partition", Integer),
        Column("half_offset", BigInteger),
        Column("message_count", Integer),
        Column("decision_acknowledged", Boolean, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("owner", String(OWNER_CHARS_MAX), nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        schema=schema,
        **transactional(),
    )


def staged_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """Return the table of a snapshot's rows that are not messages yet, numbered from 1."""
    binary = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    return Table(
        name,
        metadata,
        Column("name", ascii_text(SUBSCRIPTION_CHARS_MAX), primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("topic", ascii_text(TOPIC_CHARS_MAX), nullable=False),
        Column("message_key", binary),
        Column("message_value", binary),
        schema=schema,
        **transactional(),
    )
