"""The tests' database servers: real processes, which are killed and restarted."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tests.kit.waiting import until
from tests.sql.databases import Database, OwnDatabase
from tests.sql.processes import working_in
from tests.sql.servers import MariaDbServer, MySqlServer, PostgresServer, Server

ROOT = Path(__file__).parents[2]
ROWS = 100
GONE_S_MAX = 30.0
# Statements that take minutes, and never wait for anything meanwhile.
BUSY = {
    "postgresql": "SELECT count(*) FROM generate_series(1, 10000000000) busy",
    "mariadb": "SELECT BENCHMARK(10000000000, SHA2('busy', 512))",
}
BUSY["mysql"] = BUSY["mariadb"]
RUNNING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity "
    "WHERE state = 'active' AND query LIKE '%busy' AND pid <> pg_backend_pid()",
    "mariadb": "SELECT count(*) FROM information_schema.processlist "
    "WHERE info LIKE 'SELECT BENCHMARK%'",
}
RUNNING["mysql"] = RUNNING["mariadb"]
# A process that starts a server, prints the data directory, and waits to be killed.
OWNER = """
import sys
from tests.sql.servers import {kind}, Template
server = {kind}(Template({kind}), durable=False).start()
print(server.data, flush=True)
sys.stdin.read()
"""


def make_table(database: Database) -> None:
    """Make a table with a key."""
    with database.engine().begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER PRIMARY KEY)"))


def insert(connection: Connection, number: int) -> None:
    """Insert one row."""
    connection.execute(text("INSERT INTO numbers VALUES (:number)"), {"number": number})


def numbers(database: Database) -> list[int]:
    """Return all rows."""
    with database.engine().connect() as connection:
        return list(connection.scalars(text("SELECT number FROM numbers ORDER BY number")))


def scalar(database: Database, query: str) -> object:
    """Return the value of a query."""
    with database.engine().connect() as connection:
        return connection.scalar(text(query))


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_server_keeps_its_temporary_tables_apart(database: Database) -> None:
    """They are beside its data. A server that starts removes the temporary tables it finds."""
    data = Path(str(scalar(database, "SELECT @@datadir")))
    assert Path(str(scalar(database, "SELECT @@tmpdir"))) == data.parent


def test_each_database_is_empty_and_takes_rows(database: Database) -> None:
    """The name is that of SQLAlchemy's dialect; a table of a former test is not there."""
    engine = database.engine()
    assert engine.dialect.name in (database.name, "mysql")
    assert engine.dialect.is_mariadb if database.name == "mariadb" else True
    make_table(database)
    with engine.begin() as connection:
        insert(connection, 1)
    assert numbers(database) == [1]


def test_each_test_has_a_database_of_its_own(database: Database) -> None:
    """A table can be made that the previous test made too."""
    make_table(database)
    assert numbers(database) == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_postgresql_can_be_subscribed_to(database: Database) -> None:
    """The ordinary user can make a slot; a slot that a test leaves is dropped."""
    assert scalar(database, "SHOW wal_level") == "logical"
    assert scalar(database, "SHOW is_superuser") == "off"
    with database.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        make = text("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        connection.execute(make)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_mariadb_can_be_subscribed_to(database: Database) -> None:
    """The binlog is row-based with names of columns, and the ordinary user may read it."""
    assert scalar(database, "SELECT @@binlog_format") == "ROW"
    assert scalar(database, "SELECT @@binlog_row_metadata") == "FULL"
    assert scalar(database, "SELECT @@default_storage_engine") == "InnoDB"
    with database.engine().connect() as connection:
        assert connection.execute(text("SHOW MASTER STATUS")).one()
        with pytest.raises(DBAPIError, match="denied"):
            connection.execute(text("CREATE DATABASE not_mine"))


def test_what_was_committed_survives_a_kill(own_database: OwnDatabase) -> None:
    """Each committed row is there after the restart, the open transaction's is not."""
    make_table(own_database)
    with own_database.engine().connect() as connection:
        for number in range(ROWS):
            insert(connection, number)
            connection.commit()
        insert(connection, ROWS)
        own_database.kill()
        with pytest.raises(DBAPIError):
            connection.commit()
        connection.invalidate()
    own_database.restart()
    assert numbers(own_database) == list(range(ROWS))


def test_a_killed_server_is_gone_at_once(own_database: OwnDatabase) -> None:
    """No process is left, not even of a busy connection; connections fail until the restart."""
    busy = own_database.engine(isolation_level="AUTOCOMMIT").connect()
    with closing(busy), ThreadPoolExecutor(1) as threads:
        running = threads.submit(busy.execute, text(BUSY[own_database.name]))
        while not scalar(own_database, RUNNING[own_database.name]):
            assert not running.done()
        own_database.kill()
        assert working_in(own_database.server.data) == []
        with pytest.raises(DBAPIError):
            running.result()
    with pytest.raises(DBAPIError), own_database.engine().connect():
        pass
    own_database.kill()
    own_database.restart()
    assert scalar(own_database, "SELECT 1") == 1


def test_a_restart_ends_a_running_server_in_order(own_database: OwnDatabase) -> None:
    """Open connections do not block it; the port stays."""
    make_table(own_database)
    with own_database.engine().connect() as connection:
        insert(connection, 1)
        connection.commit()
        port = own_database.port
        own_database.restart()
        assert own_database.port == port
        connection.invalidate()
    assert numbers(own_database) == [1]


@pytest.mark.parametrize(
    "kind", [PostgresServer, MariaDbServer, pytest.param(MySqlServer, marks=pytest.mark.long)]
)
def test_a_server_ends_with_the_process_that_started_it(kind: type[Server]) -> None:
    """After a kill of its owner, no process and no data is left."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(kind=kind.__name__)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        data = Path(owner.stdout.readline().strip())
        assert working_in(data) != []
        owner.kill()
    until(
        f"{data} is gone",
        lambda: not working_in(data) and not data.parent.exists(),
        within_s=GONE_S_MAX,
        explain=lambda: working_in(data),
    )
