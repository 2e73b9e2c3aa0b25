"""Writes the messages of a snapshot's rows to the table of staged ones."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, text

from halfbridge.sql.log_subscription.errors import LogSettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Table

    from halfbridge.bridge.message import Message

# Of a snapshot in one INSERT: rows, and bytes of its text, which takes far less than
# Bounds.statement_s. A longer message has an INSERT of its own.
_STAGED_AT_A_TIME = 1_000
_STAGED_BYTES_AT_A_TIME = 16 << 20
# A staged row in the text of an INSERT: key and value have two digits a byte, and this is enough
# for all else: the names of 50 and 249 characters, those of table and columns, numbers.
_ROW_BYTES = 1_024


def stage(connection: Connection, table: Table, name: str, messages: Iterable[Message]) -> int:
    """Write messages in the open database transaction, numbered from 1; return how many.

    Args:
        connection: In a database transaction.
        table: The table of staged rows.
        name: Of the subscription.
        messages: Of the snapshot's rows, in their order.

    Raises:
        LogSettingsError: a message is too long for a statement on this server.
    """
    number, size = 0, 0
    rows: list[dict[str, Any]] = []
    bytes_max = _statement_bytes_max(connection)
    bytes_at_a_time = min(bytes_max, _STAGED_BYTES_AT_A_TIME)
    for number, message in enumerate(messages, 1):
        row_bytes = 2 * message.body_bytes + _ROW_BYTES
        if row_bytes > bytes_max:
            raise LogSettingsError(
                f"row {number} of the snapshot makes a message of {message.body_bytes} bytes; "
                f"max_allowed_packet is {bytes_max}, and must be {row_bytes} to stage it"
            )
        if rows and (len(rows) == _STAGED_AT_A_TIME or size + row_bytes > bytes_at_a_time):
            connection.execute(insert(table), rows)
            size, rows = 0, []
        size += row_bytes
        rows.append(
            {
                "name": name,
                "number": number,
                "topic": message.topic,
                "message_key": message.key,
                "message_value": message.value,
            }
        )
    if rows:
        connection.execute(insert(table), rows)
    return number


def _statement_bytes_max(connection: Connection) -> float:
    """Return how long a statement may be; a server that gets a longer one hangs up."""
    if connection.dialect.name == "postgresql":
        return inf
    return int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
