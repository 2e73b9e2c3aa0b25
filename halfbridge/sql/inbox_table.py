"""The inbox's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, TypeDecorator
from sqlalchemy.dialects import mysql

from halfbridge.sql.tables import transactional

if TYPE_CHECKING:
    from sqlalchemy import Dialect, MetaData
    from sqlalchemy.types import TypeEngine

KEY_CHARS_MAX = 255  # two such columns fit into an index of each database (MySQL: 3,072 bytes)
# The message index of rows with a user's key, so that they differ from the rows of messages.
KEYED = -1
_CHAR_BYTES_MAX = 4


def inbox_table(metadata: MetaData, *, name: str, schema: str | None) -> Table:
    """Return the inbox's table: one row for each message that a group has taken.

    Columns: group_id, transaction_id and message_index (primary key); created_at_ms (the database's
    clock, epoch milliseconds). If the user gave a key, transaction_id is the key, and message_index
    is KEYED.
    """
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
        """Return what is stored."""
        return value.encode() if value is not None and _is_mariadb(dialect) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """Return the text of what was stored."""
        del dialect
        return value.decode() if isinstance(value, bytes) else value


def _is_mariadb(dialect: Dialect) -> bool:
    return dialect.name in ("mysql", "mariadb")
