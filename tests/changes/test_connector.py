"""`halfbridge relay connector`: what a real Debezium tells of rows, and what is refused before."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from halfbridge.bridge.failure import KafkaFailure
from halfbridge.cli import cli
from halfbridge.connect.rest import ConnectError, ConnectRest
from halfbridge.testkit.connect import ConnectWorker
from halfbridge.testkit.ports import free_ports
from halfbridge.testkit.reader import read_all
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

    from tests.sql.databases import Database

pytestmark = pytest.mark.broker
POSTGRESQL = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
MARIADB = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
PARTITION = """
CREATE TABLE o (id int) PARTITION BY LIST (id);
CREATE TABLE orders PARTITION OF o FOR VALUES IN (1)
"""
KILLS, ROWS_BEFORE_KILL = 3, 300
SEEN_S_MAX = 120.0

# Each column: its type, a value as SQL writes it, what the change has.
COLUMNS: dict[str, list[tuple[str, str, Any]]] = {
    "postgresql": [
        ("numeric(18,8)", "0", "0.00000000"),
        ("numeric", "12345678901234567890.1234567890", "12345678901234567890.1234567890"),
        ("money", "'1.50'", "1.50"),
        ("bigint", "9223372036854775807", 9223372036854775807),
        ("boolean", "true", True),
        ("text", "'ä€😀'", "ä€😀"),
        ("bytea", "'\\x00ff'", "AP8="),
        ("date", "'2026-02-03'", "2026-02-03Z"),
        ("timestamptz", "'2026-01-02 03:04:05.678901+02'", "2026-01-02T01:04:05.678901Z"),
        ("timestamp", "'2026-01-02 03:04:05.678901'", "2026-01-02T03:04:05.678901Z"),
        ("time", "'23:59:59.999999'", "23:59:59.999999Z"),
        ("interval", "'1 day 02:00'", "P0Y0M1DT2H0M0S"),
        ("jsonb", "'{\"a\": [1]}'", '{"a": [1]}'),
        ("uuid", "'019373e0-0000-7000-8000-000000000001'", "019373e0-0000-7000-8000-000000000001"),
        ("int[]", "'{1,2}'", [1, 2]),
        ("inet", "'10.0.0.1'", "10.0.0.1"),
        ("int4range", "'[1,5)'", "[1,5)"),
        ("bit(3)", "B'101'", "BQ=="),
        ("double precision", "1.1", 1.1),
    ],
}


def connector(database: Database, *words: str) -> Result:
    """Return what the command says of the database."""
    return CliRunner().invoke(
        cli, ["relay", "connector", "--database-url", database.url, *words], env={}
    )


def execute(database: Database, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    engine = database.engine(poolclass=NullPool)  # it would keep a connection for each call
    for each in statements:
        with engine.begin() as connection:
            connection.execute(text(each.replace(":", "\\:")))


def schema_of(database: Database) -> str:
    """Return what the table's name begins with in a topic."""
    return "public" if database.name == "postgresql" else database.url.rpartition("/")[2]


class Stream:
    """A connector of a test's own for tables of its database."""

    def __init__(self, database: Database, worker: ConnectWorker, bootstrap_servers: str) -> None:
        self.name = f"c{secrets.token_hex(4)}"
        self._database = database
        self._worker = worker
        self._bootstrap_servers = bootstrap_servers

    def apply(self, *tables: str) -> None:
        """Have the command make the connector."""
        words = [word for table in tables for word in ("--table", table)]
        done = connector(
            *(self._database, "--name", self.name, "--apply", self._worker.url, *words),
            *("--bootstrap-servers", self._bootstrap_servers),
        )
        assert done.exit_code == 0, done.output

    def changes(self, table: str, count: int) -> list[dict[str, Any]]:
        """Return at least `count` changes of a table, as the topic has them."""
        topic = f"{self.name}.{schema_of(self._database)}.{table}"

        def look() -> list[dict[str, Any]]:
            try:
                records = read_all(self._bootstrap_servers, [topic])
            except KafkaFailure:
                return []  # Kafka Connect makes the topic with the first change
            found = [json.loads(each.value) for each in records if each.value is not None]
            return found if len(found) >= count else []

        found: list[dict[str, Any]] = until(
            f"{count} changes in {topic}", look, within_s=SEEN_S_MAX, every_s=0.3
        )
        return found


@pytest.fixture
def stream(
    database: Database, worker: ConnectWorker, kafka_bootstrap_servers: str
) -> Iterator[Stream]:
    """A connector that ends with the test."""
    made = Stream(database, worker, kafka_bootstrap_servers)
    yield made
    worker.rest.delete(made.name)


@POSTGRESQL
def test_values_are_told_whole_by_snapshot_and_log(database: Database, stream: Stream) -> None:
    """A row of each type is one change with the value of SQL, whichever way it comes."""
    columns = COLUMNS[database.name]
    types = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(columns))
    values = ", ".join(value for _, value, _ in columns)
    table = "orders" if database.name == "postgresql" else "Orders"
    execute(database, f"CREATE TABLE {table} (id int PRIMARY KEY, {types})")
    execute(database, f"INSERT INTO {table} VALUES (1, {values})")
    stream.apply("Orders")
    stream.changes(table, 1)
    execute(database, f"INSERT INTO {table} VALUES (2, {values})")
    snapshot, logged = stream.changes(table, 2)
    assert (snapshot["op"], logged["op"]) == ("r", "c")
    told = [{**each["after"], "id": 0} for each in (snapshot, logged)]
    expected = {f"c{n}": value for n, (_, _, value) in enumerate(columns)}
    assert told == [{"id": 0, **expected}] * 2


@POSTGRESQL
def test_partitions_made_later_are_told_by_the_table(database: Database, stream: Stream) -> None:
    """Rows of all partitions come under the partitioned table's name, each once."""
    execute(
        database,
        "CREATE TABLE orders (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES IN (1)",
        "INSERT INTO orders VALUES (1, 1)",
    )
    stream.apply("orders")
    stream.changes("orders", 1)
    execute(
        database,
        "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES IN (2)",
        "INSERT INTO orders VALUES (2, 2), (3, 1)",
    )
    changes = stream.changes("orders", 3)
    assert [each["after"]["id"] for each in changes] == [1, 2, 3]


@POSTGRESQL
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT 1", "there is no table orders"),
        ("CREATE VIEW orders AS SELECT 1 AS id", "is a view"),
        ("CREATE UNLOGGED TABLE orders (id int)", "SET LOGGED"),
        ("CREATE TABLE orders (id int); CREATE TABLE more () INHERITS (orders)", "(more)"),
        (PARTITION, "give --table o"),
        ('CREATE TABLE "Orders" (id int); CREATE TABLE "ORDERS" (id int)', "means several tables"),
    ],
)
def test_a_table_that_would_lose_rows_is_refused(
    database: Database, statement: str, says: str
) -> None:
    """One line says what is wrong with the table, and what to do."""
    execute(database, *statement.split(";"))
    done = connector(database, "--table", "orders")
    assert done.exit_code == 1
    assert says in done.output
    assert len(done.output.splitlines()) == 1


@MARIADB
def test_a_system_versioned_table_is_refused(database: Database) -> None:
    """Its log has an insert for each update, so rows would come twice."""
    execute(database, "CREATE TABLE orders (id int) WITH SYSTEM VERSIONING")
    done = connector(database, "--table", "orders", "--bootstrap-servers", "k")
    assert done.exit_code == 1
    assert "system-versioned" in done.output


@POSTGRESQL
def test_the_password_is_not_shown_unless_asked(database: Database) -> None:
    """The configuration refers to the worker's environment, or has the password on demand."""
    execute(database, "CREATE TABLE orders (id int)")
    url = database.url.replace("service@", "service:secret@")
    words = ["relay", "connector", "--table", "ORDERS", "--database-url", url]
    hidden, shown = (
        json.loads(CliRunner().invoke(cli, [*words, *more]).output)
        for more in ((), ("--show-secrets",))
    )
    assert hidden["database.password"] == "${env:HALFBRIDGE_DATABASE_PASSWORD}"
    assert shown["database.password"] == "secret"
    assert hidden["table.include.list"] == "public\\.orders"


def test_a_refused_configuration_says_why(worker: ConnectWorker) -> None:
    """The worker's reason is in the error; an address where nothing listens is named."""
    with pytest.raises(ConnectError, match="NoSuchConnector"):
        worker.rest.apply("wrong", {"name": "wrong", "connector.class": "NoSuchConnector"})
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(ConnectError, match=nowhere):
        ConnectRest(nowhere).names()


@POSTGRESQL
@pytest.mark.long
def test_a_killed_worker_tells_each_row_once(
    database: Database, kafka_bootstrap_servers: str
) -> None:
    """SIGKILL under load: the worker that follows neither leaves a row out nor repeats one."""
    name = secrets.token_hex(4)
    execute(database, "CREATE TABLE orders (id int PRIMARY KEY)")
    with ConnectWorker(kafka_bootstrap_servers, group_id=f"connect-{name}") as worker:
        stream = Stream(database, worker, kafka_bootstrap_servers)
        stream.apply("orders")
        rows = 0
        for _ in range(KILLS):
            for _ in range(ROWS_BEFORE_KILL):
                rows += 1
                execute(database, f"INSERT INTO orders VALUES ({rows})")
            worker.kill()
            worker.restart()
        changes = stream.changes("orders", rows)
        last = rows + 1  # comes after all that is repeated
        execute(database, f"INSERT INTO orders VALUES ({last})")
        changes = stream.changes("orders", len(changes) + 1)
        assert [each["after"]["id"] for each in changes] == list(range(1, last + 1))
        worker.rest.delete(stream.name)
