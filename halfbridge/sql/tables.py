"""Types and expressions that the tables share, and the fence table itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.sql.errors import Outcome

if TYPE_CHECKING:
    from sqlalchemy import Engine

GROUP_CHARS_MAX = TOPIC_CHARS_MAX  # a topic's name holds the producer group's
ID_CHARS = 32  # a UUID in hexadecimal digits

# Both key columns of the fence table's own row, which has the table's UUID. No producer group is
# empty. The row is in the table itself, so that emptying the table removes the UUID as well.
OWN_KEY = ""
OWN_OUTCOME = "table"
# Transaction id of the second own row, which has the purge watermark. It is a separate row because
# on MariaDB a local transaction that has read the first row locks it until it ends.
WATERMARK_ID = "watermark"


class NowMs(FunctionElement[int]):
    """The database's clock when the statement began, epoch milliseconds, in any time zone."""

    type = BigInteger()
    inherit_cache = True


@compiles(NowMs, "postgresql")
def _now_postgresql(element: NowMs, compiler: Any, **kw: object) -> str:
    del element, compiler, kw
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)"


@compiles(NowMs, "mysql")
@compiles(NowMs, "mariadb")
def _now_mariadb(element: NowMs, compiler: Any, **kw: object) -> str:
    del element, compiler, kw
    # Not UNIX_TIMESTAMP(NOW(3)): at the end of summer time one hour of local time is ambiguous.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(NowMs, "sqlite")
def _now_sqlite(element: NowMs, compiler: Any, **kw: object) -> str:
    del element, compiler, kw
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


def ascii_text(chars_max: int) -> String:
    """Return the type of names and ids: ASCII, compared byte by byte on every database.

    In MariaDB's default collations 'Orders' and 'orders' are the same key. PostgreSQL's collations
    may sort by the rules of a language.
    """
    exact = mysql.VARCHAR(chars_max, charset="ascii", collation="ascii_bin")
    by_byte = postgresql.VARCHAR(chars_max, collation="C")
    text = String(chars_max).with_variant(exact, "mysql", "mariadb")
    return text.with_variant(by_byte, "postgresql")


def create_tables(engine: Engine, metadata: MetaData) -> None:
    """Create tables if they do not exist; several processes may do so at the same time."""
    try:
        metadata.create_all(engine)
    except DBAPIError:
        for table in metadata.tables.values():
            if not inspect(engine).has_table(table.name, schema=table.schema):
                raise  # else another process was faster


def transactional() -> dict[str, Any]:
    """Return options for each table: on MariaDB the storage engine with transactions."""
    return {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}


def fence_table(metadata: MetaData, *, name: str, schema: str | None) -> Table:
    """Return the fence table: one row for each ended local transaction, and two own rows.

    message_count is 0 where rolled back, and where a block has sent nothing. Only in the own row
    OWN_KEY: table_id (a UUID). Only in the own row WATERMARK_ID: purged_before_ms (rows of
    transactions born before it may be missing; NULL before the first purge). Times are the
    database's clock, epoch milliseconds.
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
