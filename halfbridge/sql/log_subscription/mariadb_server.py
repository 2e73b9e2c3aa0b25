"""Connects to a MariaDB server, checks its settings, and describes a table."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any

import pymysql

from halfbridge.sql.log_subscription.errors import LogSettingsError, LogUnavailableError
from halfbridge.sql.log_subscription.mariadb_values import UNREADABLE_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds. A lost connection is noticed by the next statement within this time.
_CONNECT_TIMEOUT_S = 10
_STATEMENT_TIMEOUT_S = 60

# Variable, the value that is needed, why.
_NEEDED = (
    ("log_bin", "ON", "without a binary log there is nothing to read"),
    ("binlog_format", "ROW", "a statement does not say which rows it inserted"),
    ("binlog_row_image", "FULL", "an image that is not full lacks columns"),
    ("binlog_row_metadata", "FULL", "without it the log has no names of columns"),
    ("log_bin_compress", "OFF", "compressed events cannot be read"),
    ("sync_binlog", "1", "else the log tells of commits that a crash of the machine undoes"),
    ("innodb_flush_log_at_trx_commit", "1", "else a crash of the machine undoes claims"),
)
_NOT_ALLOWED = frozenset((1044, 1045, 1142, 1227, 1698))


@dataclass(frozen=True, slots=True)
class Table:
    """The description of a table in information_schema.

    Attributes:
        types: Column -> name of its type, in the table's order, for columns that can be read from
            the log. Generated columns and columns of UNREADABLE_TYPES are left out.
        binary_lengths: Column -> length in bytes, for BINARY columns.
        primary_key: Columns of the primary key; empty without a primary key.
    """

    types: Mapping[str, str]
    binary_lengths: Mapping[str, int]
    primary_key: tuple[str, ...]


def connect(parameters: Mapping[str, Any], **more: Any) -> Any:
    """Return a connection of PyMySQL with autocommit, in UTC.

    Raises:
        LogUnavailableError: The server cannot be reached now.
        LogSettingsError: The server refuses this user.
    """
    settings = {
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _STATEMENT_TIMEOUT_S,
        "write_timeout": _STATEMENT_TIMEOUT_S,
        "init_command": "SET time_zone = '+00:00'",
        **parameters,
        **more,
    }
    try:
        return pymysql.connect(**settings)
    except pymysql.Error as error:
        raise translated(error) from error


def cut(connection: Any) -> None:
    """Close a connection on which another thread may be waiting."""
    socket = connection._sock  # noqa: SLF001 (close() would wait for the one who reads)
    if socket is not None:
        with suppress(OSError):  # the server was first
            socket.shutdown(SHUT_RDWR)
    connection._force_close()  # noqa: SLF001  (no call for it)


def query(connection: Any, statement: str, arguments: tuple[object, ...] = ()) -> list[Any]:
    """Return all rows of one statement, as tuples.

    Raises:
        LogUnavailableError, LogSettingsError: The statement failed; see `translated`.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall())
    except pymysql.Error as error:
        raise translated(error) from error


def translated(error: pymysql.Error) -> Exception:
    """Return halfbridge's error for a driver's error, by who must act."""
    code = error.args[0] if error.args else 0
    if code in _NOT_ALLOWED:
        return LogSettingsError(
            f"{error}; reading the log needs REPLICATION SLAVE and BINLOG MONITOR, and SELECT on "
            "the table"
        )
    return LogUnavailableError(str(error))


def check_settings(connection: Any, schema: str) -> None:
    """Check that the server writes a log from which inserts can be read.

    Raises:
        LogSettingsError: A setting is wrong; the text names the variable and the needed value.
    """
    for variable, needed, why in _NEEDED:
        rows = query(connection, "SHOW GLOBAL VARIABLES LIKE %s", (variable,))
        value = str(rows[0][1]).upper() if rows else "unknown"
        if value != needed:
            raise LogSettingsError(f"{variable} is {value}; it must be {needed}: {why}")
    for _, _, do_db, ignore_db, *_ in query(connection, "SHOW MASTER STATUS"):
        if (do_db and schema not in do_db.split(",")) or schema in ignore_db.split(","):
            raise LogSettingsError(
                f"binlog_do_db or binlog_ignore_db keeps schema {schema} out of the log"
            )


def describe(connection: Any, schema: str, table: str) -> Table:
    """Return the description of a table.

    Raises:
        LogSettingsError: The table does not exist, or its engine has no transactions.
    """
    engine = query(
        connection,
        "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (schema, table),
    )
    if not engine or engine[0][0] != "InnoDB":
        found = f"its engine is {engine[0][0]}" if engine else "it is not there"
        raise LogSettingsError(f"table {schema}.{table} must be an InnoDB table; {found}")
    columns = query(
        connection,
        "SELECT column_name, data_type, character_octet_length, is_generated, column_key "
        "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
        "ORDER BY ordinal_position",
        (schema, table),
    )
    key = query(
        connection,
        "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s "
        "AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
        (schema, table),
    )
    readable = [each for each in columns if each[3] == "NEVER" and each[1] not in UNREADABLE_TYPES]
    return Table(
        types={each[0]: each[1] for each in readable},
        binary_lengths={each[0]: int(each[2]) for each in readable if each[1] == "binary"},
        primary_key=tuple(name for (name,) in key),
    )
