"""A thread that reads MariaDB's binlog, by `mysql-replication`, into a bounded queue."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    ExecuteLoadQueryEvent,
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import WriteRowsEvent

from halfbridge.sql.log_subscription.assembly import Assembler
from halfbridge.sql.log_subscription.errors import (
    LogSettingsError,
    LogSubscriptionError,
    LogUnavailableError,
    UnreadableChangeError,
)
from halfbridge.sql.log_subscription.mariadb_errors import (
    in_place_of_rows,
    reading_error,
    undecodable,
)
from halfbridge.sql.log_subscription.mariadb_gtids import gtids_of, position_of
from halfbridge.sql.log_subscription.mariadb_queue import Read, ReadAhead
from halfbridge.sql.log_subscription.mariadb_server import connect, cut, describe
from halfbridge.sql.log_subscription.mariadb_statements import (
    MAKES_TABLE,
    Statements,
    fills,
    load_text,
)
from halfbridge.sql.log_subscription.mariadb_values import padded, plain_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.log_subscription.changes import Insert, Position
    from halfbridge.sql.log_subscription.mariadb_server import Table

_HEARTBEAT_S = 5.0  # interval of the server's heartbeats
_SILENCE_S_MAX = 30  # without data for this long the connection counts as lost
_CONNECTIONS_MAX = 2  # one for events, one for the reader's own queries
# A random server id from here to 2^32 - 1: the server ends the stream of a reader whose id another
# reader uses.
_SERVER_ID_MIN = 1 << 31
_STANDALONE, _PREPARED_XA = 1, 64  # flags of a GTID event
# WRITE_ROWS, in its two versions, and QUERY, as log_bin_compress writes them.
_COMPRESSED_EVENTS = frozenset((165, 166, 169))
_EVENTS = [
    ExecuteLoadQueryEvent,
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    WriteRowsEvent,
    XAPrepareEvent,
    XidEvent,
]
# Query events within a database transaction that change no row.
_HARMLESS = ("BEGIN", "COMMIT", "SAVEPOINT", "XA ", "RELEASE")


class BinlogStream:
    """Reads the log from a position on, in a separate thread, until `close`.

    Args:
        parameters: Parameters for PyMySQL's connect.
        schema: Schema of the table.
        table: The table whose inserts are read.
        described: Description of the table at the time of the call. The thread does not query it,
            because the table may be renamed meanwhile.
        start: Position to begin at.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        *,
        schema: str,
        table: str,
        described: Table,
        start: Position,
    ) -> None:
        self._parameters = parameters
        self._schema = schema
        self._table = table
        self._described = described
        self._fills = fills(schema, table)
        self._assembler = Assembler(start)
        self._gtids = gtids_of(start.commit)
        self._queue = ReadAhead()
        self._connections: list[Any] = []
        self._gtid: MariadbGtidEvent | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"halfbridge-binlog-{table}", daemon=True
        )
        self._thread.start()

    def take(self, timeout_s: float) -> Read | None:
        """Return the next element of the queue; None: nothing came within `timeout_s`.

        Raises:
            PositionLostError, UnreadableChangeError, LogUnavailableError: The thread has ended.
        """
        return self._queue.take(timeout_s)

    def close(self) -> None:
        """End the thread and its connections."""
        self._queue.close()
        for connection in tuple(self._connections):
            cut(connection)
        self._thread.join()

    def _run(self) -> None:
        try:
            reader = BinLogStreamReader(
                connection_settings={**self._parameters, "read_timeout": _SILENCE_S_MAX},
                server_id=_SERVER_ID_MIN + secrets.randbelow(_SERVER_ID_MIN),
                is_mariadb=True,
                auto_position=self._assembler.read_to,
                blocking=True,
                slave_heartbeat=_HEARTBEAT_S,
                only_events=_EVENTS,
                filter_non_implemented_events=False,
                only_tables=[self._table],
                only_schemas=[self._schema],
                pymysql_wrapper=self._connect,
                enable_logging=False,
            )
            control = connect(self._parameters)
            self._connections.append(control)
            self._statements = Statements(control, self._table)
            for event in reader:
                self._apply(event, reader)
                if self._queue.is_closed:
                    return
            self._queue.put(LogUnavailableError("the server ended the stream"))
        except pymysql.Error as error:
            self._queue.put(reading_error(error))
        except UnreadableChangeError as error:
            self._queue.put(self._placed(error))
        except LogSubscriptionError as error:
            self._queue.put(error)
        except Exception as error:  # noqa: BLE001 (the reader's; handed to who reads the queue)
            self._queue.put(undecodable(error))
        finally:
            for connection in tuple(self._connections):
                cut(connection)

    def _connect(self, **settings: Any) -> Any:
        """Connect for the reader; refuse a reconnect, after which it would start over."""
        if len(self._connections) > _CONNECTIONS_MAX:
            raise LogUnavailableError("the connection to the server was lost")
        renamed = {"db": "database", "passwd": "password"}
        connection = connect({renamed.get(name, name): each for name, each in settings.items()})
        self._connections.append(connection)
        return connection

    def _apply(self, event: Any, reader: BinLogStreamReader) -> None:
        insert: Insert | None = None
        if isinstance(event, WriteRowsEvent):
            self._insert(event, reader)
        elif isinstance(event, MariadbGtidEvent):
            self._gtid = event
            # Table ids are valid until the server restarts. After a crash of the server, the log
            # continues without the event that resets the reader's table map, and rows of another
            # table would be taken for rows of this table. Every database transaction starts with
            # the table ids that it uses, so the map is cleared for each.
            reader.table_map.clear()
            self._assembler.begin()
        elif isinstance(event, (XidEvent, XAPrepareEvent)):
            insert = self._end()
        elif isinstance(event, QueryEvent):
            insert = self._query(event)
        elif isinstance(event, ExecuteLoadQueryEvent):
            self._judge(*load_text(event))
        elif isinstance(event, NotImplementedEvent) and event.event_type in _COMPRESSED_EVENTS:
            raise UnreadableChangeError(
                "the log has compressed events; log_bin_compress must be OFF"
            )
        if not isinstance(event, (MariadbGtidEvent, WriteRowsEvent)):
            self._hand_over(insert, reader)

    def _insert(self, event: WriteRowsEvent, reader: BinLogStreamReader) -> None:
        if self._gtid is not None and self._gtid.flags & _PREPARED_XA:
            raise UnreadableChangeError(
                f"{self._gtid.gtid} is an XA transaction: a later event says whether it commits"
            )
        present = int.from_bytes(event.columns_present_bitmap, "little").bit_count()
        if present != event.number_of_columns:
            raise UnreadableChangeError("a row image lacks columns; binlog_row_image must be FULL")
        for row in event.rows:
            values = plain_row(row["values"], self._described.types)
            for name, length in self._described.binary_lengths.items():
                if name in values:
                    values[name] = padded(values[name], length)
            before = self._assembler.insert(event.table, values)
            if before is not None:
                self._hand_over(before, reader)

    def _query(self, event: QueryEvent) -> Insert | None:
        text = event.query.strip()
        if self._gtid is not None and self._gtid.flags & _STANDALONE:
            if self._fills.match(text):
                raise in_place_of_rows(text, "it makes the table and fills it")
            if MAKES_TABLE.match(text):
                self._judge(event.schema.decode("utf-8", "replace"), text)
            self._described = self._redescribed(text)
            self._statements.forget()
            return self._end()
        if text.upper() == "COMMIT":
            return self._end()
        if text.upper().startswith("ROLLBACK"):
            return self._rolled_back(text)
        if MAKES_TABLE.match(text):  # of a CREATE TABLE ... SELECT, in front of its rows
            self._described = self._redescribed(text)
        if not text.upper().startswith(_HARMLESS):
            self._judge(event.schema.decode("utf-8", "replace"), text)
        return None

    def _judge(self, schema: str, text: str) -> None:
        """Refuse a logged statement unless it certainly did not insert into the table."""
        suspicion = self._statements.suspicion(schema, text)
        if suspicion:
            raise in_place_of_rows(text, suspicion)

    def _rolled_back(self, text: str) -> Insert | None:
        """Accept a rollback that undid no insert into the table.

        The log contains a rolled back database transaction if that has created a temporary table or
        has written to a table whose engine has no transactions. The log has its rows, and then the
        rollback.
        """
        if self._assembler.is_within:
            raise UnreadableChangeError(
                f"the log has inserts that were rolled back afterwards ({text[:80]!r}), as their "
                "database transaction made a temporary table or wrote to a table whose engine has "
                "no transactions"
            )
        return self._end() if text.upper() == "ROLLBACK" else None

    def _redescribed(self, text: str) -> Table:
        """Describe the table again if the DDL names it; return the old description if it is gone.

        A lost connection (wait_timeout) ends the stream: with an outdated description, rows would
        be decoded wrongly.
        """
        if self._table.lower() not in text.lower():
            return self._described
        try:
            return describe(self._connections[0], self._schema, self._table)
        except LogSettingsError:  # a later statement dropped the table: nothing comes of it
            return self._described

    def _placed(self, error: UnreadableChangeError) -> UnreadableChangeError:
        """Return the error with the position after the database transaction that caused it."""
        if self._gtid is None:
            return error
        behind = position_of({**self._gtids, self._gtid.domain_id: self._gtid.gtid})
        return UnreadableChangeError(f"{error}. The position after it is {behind}")

    def _end(self) -> Insert | None:
        gtid, self._gtid = self._gtid, None
        if gtid is None:
            return None
        self._gtids[gtid.domain_id] = gtid.gtid
        return self._assembler.commit(position_of(self._gtids))

    def _hand_over(self, insert: Insert | None, reader: BinLogStreamReader) -> None:
        """Queue an insert; queue a change of place only while the queue is at most half full."""
        if insert is None and self._queue.is_half_full:
            return
        read_to = self._assembler.read_to
        self._queue.put(Read(insert, read_to, str(reader.log_file or ""), int(reader.log_pos or 0)))
