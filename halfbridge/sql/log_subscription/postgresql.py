"""PostgreSQL as a log source: a logical replication slot with pgoutput, for inserts only.

The source has a publication and a slot on the server, both named `halfbridge_<name>`. The slot
keeps the log from the position on, within max_slot_wal_keep_size. The role needs REPLICATION, and
must own the table (or be superuser) to create the publication.

A snapshot is exact: CREATE_REPLICATION_SLOT sets the snapshot of the database transaction to the
slot's consistent point. Transactions that committed before that point are in the snapshot and not
in the slot; later transactions are in the slot only.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.assembly import Assembler
from halfbridge.sql.log_subscription.changes import Insert, Position, Standing, always
from halfbridge.sql.log_subscription.errors import (
    LogSettingsError,
    PositionLostError,
    UnreadableChangeError,
)
from halfbridge.sql.log_subscription.pg_catalog import (
    columns_of,
    is_published,
    primary_key_of,
    quoted,
    standing_of,
)
from halfbridge.sql.log_subscription.pg_slot import check_slot, drop_slot, make_slot
from halfbridge.sql.log_subscription.pg_snapshot import PostgresqlSnapshot
from halfbridge.sql.log_subscription.pg_values import base_oid, value_of
from halfbridge.sql.log_subscription.pg_wire import ReplicationConnection
from halfbridge.sql.log_subscription.pgoutput import (
    Begin,
    Commit,
    PgoutputError,
    PgoutputMessage,
    Relation,
    RowInsert,
    TypeName,
    decode,
    lsn_of,
    lsn_text,
    relation_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfbridge.sql.log_subscription.changes import Wanted


class PostgresqlLog:
    """The inserts into one table of a PostgreSQL database; a LogSource.

    Args:
        parameters: Parameters for libpq; `engine_parameters` takes them from a SQLAlchemy engine.
        name: Name of the subscription, 1 to 50 of a-z, 0-9 and _. Slot and publication are named
            after it.
        table: Name of the table, without its schema.
        schema: Schema of the table.
    """

    def __init__(
        self, parameters: Mapping[str, object], *, name: str, table: str, schema: str = "public"
    ) -> None:
        self.slot = f"halfbridge_{name}"
        self._parameters = parameters
        self._table = table
        self._schema = schema
        self._assembler = Assembler(Position("0/0"))
        self._relations: dict[int, Relation] = {}
        self._base_oids: dict[int, int] = {}  # of domains; a snapshot has the base types already
        self._stream: ReplicationConnection | None = None

    @property
    def read_to(self) -> str:
        """All inserts that committed up to this position were returned by `read`."""
        return self._assembler.read_to

    def begin_now(self, is_wanted: Wanted = always) -> Position:
        """Create publication and slot again; return the slot's consistent point."""
        connection = ReplicationConnection(self._parameters, is_wanted)
        try:
            self._make_ready(connection)
            return make_slot(connection, self.slot, "NOEXPORT_SNAPSHOT")
        finally:
            connection.close()

    @contextmanager
    def begin_snapshot(self, is_wanted: Wanted = always) -> Iterator[PostgresqlSnapshot]:
        """Create publication and slot again; yield the table at the slot's consistent point."""
        connection = ReplicationConnection(self._parameters, is_wanted)
        try:
            self._make_ready(connection)
            columns = columns_of(connection, self._qualified)
            key = primary_key_of(connection, self._qualified)
            connection.rows("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            position = make_slot(connection, self.slot, "USE_SNAPSHOT")
            query = f"SELECT {', '.join(map(quoted, columns))} FROM {self._qualified}"
            if key:
                query += f" ORDER BY {', '.join(map(quoted, key))}"
            yield PostgresqlSnapshot(connection, position, query)
            connection.rows("COMMIT")
        finally:
            connection.close()

    def open_now(self, is_wanted: Wanted = always) -> None:
        """Stream from the current end of the log, with a slot that ends with this connection."""
        self.close()
        connection = ReplicationConnection(self._parameters, is_wanted)
        try:
            if not is_published(connection, self.slot, self._schema, self._table):
                connection.rows(f"DROP PUBLICATION IF EXISTS {self.slot}")
                self._publish(connection)
            slot = f"{self.slot}_{secrets.token_hex(4)}"
            row = connection.rows(
                f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT",
                is_patient=True,  # waits for the transactions that write now
            )[0]
            self._start(connection, slot, Position((row[1] or b"").decode()))
        except BaseException:
            connection.close()
            raise

    def open(self, position: Position) -> None:
        """Stream from `position` on.

        Raises:
            SlotLostError: The slot was dropped, invalidated, or moved beyond the position.
            PositionLostError: The log ends before the position, or the publication has another
                table (see check_table).
        """
        self.close()
        connection = self._connect()
        try:
            check_slot(connection, self.slot, position)
            self._check_published(connection)
            self._start(connection, self.slot, position)
        except BaseException:
            connection.close()
            raise

    def read(self, inserts_max: int, timeout_s: float) -> tuple[Insert, ...]:
        """Return the next inserts; see LogSource."""
        stream = self._opened()
        deadline_s = monotonic() + timeout_s
        found: list[Insert] = []
        stream.wait(0)  # reads the data that has arrived
        while len(found) < inserts_max:
            data = stream.receive()
            if data is not None:
                insert = self._take(data)
                if insert is not None:
                    found.append(insert)
                continue
            if not self._assembler.is_within:
                # The server sends a transaction after its commit, and then completely.
                self._assembler.pass_to(lsn_text(max(stream.keepalive_lsn, lsn_of(self.read_to))))
                if found:
                    break
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                break
            stream.wait(left_s)
        return tuple(found)

    def advance(self, commit: str) -> None:
        """Allow the server to remove the log up to `commit`, at its next checkpoint."""
        self._opened().flushed(lsn_of(commit))

    def check_table(self) -> None:
        """Check that the publication has the table that now has the name; see LogSource."""
        connection = self._connect()
        try:
            self._check_published(connection)
        finally:
            connection.close()

    def lag_bytes(self) -> int:
        """Return the bytes of log from the position of the last `advance` to the end of the log.

        The slot keeps at least this much log on the server's disk.
        """
        connection = self._connect()
        try:
            rows = connection.rows(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint "
                f"FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
            )
        finally:
            connection.close()
        return 0 if not rows or rows[0][0] is None else max(0, int(rows[0][0]))

    def close(self) -> None:
        """End the stream; slot and publication stay."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def standing(self) -> tuple[Standing, ...]:
        """Return slot and publication if they exist."""
        connection = self._connect()
        try:
            return standing_of(connection, self.slot)
        finally:
            connection.close()

    def drop(self) -> None:
        """Remove slot and publication."""
        self.close()
        connection = self._connect()
        try:
            drop_slot(connection, self.slot)
            connection.rows(f"DROP PUBLICATION IF EXISTS {self.slot}")
        finally:
            connection.close()

    @property
    def _qualified(self) -> str:
        return f"{quoted(self._schema)}.{quoted(self._table)}"

    def _connect(self) -> ReplicationConnection:
        return ReplicationConnection(self._parameters)

    def _opened(self) -> ReplicationConnection:
        if self._stream is None:
            raise RuntimeError("the source is not open")
        return self._stream

    def _start(self, connection: ReplicationConnection, slot: str, position: Position) -> None:
        connection.start(
            f"START_REPLICATION SLOT {slot} LOGICAL {position.commit} "
            f"(proto_version '1', publication_names '{self.slot}')",
            lsn_of(position.commit),
        )
        self._stream = connection
        self._assembler = Assembler(position)
        self._relations.clear()
        self._base_oids.clear()

    def _take(self, data: bytes) -> Insert | None:
        try:
            return self._apply(decode(data))
        except PgoutputError as error:
            raise UnreadableChangeError(f"slot {self.slot}: {error}") from error

    def _apply(self, message: PgoutputMessage) -> Insert | None:
        if isinstance(message, RowInsert):
            relation = relation_of(self._relations, message)
            values = {
                column.name: value_of(self._base_oids.get(column.type_oid, column.type_oid), text)
                for column, text in zip(relation.columns, message.texts, strict=True)
            }
            return self._assembler.insert(relation.table, values)
        if isinstance(message, Commit):
            return self._assembler.commit(lsn_text(message.end_lsn))
        if isinstance(message, Begin):
            self._assembler.begin()
        elif isinstance(message, Relation):
            self._relations[message.oid] = message
        elif isinstance(message, TypeName):
            base = base_oid(message.schema, message.name)
            self._base_oids[message.oid] = message.oid if base is None else base
        return None

    def _make_ready(self, connection: ReplicationConnection) -> None:
        """Create the publication, and drop an old slot."""
        (level,) = connection.rows("SHOW wal_level")[0]
        if level != b"logical":
            raise LogSettingsError(f"wal_level is {(level or b'').decode()}; it must be logical")
        drop_slot(connection, self.slot)
        connection.rows(f"DROP PUBLICATION IF EXISTS {self.slot}")
        self._publish(connection)

    def _publish(self, connection: ReplicationConnection) -> None:
        # Inserts into the partitions of a partitioned table are published as inserts into it.
        connection.rows(
            f"CREATE PUBLICATION {self.slot} FOR TABLE {self._qualified} "
            "WITH (publish = 'insert', publish_via_partition_root = true)"
        )

    def _check_published(self, connection: ReplicationConnection) -> None:
        if not is_published(connection, self.slot, self._schema, self._table):
            raise PositionLostError(
                f"publication {self.slot} does not have table {self._qualified}: the table was "
                "made anew or renamed, or the publication was changed or dropped"
            )
