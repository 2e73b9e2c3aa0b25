"""`halfbridge doctor` on a real PostgreSQL's slots and a real Kafka Connect."""

import json
import secrets
import shlex
import urllib.request

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.pool import NullPool

from halfbridge.checker.admin.doctor.facts import Finding
from halfbridge.checker.admin.doctor.gather import Questions
from halfbridge.checker.admin.doctor.judge import judge_changes
from halfbridge.cli import cli
from halfbridge.cli.doctor import ask_changes, changes_of
from halfbridge.kafka.adapter import system_ports
from halfbridge.testkit.connect import ConnectWorker
from tests.changes.streams import Stream, connector, execute
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.servers import PostgresServer, Template

NOWHERE = ("--bootstrap-servers", "127.0.0.1:1")  # slots are asked even so
SEEN_S_MAX = 120.0
MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
SEGMENT = 16 << 20  # bytes of log, unless initdb is given another size
NEXT_SEGMENT = (
    "SELECT pg_logical_emit_message(false, 'test', 'x')",  # a switch of an empty one does nothing
    "SELECT pg_switch_wal()",
)


def found(*, connect_url: str = "", changes_url: str = "", about: str) -> dict[str, Finding]:
    """Return findings about one name, by code; brokers are not asked."""
    questions = Questions(system_ports(), SEEN_S_MAX)
    database = ask_changes(questions, connect_url, changes_url, timeout_s=SEEN_S_MAX)
    questions.wait()
    every = judge_changes(changes_of(questions, connect_url, database))
    assert questions.silent == {}
    return {each.code: each for each in every if about in each.what}


def statement(fix: str) -> str:
    """Return the statement of a psql command."""
    psql, _, _, sql = shlex.split(fix)
    assert psql == "psql"
    return sql


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_slot_that_nobody_reads_is_found(database: Database) -> None:
    """With the log that it keeps, by an ordinary user; its command runs; a dropped slot is gone."""
    name = f"s{secrets.token_hex(4)}"
    engine = database.admin_engine(poolclass=NullPool).execution_options(
        isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(text(MAKE_SLOT.format(name=name)))
        for each in NEXT_SEGMENT * 2:
            connection.execute(text(each))
        one = found(changes_url=database.url, about=name)
        assert set(one) == {"slot-inactive"}
        kept = int(one["slot-inactive"].what.partition("keeps ")[2].split()[0])
        assert kept >= SEGMENT >> 20
        fix = one["slot-inactive"].fix
        assert f"dbname={connection.engine.url.database} user=service" in fix
        (row,) = connection.execute(text(statement(fix))).all()
        assert (row.slot_name, row.active) == (name, False)
        command = ["doctor", "--json", *NOWHERE, "--changes-url", database.url]
        reported = json.loads(CliRunner().invoke(cli, command).stdout)["findings"]
        assert fix in [each["fix"] for each in reported]
        connection.execute(text(f"SELECT pg_drop_replication_slot('{name}')"))
        assert found(changes_url=database.url, about=name) == {}


def test_a_lost_slot_is_found(postgresql_template: Template) -> None:
    """The server removed log that the slot needs; the command drops the slot."""
    with PostgresServer(postgresql_template, durable=False) as server:
        database = server.create_database()
        url = server.url(database)
        with server.administrator(database) as connection:
            connection.execute(text("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'"))
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text(MAKE_SLOT.format(name="shop")))
            for each in NEXT_SEGMENT * 4:
                connection.execute(text(each))
            connection.execute(text("CHECKPOINT"))
            one = until(
                "lost slot",
                lambda: found(changes_url=url, about="shop").get("slot-lost"),
                within_s=SEEN_S_MAX,
                every_s=0.2,
            )
            connection.execute(text(statement(one.fix)))
            assert found(changes_url=url, about="shop") == {}


@pytest.mark.broker
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_stopped_connector_and_its_slot_are_found(
    database: Database, worker: ConnectWorker, kafka_bootstrap_servers: str
) -> None:
    """A running one is sound; the call that a finding shows makes it sound again."""
    name = f"c{secrets.token_hex(4)}"
    with database.engine(poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY)"))

    def seen() -> dict[str, Finding]:
        return found(connect_url=worker.url, changes_url=database.url, about=name)

    made = CliRunner().invoke(
        cli,
        [
            *("relay", "connector", "--name", name, "--table", "orders", "--apply", worker.url),
            *("--database-url", database.url, "--bootstrap-servers", kafka_bootstrap_servers),
        ],
    )
    assert made.exit_code == 0, made.output
    try:
        until("nothing found", lambda: not seen(), within_s=SEEN_S_MAX, every_s=0.3)
        put(f"{worker.url}/connectors/{name}/stop")
        until(
            "connector and slot found",
            lambda: set(seen()) == {"connector-stopped", "slot-inactive"},
            within_s=SEEN_S_MAX,
            every_s=0.3,
        )
        fix = seen()["connector-stopped"].fix
        assert fix.startswith("curl -fsS -X PUT http")
        put(fix.split()[-1])
        until("nothing found again", lambda: not seen(), within_s=SEEN_S_MAX, every_s=0.3)
    finally:
        worker.rest.delete(name)


CHANGED = {
    "postgresql": (
        "CREATE TABLE refunds (PRIMARY KEY (id)) INHERITS (orders)",
        "table-unread",
        "table.include.list lacks public.refunds, which inherits from public.orders",
    ),
    "mariadb": (
        "ALTER TABLE orders ADD SYSTEM VERSIONING",
        "table-versioned",
        ".orders is system-versioned now",
    ),
}


@pytest.mark.broker
@pytest.mark.parametrize("database", CHANGED, indirect=True)
def test_a_table_that_changed_under_its_connector_is_found(
    database: Database, stream: Stream, worker: ConnectWorker
) -> None:
    """A child table made later, and a table that is versioned now; before, nothing is found."""
    statement, code, says = CHANGED[database.name]
    execute(database, "CREATE TABLE orders (id int PRIMARY KEY)")
    stream.apply("orders")

    def seen() -> dict[str, Finding]:
        return found(connect_url=worker.url, changes_url=database.url, about=stream.name)

    assert seen().keys() <= {"slot-inactive"}  # until its task has connected
    execute(database, statement)
    one = seen()[code]
    assert says in one.what
    if database.name == "mariadb":
        execute(database, shlex.split(one.fix)[-1])
        assert code not in seen()
        return
    *_, name, _, table, _, connect_url = shlex.split(one.fix)
    made = connector(database, "--name", name, "--table", table, "--apply", connect_url)
    try:
        assert made.exit_code == 0, made.output
        assert code not in seen()
    finally:
        worker.rest.delete(name)


def put(url: str) -> None:
    """Call Kafka Connect as curl would."""
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT")):
        pass
