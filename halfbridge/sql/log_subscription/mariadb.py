"""MariaDB as a log source: the row-based binary log, with GTID positions.

The source creates nothing on the server. The server keeps the log according to
binlog_expire_logs_seconds or until a PURGE, whether the log was read or not. The user needs
REPLICATION SLAVE and BINLOG MONITOR.

A snapshot is exact: after START TRANSACTION WITH CONSISTENT SNAPSHOT the status variables
binlog_snapshot_file and binlog_snapshot_position are the snapshot's place in the log.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.cursors import SSCursor

from halfbridge.sql.log_subscription.changes import Insert, Position, Standing, always
from halfbridge.sql.log_subscription.errors import LogSettingsError, LogUnavailableError
from halfbridge.sql.log_subscription.mariadb_gtids import gtids_of, position_of
from halfbridge.sql.log_subscription.mariadb_server import (
    check_settings,
    connect,
    describe,
    query,
    translated,
)
from halfbridge.sql.log_subscription.mariadb_stream import BinlogStream
from halfbridge.sql.log_subscription.mariadb_values import plain_row

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from halfbridge.sql.log_subscription.changes import Value, Wanted
    from halfbridge.sql.log_subscription.mariadb_server import Table

_FETCH_ROWS = 1_000  # of a snapshot at a time
# How long the server waits for a client that reads a snapshot and stages its rows.
_SNAPSHOT_WRITE_TIMEOUT_S = 3_600


class MariadbLog:
    """The inserts into one table of a MariaDB database; a LogSource.

    Args:
        parameters: Parameters for PyMySQL's connect.
        table: Name of the table.
        schema: Schema of the table; empty: the database in `parameters`.
    """

    def __init__(self, parameters: Mapping[str, Any], *, table: str, schema: str = "") -> None:
        self._parameters = dict(parameters)
        self._schema = schema or str(self._parameters.get("database", ""))
        self._table = table
        self._read_to = ""
        self._place = ("", 0)
        self._stream: BinlogStream | None = None

    @property
    def read_to(self) -> str:
        """All inserts that committed up to this position were returned by `read`."""
        return self._read_to

    def begin_now(self, is_wanted: Wanted = always) -> Position:
        """Return the current end of the log. There are no long waits."""
        del is_wanted
        connection, _ = self._checked()
        try:
            return Position(_normal(query(connection, "SELECT @@gtid_binlog_pos")[0][0]))
        finally:
            connection.close()

    @contextmanager
    def begin_snapshot(self, is_wanted: Wanted = always) -> Iterator[MariadbSnapshot]:
        """Yield a snapshot of the table at a place in the log. There are no long waits."""
        del is_wanted
        connection, table = self._checked()
        try:
            query(connection, f"SET SESSION net_write_timeout = {_SNAPSHOT_WRITE_TIMEOUT_S}")
            query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            status = dict(query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
            file, offset = status["Binlog_snapshot_file"], int(status["Binlog_snapshot_position"])
            found = query(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
            if found is None:
                raise _unreadable_place(connection, file, offset)
            name = f"{_quoted(self._schema)}.{_quoted(self._table)}"
            yield MariadbSnapshot(connection, Position(_normal(found)), name, table)
        finally:
            connection.close()

    def open_now(self, is_wanted: Wanted = always) -> None:
        """Read from the current end of the log. There are no long waits."""
        del is_wanted
        self.open(self.begin_now())

    def open(self, position: Position) -> None:
        """Read from `position` on. If the position is lost, the first `read` raises the error."""
        self.close()
        connection, table = self._checked()
        connection.close()
        self._read_to = position.commit
        self._place = ("", 0)
        self._stream = BinlogStream(
            self._parameters,
            schema=self._schema,
            table=self._table,
            described=table,
            start=position,
        )

    def read(self, inserts_max: int, timeout_s: float) -> tuple[Insert, ...]:
        """Return the next inserts; see LogSource."""
        if self._stream is None:
            raise RuntimeError("the source is not open")
        deadline_s = monotonic() + timeout_s
        found: list[Insert] = []
        while len(found) < inserts_max:
            read = self._stream.take(0 if found else max(0.0, deadline_s - monotonic()))
            if read is not None:
                self._read_to = read.read_to
                self._place = (read.file, read.offset)
                if read.insert is not None:
                    found.append(read.insert)
            elif found or monotonic() >= deadline_s:
                break
        return tuple(found)

    def advance(self, commit: str) -> None:
        """Do nothing: the server keeps its log for a fixed time, whether it was read or not."""

    def check_table(self) -> None:
        """Do nothing: the log identifies tables by name."""

    def lag_bytes(self) -> int:
        """Return the bytes of log from the place that was read to the end of the log."""
        connection = connect(self._parameters)
        try:
            files = [(each[0], int(each[1])) for each in query(connection, "SHOW BINARY LOGS")]
        finally:
            connection.close()
        file, offset = self._place
        names = [name for name, _ in files]
        begin = names.index(file) if file in names else 0  # nothing was read, or file was purged
        return max(0, sum(size for _, size in files[begin:]) - (offset if file in names else 0))

    def close(self) -> None:
        """End the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def standing(self) -> tuple[Standing, ...]:
        """Return an empty tuple: the source has no objects on the server."""
        return ()

    def drop(self) -> None:
        """End the stream. The source has no objects on the server."""
        self.close()

    def _checked(self) -> tuple[Any, Table]:
        connection = connect(self._parameters)
        try:
            check_settings(connection, self._schema)
            return connection, describe(connection, self._schema, self._table)
        except BaseException:
            connection.close()
            raise


class MariadbSnapshot:
    """The rows of a table at one place in the log. Lives as long as its connection."""

    def __init__(self, connection: Any, position: Position, name: str, table: Table) -> None:
        self._connection = connection
        self._position = position
        self._name = name
        self._table = table

    @property
    def position(self) -> Position:
        """The place in the log that belongs to the snapshot."""
        return self._position

    def rows(self) -> Generator[Mapping[str, Value], None, None]:
        """Yield every row once, in the order of the primary key."""
        columns = list(self._table.types)
        order = ", ".join(map(_quoted, self._table.primary_key))
        statement = f"SELECT {', '.join(map(self._selected, columns))} FROM {self._name}"
        cursor = self._connection.cursor(SSCursor)
        try:
            cursor.execute(statement + (f" ORDER BY {order}" if order else ""))
            while rows := cursor.fetchmany(_FETCH_ROWS):
                for row in rows:
                    yield plain_row(dict(zip(columns, row, strict=True)), self._table.types)
        except pymysql.Error as error:
            raise translated(error) from error
        finally:
            _leave(cursor)

    def _selected(self, column: str) -> str:
        # A SELECT returns a FLOAT with six digits, but the log has all digits.
        if self._table.types[column] == "float":
            return f"CAST({_quoted(column)} AS DOUBLE)"
        return _quoted(column)


def _leave(cursor: Any) -> None:
    """Close a cursor without reading its remaining rows, which may be millions."""
    result = cursor._result  # noqa: SLF001 (close() reads on to the end)
    if result is not None and result.unbuffered_active:
        result.unbuffered_active = False
        result.connection._force_close()  # noqa: SLF001 (the server stops when nobody listens)
    cursor.close()


def _unreadable_place(connection: Any, file: str, offset: int) -> Exception:
    """Return the error for a place in the log for which the server finds no GTIDs."""
    if file in (each[0] for each in query(connection, "SHOW BINARY LOGS")):
        return LogSettingsError(
            f"the server does not read its log up to {file}:{offset}, as an event in the file is "
            "larger than max_allowed_packet: raise it, or begin a new file (FLUSH BINARY LOGS)"
        )
    return LogUnavailableError(f"{file}:{offset} was purged while the snapshot began")


def _normal(gtids: object) -> str:
    return position_of(gtids_of(str(gtids or "")))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
