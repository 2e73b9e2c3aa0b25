"""Types and expressions that the tables share, and the fence table itself."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    MetaData,
    String,
    Table,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.sql.errors import Outcome

GROUP_CHARS_MAX = TOPIC_CHARS_MAX  # a topic's name holds the producer group's
ID_CHARS = 32  # a UUID in hexadecimal digits

# What the row of a fence table that is about the table itself has in both columns of the key:
# no producer group is empty. The row is in the table itself so that whoever empties the table
# takes the table's identity too.
OWN_KEY = ""
OWN_OUTCOME = "table"
# Beside it, in the same group: the row that has the purge watermark. A row of its own, for MariaDB
# locks the table's own row until each local transaction ends that has read it.
WATERMARK_ID = "watermark"


class NowMs(FunctionElement[int]):
    """The database's clock, epoch milliseconds; in UTC, whatever the session's time zone is.

    The moment at which the statement began, wherever in the statement it stands.
    """

    type = BigInteger()
    inherit_cache = True


@compiles(NowMs, "postgresql")
def _now_postgresql(element: NowMs, compiler: Any, **kw: Any) -> str:
    del element, compiler, kw
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


@compiles(NowMs, "mysql")
@compiles(NowMs, "mariadb")
def _now_mariadb(element: NowMs, compiler: Any, **kw: Any) -> str:
    del element, compiler, kw
    # Not UNIX_TIMESTAMP(NOW(3)): an hour is ambiguous when a time zone leaves summer time.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(NowMs, "sqlite")
def _now_sqlite(element: NowMs, compiler: Any, **kw: Any) -> str:
    del element, compiler, kw
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


def ascii_text(chars_max: int) -> String:
    """Return the type of names and ids: ASCII, compared byte by byte on every database.

    MariaDB's default collations take 'Orders' and 'orders' for the same key; PostgreSQL's order
    letters and digits as a language does.
    """
    exact = mysql.VARCHAR(chars_max, charset="ascii", collation="ascii_bin")
    by_byte = postgresql.VARCHAR(chars_max, collation="C")
    text = String(chars_max).with_variant(exact, "mysql", "mariadb")
    return text.with_variant(by_byte, "postgresql")


def transactional() -> dict[str, Any]:
    """Return what each table is made with: on MariaDB the engine that has transactions."""
    return {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def fence_table(metadata: MetaData, *, name: str, schema: str | None) -> Table:
    """Return the fence table: one row for each local transaction that has ended, two about itself.

    Columns: producer_group and transaction_id (primary key); outcome (an `Outcome`);
    message_count (0 where rolled back); created_at_ms (the database's clock, epoch milliseconds).
    Of the table's own row only: table_id (a UUID). Of the row beside it, WATERMARK_ID:
    purged_before_ms (of transaction ids born before it rows may be missing; NULL before the first
    purge).
    """
    outcomes = ", ".join(f"'{each}'" for each in (*(o.value for o in Outcome), OWN_OUTCOME))
    return Table(
        name,
        metadata,
        Column("producer_group", ascii_text(GROUP_CHARS_MAX), primary_key=True),
        Column("transaction_id", ascii_text(ID_CHARS), primary_key=True),
        Column("outcome", ascii_text(11), nullable=False),
        Column("message_count", Integer, nullable=False),
        Column("created_at_ms", BigInteger, nullable=False),
        Column("table_id", ascii_text(ID_CHARS)),
        Column("purged_before_ms", BigInteger),
        CheckConstraint(f"outcome IN ({outcomes})", name=f"{name}_outcome"),
        schema=schema,
        **transactional(),
    )
