"""What only MariaDB's log has: statements among the rows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import PositionLostError, UnreadableChangeError
from tests.integration.waiting import until
from tests.sql.databases import OwnDatabase
from tests.sql.log_scene import Orders, ids, read_until
from tests.sql.servers import MariaDbServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from halfbridge.sql.log_subscription.changes import Insert, LogSource
    from tests.sql.databases import Database
    from tests.sql.servers import Template

pytestmark = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
INSERT = "INSERT INTO orders (id) VALUES (%d)"


@pytest.fixture
def orders(database: Database) -> Iterator[Orders]:
    """A user's table, and one whose engine has no transactions."""
    with closing(Orders(database)) as made:
        made.execute("CREATE TABLE plain (id int) ENGINE = MyISAM")
        yield made


@pytest.fixture
def source(orders: Orders) -> LogSource:
    """A source of its log, open at the present end."""
    made = orders.source()
    made.open(made.begin_now())
    return made


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


def test_a_log_without_a_gtid_is_read_from_its_first_byte(
    mariadb_template: Template, database: Database
) -> None:
    """The position of a new server is empty, and stands before all that is ever committed."""
    del database  # another server's
    with (
        MariaDbServer(mariadb_template, durable=True) as server,
        closing(OwnDatabase(server)) as own,
        closing(Orders(own)) as orders,
    ):
        with server.administrator() as admin:
            admin.execute(text("RESET MASTER"))
        source = orders.source()
        begun = source.begin_now()
        with source.begin_snapshot() as snapshot:
            assert snapshot.position == begun == Position("")
        orders.insert(1)
        for _ in range(2):  # the second time from behind a file that is not the first one
            source.open(begun)
            assert ids(read_until(source, 1)) == [1]
            with server.administrator() as admin:
                admin.execute(text("FLUSH BINARY LOGS"))
        with server.administrator() as admin:
            last = admin.execute(text("SHOW BINARY LOGS")).all()[-1][0]
            until("the first file is gone", lambda: _purged(admin, last))
        source.open(begun)
        with pytest.raises(PositionLostError):
            read_until(source, 1)


def _purged(admin: Connection, last: str) -> bool:
    """Purge the log before its last file; a reader that has gone holds a file for a moment."""
    admin.execute(text(f"PURGE BINARY LOGS TO '{last}'"))
    return len(admin.execute(text("SHOW BINARY LOGS")).all()) == 1
