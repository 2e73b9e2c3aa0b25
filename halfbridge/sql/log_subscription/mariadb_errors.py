"""Turns errors of MariaDB's log and of its reader into halfbridge's errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.errors import PositionLostError, UnreadableChangeError
from halfbridge.sql.log_subscription.mariadb_server import translated

if TYPE_CHECKING:
    import pymysql

_CANNOT_READ_LOG = 1236  # ER_MASTER_FATAL_ERROR_READING_BINLOG


def in_place_of_rows(text: str, why: str) -> UnreadableChangeError:
    """Return the error for a statement whose rows are not in the log."""
    return UnreadableChangeError(
        f"the log has a statement in place of rows ({text[:80]!r}), and {why}; binlog_format must "
        "be ROW in every session"
    )


def undecodable(error: Exception) -> UnreadableChangeError:
    """Return the error for an event that the reader cannot decode."""
    made = UnreadableChangeError(f"an event cannot be decoded: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def reading_error(error: pymysql.Error) -> Exception:
    """Return the error for a failure of the server or the connection while the log was read."""
    text = str(error)
    if error.args and error.args[0] == _CANNOT_READ_LOG and ("GTID" in text or "purged" in text):
        return PositionLostError(text)
    return translated(error)
