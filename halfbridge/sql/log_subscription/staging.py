"""Writes the messages of a snapshot's rows to the table of staged messages."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, text

from halfbridge.sql.log_subscription.errors import LogSettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Table

    from halfbridge.bridge.message import Message

# Most rows of one INSERT, and most bytes of its text. Such an INSERT takes far less than
# Bounds.statement_s. A larger message gets its own INSERT.
_STAGED_AT_A_TIME = 1_000
_STAGED_BYTES_AT_A_TIME = 16 << 20
# Bytes of a staged row in the text of an INSERT, without key and value (two digits a byte): names
# of 50 and 249 characters, the names of table and columns, and numbers.
_ROW_BYTES = 1_024


def stage(connection: Connection, table: Table, name: str, messages: Iterable[Message]) -> int:
    """Write messages in the open database transaction, numbered from 1; return how many.

    Args:
        connection: Connection with an open database transaction.
        table: The table of staged messages.
        name: Name of the subscription.
        messages: Messages of the snapshot's rows, in the order of the rows.

    Raises:
        LogSettingsError: A message is too long for a statement on this server.
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
    """Return the server's limit for a statement: it closes the connection after a longer one."""
    if connection.dialect.name == "postgresql":
        return inf
    return int(connection.execute(text("SELECT @@max_allowed_packet")).scalar_one())
