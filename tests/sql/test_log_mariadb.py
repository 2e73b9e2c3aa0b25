"""What only MariaDB's log has: statements among the rows."""

from __future__ import annotations

from contextlib import closing
from secrets import token_bytes
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.bridge import Message
from halfbridge.sql.log_subscription import mariadb_stream
from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import (
    LogSettingsError,
    LogUnavailableError,
    PositionLostError,
    UnreadableChangeError,
)
from halfbridge.sql.log_subscription.mariadb import MariadbLog
from halfbridge.sql.log_subscription.positions import Positions
from tests.kit.waiting import until
from tests.sql.databases import OwnDatabase
from tests.sql.log_scene import NAME, Orders, ids, read_until
from tests.sql.servers import MariaDbServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from halfbridge.sql.log_subscription.changes import Insert, LogSource
    from tests.sql.databases import Database
    from tests.sql.servers import Template

pytestmark = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
PACKET_MAX = 1 << 20
INSERT = "INSERT INTO orders (id) VALUES (%d)"


@pytest.fixture
def orders(orders: Orders) -> Orders:
    """A user's table, and one whose engine has no transactions."""
    orders.execute("CREATE TABLE plain (id int) ENGINE = MyISAM")
    return orders


def run(orders: Orders, *statements: str) -> None:
    """Run statements on one connection; they begin and end their database transaction."""
    with orders.engine.connect() as connection:
        for each in statements:
            connection.execute(text(each))


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            (INSERT % 1, INSERT % 2, "CREATE TEMPORARY TABLE t (id int)", "ROLLBACK"), id="whole"
        ),
        pytest.param(
            (
                *(INSERT % 1, "SAVEPOINT a", INSERT % 2, INSERT % 3),
                *("INSERT INTO plain VALUES (1)", "ROLLBACK TO a", INSERT % 4, "COMMIT"),
            ),
            id="savepoint",
        ),
    ],
)
def test_a_rollback_in_the_log_stops_the_reader(
    orders: Orders, source: LogSource, statements: tuple[str, ...]
) -> None:
    """The rows that were rolled back stand before it: their database transaction never ends."""
    run(orders, "BEGIN", *statements)
    orders.insert(9)
    found: list[Insert] = []

    def read_on() -> None:
        while 9 not in ids(found):
            found.extend(read_until(source, 1))

    with pytest.raises(UnreadableChangeError, match="rolled back"):
        read_on()
    assert not any(each.ends_transaction for each in found)


def test_a_rollback_without_inserts_into_the_table_is_passed(
    orders: Orders, source: LogSource
) -> None:
    """What other tables were spared says nothing of this one."""
    orders.execute("CREATE TABLE others (id int primary key)")
    temporary = "CREATE TEMPORARY TABLE t (id int)"
    run(orders, "BEGIN", "INSERT INTO others VALUES (1)", temporary, "ROLLBACK")
    savepoint = ("SAVEPOINT a", "INSERT INTO others VALUES (1)", "INSERT INTO plain VALUES (1)")
    run(orders, "BEGIN", *savepoint, "ROLLBACK TO a", INSERT % 1, "COMMIT")
    assert ids(read_until(source, 1)) == [1]


@pytest.fixture
def own(mariadb_template: Template, database: Database) -> Iterator[Orders]:
    """A table on a server of this test's own."""
    del database  # the shared server's
    with (
        MariaDbServer(mariadb_template, durable=True) as server,
        closing(OwnDatabase(server)) as alone,
        closing(Orders(alone)) as made,
    ):
        yield made


def set_packet_max(orders: Orders, bytes_max: int) -> None:
    """Set how long a packet may be, for connections from now on."""
    with orders.database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        admin.execute(text(f"SET GLOBAL max_allowed_packet = {bytes_max}"))
    orders.engine.dispose()


def test_a_row_above_the_longest_packet_is_read(own: Orders) -> None:
    """The limit is for what clients send: log and snapshot tell such a row whole."""
    source = own.source()
    begun = source.begin_now()
    row = {**own.row(1), "body": token_bytes(3_000_000)}
    with own.engine.begin() as connection:
        connection.execute(own.table.insert(), row)
    set_packet_max(own, PACKET_MAX)
    source.open(begun)
    (insert,) = read_until(source, 1)
    assert insert.values == row
    with (
        pytest.raises(LogSettingsError, match=r"larger than max_allowed_packet.*FLUSH BINARY LOGS"),
        source.begin_snapshot(),
    ):
        pass
    with own.database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        admin.execute(text("FLUSH BINARY LOGS"))
    with source.begin_snapshot() as snapshot:
        assert list(snapshot.rows()) == [row]


def test_what_cannot_be_staged_in_a_packet_is_named(own: Orders) -> None:
    """A message whose INSERT is too long says so, instead of a connection that is lost for ever."""
    set_packet_max(own, PACKET_MAX)
    positions = Positions(own.engine, owner="test")
    positions.create()
    fits = Message("t", key=b"'" * 20_000, value=b"\0" * (PACKET_MAX // 2 - 22_000))
    small = Message("t", value=b"x" * 200_000)
    stored = positions.begin(NAME, Position("1"), [small] * 7 + [fits], producer_group="g")
    assert positions.staged(NAME, 0, 10) == [*enumerate([small] * 7, 1), (8, fits)]
    large = Message("t", value=b"x" * (PACKET_MAX // 2))
    with pytest.raises(LogSettingsError, match=r"row 2 of the snapshot.*max_allowed_packet"):
        positions.begin(NAME, Position("2"), [small, large], producer_group="g")
    assert positions.read(NAME) == stored
    set_packet_max(own, 2 * PACKET_MAX)
    positions.begin(NAME, Position("2"), [small, large], producer_group="g")


def test_a_log_without_a_gtid_is_read_from_its_first_byte(own: Orders) -> None:
    """The position of a new server is empty, and stands before all that is ever committed."""
    orders = own
    with orders.database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        admin.execute(text("RESET MASTER"))
        source = orders.source()
        begun = source.begin_now()
        with source.begin_snapshot() as snapshot:
            assert snapshot.position == begun == Position("")
        orders.insert(1)
        for _ in range(2):  # the second time from behind a file that is not the first one
            source.open(begun)
            assert ids(read_until(source, 1)) == [1]
            admin.execute(text("FLUSH BINARY LOGS"))
        last = admin.execute(text("SHOW BINARY LOGS")).all()[-1][0]
        until("the first file is gone", lambda: _purged(admin, last))
        source.open(begun)
        with pytest.raises(PositionLostError):
            read_until(source, 1)


def _purged(admin: Connection, last: str) -> bool:
    """Purge the log before its last file; a reader that has gone holds a file for a moment."""
    admin.execute(text(f"PURGE BINARY LOGS TO '{last}'"))
    return len(admin.execute(text("SHOW BINARY LOGS")).all()) == 1


def test_a_table_is_described_anew_or_the_stream_ends(orders: Orders, source: LogSource) -> None:
    """A server that has closed an idle connection does not leave the form of older rows behind."""
    assert isinstance(source, MariadbLog)
    begun = Position(source.read_to)
    stream = source._stream
    assert stream is not None
    orders.insert(1)
    assert ids(read_until(source, 1)) == [1]
    with orders.database.admin_engine().connect() as admin:
        admin.execute(text(f"KILL {stream._connections[0].thread_id()}"))
    orders.execute(
        "ALTER TABLE orders ADD flag BINARY(4)",
        "INSERT INTO orders (id, flag) VALUES (2, 'a')",
    )
    with pytest.raises(LogUnavailableError):
        read_until(source, 1)
    source.open(begun)
    assert [each.values.get("flag") for each in read_until(source, 2)] == [None, b"a\0\0\0"]


def test_a_reader_that_cannot_be_made_is_told(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its constructor raises comes out of the next look, which would else wait for ever."""

    def refuse(**_settings: object) -> None:
        raise ValueError("no such setting")

    source = orders.source()
    begun = source.begin_now()
    monkeypatch.setattr(mariadb_stream, "BinLogStreamReader", refuse)
    source.open(begun)
    with pytest.raises(UnreadableChangeError, match="no such setting"):
        read_until(source, 1)
