"""PostgreSQL's streaming replication protocol, with the libpq of psycopg 3.

psycopg 3 has no interface for this protocol, but its module `psycopg.pq` exposes libpq: simple
queries, and COPY data in both directions. The server decodes each record of a stream once, but
decodes again for each call of pg_logical_slot_peek_binary_changes. Only this protocol can create a
snapshot together with a slot. Source: PostgreSQL manual, "Streaming Replication Protocol".
"""

from __future__ import annotations

from math import inf
from select import select
from struct import Struct
from threading import Thread
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from psycopg import Error as PsycopgError
from psycopg import pq
from psycopg.conninfo import make_conninfo

from halfbridge.sql.log_subscription.changes import always
from halfbridge.sql.log_subscription.errors import (
    LogSettingsError,
    LogUnavailableError,
    ReadingStoppedError,
    SlotLostError,
)
from halfbridge.sql.log_subscription.pg_values import TEXT_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.log_subscription.changes import Wanted

_WAL_DATA = Struct("!cQQq")  # w, its LSN, the server's end of the log, the server's clock
_KEEPALIVE = Struct("!cQqB")  # k, the server's end of the log, its clock, whether to answer
_STATUS = Struct("!cQQQqB")  # r, written, flushed and applied LSN, our clock, whether to answer
_UNIX_TO_POSTGRES_US = 946_684_800_000_000  # from 1970 to 2000
_NS_PER_US = 1_000
# The server drops a silent client after wal_sender_timeout, 60 s by default.
_STATUS_INTERVAL_S = 10.0
# Each status requests an answer. Without an answer for this long, the connection counts as lost.
_SILENCE_S_MAX = 30.0
# How often a waiting statement calls `is_wanted`.
_WANTED_INTERVAL_S = 0.5
# A statement without an answer for this long counts as lost. Statements about one slot or table
# take far less.
_ANSWER_S_MAX = 60.0
# libpq sends the request to cancel a statement over a separate connection, without a time-out. A
# running server answers at once.
_CANCEL_S_MAX = 5.0
# libpq's own: seconds to connect, seconds and probes until a dead connection is noticed.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_OK = frozenset((pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COPY_BOTH))

# SQLSTATEs and who must act.
_SLOT_GONE = frozenset(("42704",))  # undefined_object
_SLOT_INVALID = frozenset(("55000", "58P01"))  # object_not_in_prerequisite_state, undefined_file
_NOT_ALLOWED = frozenset(("42501", "28000", "28P01", "0A000", "53400"))


class ReplicationConnection:
    """One connection to PostgreSQL in replication mode. Not thread-safe.

    Args:
        parameters: Parameters for libpq: host, port, user, password, dbname, ...
        is_wanted: Called while a statement waits for the server.

    Raises:
        LogUnavailableError: The server cannot be reached now.
        LogSettingsError: The server does not allow this user to replicate.
    """

    def __init__(self, parameters: Mapping[str, object], is_wanted: Wanted = always) -> None:
        settings = " ".join(f"-c {name}={value}" for name, value in TEXT_SETTINGS.items())
        given: dict[str, Any] = {**_CONNECTION, **parameters}
        conninfo = make_conninfo(**{**given, "replication": "database", "options": settings})
        self._is_wanted = is_wanted
        self._pg = pq.PGconn.connect(conninfo.encode())
        self.keepalive_lsn = 0  # all transactions that committed before it were sent
        self._flushed_lsn = 0
        self._status_due_s = 0.0
        self._asked_s: float | None = None  # when an answer was asked for that has not come
        if self._pg.status != pq.ConnStatus.OK:
            text = self._message()
            self._pg.finish()
            if "replication" in text or "authentication" in text:
                raise LogSettingsError(text)
            raise LogUnavailableError(text)

    def rows(self, statement: str, *, is_patient: bool = False) -> list[tuple[bytes | None, ...]]:
        """Run one statement as a simple query; return its rows, all columns in text form.

        Args:
            statement: The statement.
            is_patient: Wait for the answer without the usual limit: the statement waits for other
                database transactions, or sorts the table.
        """
        return self.typed_rows(statement, is_patient=is_patient)[1]

    def typed_rows(
        self, statement: str, *, is_patient: bool = False
    ) -> tuple[list[tuple[str, int]], list[tuple[bytes | None, ...]]]:
        """Run one statement; return (name, type's oid) of its columns, and its rows as text."""
        result = self._execute(statement, is_patient=is_patient)
        columns = range(result.nfields)
        return (
            [((result.fname(each) or b"").decode(), result.ftype(each)) for each in columns],
            [
                tuple(result.get_value(row, each) for each in columns)
                for row in range(result.ntuples)
            ],
        )

    def start(self, statement: str, flushed_lsn: int) -> None:
        """Begin to stream, by a START_REPLICATION.

        Args:
            statement: The statement START_REPLICATION.
            flushed_lsn: The log before this LSN is not needed.
        """
        self._flushed_lsn = self.keepalive_lsn = flushed_lsn
        self._execute(statement)

    def receive(self) -> bytes | None:
        """Return the next message of the output plug-in that has arrived; None: none has.

        Raises:
            LogUnavailableError: The connection or the stream ended.
            SlotLostError: The server ended the stream because the slot is no longer valid.
        """
        while True:
            try:
                count, view = self._pg.get_copy_data(1)
            except PsycopgError as error:
                raise LogUnavailableError(f"the stream ended: {error}") from error
            if count == 0:
                return None
            if count < 0:
                raise self._ended()
            data = bytes(view)
            self._asked_s = None
            if data[:1] == b"w":
                return data[_WAL_DATA.size :]
            if data[:1] == b"k":
                _, end, _, answer = _KEEPALIVE.unpack_from(data)
                self.keepalive_lsn = max(self.keepalive_lsn, end)
                if answer:
                    self._send_status()

    def wait(self, timeout_s: float) -> None:
        """Wait for data, at most `timeout_s`; send the server a status if one is due.

        Raises:
            LogUnavailableError: the stream ended, or the server is silent; connect again.
        """
        if monotonic() >= self._status_due_s:
            self._send_status()
        try:
            readable, _, _ = select([self._pg.socket], [], [], max(0.0, timeout_s))
            if readable:
                self._pg.consume_input()
        except (PsycopgError, OSError) as error:
            raise LogUnavailableError(f"the stream ended: {error}") from error
        asked_s = self._asked_s
        if not readable and asked_s is not None and monotonic() - asked_s > _SILENCE_S_MAX:
            raise LogUnavailableError(f"the server has said nothing for {_SILENCE_S_MAX:.0f} s")

    def flushed(self, lsn: int) -> None:
        """Tell the server that the log before `lsn` is not needed any more."""
        if lsn > self._flushed_lsn:
            self._flushed_lsn = lsn
            self._send_status()

    def close(self) -> None:
        """End the connection. Its slot is free when the server has noticed the end."""
        self._pg.finish()

    def _execute(self, statement: str, *, is_patient: bool = False) -> pq.abc.PGresult:
        deadline_s = inf if is_patient else monotonic() + _ANSWER_S_MAX
        try:
            self._pg.send_query(statement.encode())
            result = self._answer(deadline_s)
        except (PsycopgError, OSError) as error:
            raise LogUnavailableError(f"the connection ended: {error}") from error
        if result.status not in _OK:
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            raise _error(state, result.error_message.decode("utf-8", "replace").strip())
        return result

    def _answer(self, deadline_s: float) -> pq.abc.PGresult:
        """Return the last result of the statement, or the first result of a stream."""
        result = None
        while True:
            while self._pg.is_busy():
                if select([self._pg.socket], [], [], _WANTED_INTERVAL_S)[0]:
                    self._pg.consume_input()
                elif not self._is_wanted():
                    self._cancel()
                    raise ReadingStoppedError("stopped while waiting for the server")
                elif monotonic() > deadline_s:
                    self._cancel()
                    raise LogUnavailableError(f"no answer within {_ANSWER_S_MAX:.0f} s")
            following = self._pg.get_result()
            if following is None:
                break
            result = following
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
        if result is None:
            raise LogUnavailableError(f"the connection ended: {self._message()}")
        return result

    def _cancel(self) -> None:
        """Request the server to cancel the statement, before the connection is closed.

        A server process that waits for a lock does not notice that its client is gone. It would
        keep the slot and the log until the lock is free.
        """
        # In a daemon thread: the wait for a server that does not answer cannot be ended.
        thread = Thread(target=self._pg.get_cancel().cancel, name="halfbridge-cancel", daemon=True)
        thread.start()
        thread.join(_CANCEL_S_MAX)

    def _send_status(self) -> None:
        now_us = time_ns() // _NS_PER_US - _UNIX_TO_POSTGRES_US
        lsn = self._flushed_lsn
        now_s = monotonic()
        self._status_due_s = now_s + _STATUS_INTERVAL_S
        self._asked_s = now_s if self._asked_s is None else self._asked_s
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, now_us, 1))
            self._pg.flush()
        except PsycopgError as error:
            raise LogUnavailableError(f"the stream ended: {error}") from error

    def _ended(self) -> Exception:
        result = self._pg.get_result()
        state, text = "", self._message()
        if result is not None:
            state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
            text = result.error_message.decode("utf-8", "replace").strip() or text
        return _error(state, text or "the server ended the stream")

    def _message(self) -> str:
        return self._pg.error_message.decode("utf-8", "replace").strip()


def _error(state: str, text: str) -> Exception:
    if state in _SLOT_GONE or (state in _SLOT_INVALID and "slot" in text):
        return SlotLostError(text)
    if state in _NOT_ALLOWED or (state in _SLOT_INVALID and "wal_level" in text):
        return LogSettingsError(text)
    return LogUnavailableError(text)
