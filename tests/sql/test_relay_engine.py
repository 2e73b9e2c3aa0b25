"""The connections of a relay that runs by itself. No Kafka."""

from contextlib import closing
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge.config import BridgeConfig
from halfbridge.sql import Fence
from halfbridge.sql.bounds import CHECK_BOUNDS, RELAY_BOUNDS, Bounds
from halfbridge.sql.dialects.base import CHECK_WAIT_MS
from halfbridge.sql.engines import engine_of
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.relay import Relay
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.sql.databases import Database, ProxiedDatabase
from tests.sql.refusing_pooler import RefusingPooler

_NUMBERS = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT connection_id()"}
_KILLS = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
_BUSY = {
    "postgresql": "SELECT count(*) FROM generate_series(1, 10000000000)",
    "mariadb": "SELECT BENCHMARK(10000000000, SHA2('busy', 512)) FROM numbers",
}
for _each in (_NUMBERS, _KILLS, _BUSY):
    _each["mysql"] = _each["mariadb"]


def number_of(engine: Engine, name: str) -> int:
    """Return the server's number of the connection that the engine gives."""
    with engine.connect() as connection:
        return int(connection.execute(text(_NUMBERS[name])).scalar_one())


def make_numbers(engine: Engine) -> None:
    """Make a table with one row, by an engine without time-outs."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO numbers VALUES (1)"))


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_command_that_runs_on_keeps_connections_that_live(database: Database) -> None:
    """Each use has the same connection, and a new one, without an error, after that has died."""
    engine = engine_of(database.url, bounds=RELAY_BOUNDS)
    try:
        number = number_of(engine, database.name)
        assert number_of(engine, database.name) == number
        with database.admin_engine().connect() as admin:
            admin.execute(text(_KILLS[database.name].format(number)))
        assert number_of(engine, database.name) != number
    finally:
        engine.dispose()


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_relay_ends_in_order_though_its_connection_died(database: Database) -> None:
    """`close` raises nothing, whichever layer fails; the leases expire."""
    engine = database.engine(pool_size=1, max_overflow=0)
    messages = LocalMessages(engine)
    messages.create()
    fence = Fence(engine, producer_group="relay")
    no_producer = cast("Any", None)  # none is needed without rows
    with closing(Relay(messages, fence, no_producer, RelayConfig())) as relay:
        number = number_of(relay.engine, database.name)
        with database.admin_engine().connect() as admin:
            admin.execute(text(_KILLS[database.name].format(number)))


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_statement_that_takes_too_long_ends_as_an_error(database: Database) -> None:
    """The server ends a statement that waits for a lock, and the connection stays usable."""
    make_numbers(database.engine())
    engine = engine_of(database.url, bounds=Bounds(statement_s=2))
    try:
        change = text("UPDATE numbers SET number = number + 1")
        with engine.begin() as first, engine.connect() as second:
            first.execute(change)
            with pytest.raises(DBAPIError) as caught:
                second.execute(change)
            assert not caught.value.connection_invalidated
            second.rollback()
            assert second.execute(text("SELECT 1")).scalar_one() == 1
    finally:
        engine.dispose()


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_query_that_computes_for_long_ends_as_an_error(database: Database) -> None:
    """The server ends the query, and the connection stays usable."""
    make_numbers(database.engine())
    engine = engine_of(database.url, bounds=Bounds(statement_s=1))
    try:
        with engine.connect() as connection:
            with pytest.raises(DBAPIError) as caught:
                connection.execute(text(_BUSY[database.name]))
            assert not caught.value.connection_invalidated
            connection.rollback()
            assert connection.execute(text("SELECT 1")).scalar_one() == 1
    finally:
        engine.dispose()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_time_outs_are_not_left_to_whoever_has_the_connection_next(database: Database) -> None:
    """They are startup options: a transaction pooler would pass values of SET to other clients."""
    bounds = Bounds(statement_s=17, idle_transaction_s=71)
    url = database.url + "?options=-c%20work_mem%3D1234kB"
    engine = engine_of(url, bounds=bounds)
    try:
        with engine.connect() as connection:
            assert settings_of(connection) == {
                "statement_timeout": ("17000", "client"),
                "idle_in_transaction_session_timeout": ("71000", "client"),
                "work_mem": ("1234", "client"),
            }
    finally:
        engine.dispose()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_pooler_that_refuses_time_outs_is_used_without_them(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning is logged; the server's own time-outs are in force."""
    port = make_url(database.url).port
    assert port is not None
    with closing(RefusingPooler(port)) as pooler:
        url = make_url(database.url).set(port=pooler.port).render_as_string()
        engine = engine_of(url, bounds=Bounds(statement_s=17))
        try:
            with engine.connect() as one, engine.connect() as other:
                for connection in (one, other):
                    _, source = settings_of(connection)["statement_timeout"]
                    assert source not in {"client", "session"}
        finally:
            engine.dispose()
    assert pooler.refused == 2
    assert caplog.text.count("a pooler refuses ") == 1


def settings_of(connection: Connection) -> dict[str, tuple[str, str]]:
    """Return value and source of each setting."""
    names = "('statement_timeout', 'idle_in_transaction_session_timeout', 'work_mem')"
    query = text(f"SELECT name, setting, source FROM pg_settings WHERE name IN {names}")
    return {name: (value, source) for name, value, source in connection.execute(query)}


def test_an_answer_that_does_not_come_ends_the_connection(
    proxied_database: ProxiedDatabase,
) -> None:
    """It ends after answer_s without a network error; the ROLLBACK after it does not wait again."""
    engine = engine_of(proxied_database.url, bounds=Bounds(connect_s=4, answer_s=4))
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            proxied_database.proxy.blackhole()
            with pytest.raises(DBAPIError) as caught:
                connection.execute(text("SELECT 1"))
            assert caught.value.connection_invalidated
        with pytest.raises(DBAPIError):
            engine.connect()
        proxied_database.proxy.heal()
        with engine.connect() as connection:
            assert connection.execute(text("SELECT 1")).scalar_one() == 1
    finally:
        engine.dispose()


def test_a_check_of_a_relay_ends_before_it_counts_as_hung() -> None:
    """Its answer and connect bounds sum to less than check_timeout_ms; lock waits end first."""
    ends_s = CHECK_BOUNDS.answer_s + CHECK_BOUNDS.connect_s
    config = BridgeConfig(bootstrap_servers="127.0.0.1:1", producer_group="relay")
    assert ends_s * 1_000 < config.check_timeout_ms
    assert CHECK_WAIT_MS < CHECK_BOUNDS.statement_s * 1_000 < CHECK_BOUNDS.answer_s * 1_000


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_server_lets_go_of_what_a_lost_relay_has_locked(database: Database) -> None:
    """The transaction of a client that sends nothing more is rolled back."""
    make_numbers(database.engine())
    engine = engine_of(database.url, bounds=Bounds(idle_transaction_s=2))
    try:
        change = text("UPDATE numbers SET number = number + 1")
        with engine.connect() as lost:
            lost.execute(change)
            with database.engine().begin() as other:
                other.execute(change)
            with pytest.raises(DBAPIError):
                lost.execute(change)
    finally:
        engine.dispose()


@pytest.mark.parametrize("bounds", [None, RELAY_BOUNDS], ids=["command", "relay"])
def test_a_database_without_an_encoding(database: Database, bounds: Bounds | None) -> None:
    """SQL_ASCII: text is read as UTF-8, unless the URL names another encoding."""
    if database.name != "postgresql":
        pytest.skip("SQL_ASCII is PostgreSQL's")
    with database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        made = f"{make_url(database.url).database}_ascii"
        admin.execute(
            text(
                f"CREATE DATABASE {made} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
                f" OWNER {make_url(database.url).username}"
            )
        )
        try:
            url = make_url(database.url).set(database=made)
            for each, encoding in (
                (url, "UTF8"),
                (url.update_query_dict({"client_encoding": "latin1"}), "LATIN1"),
            ):
                engine = engine_of(each.render_as_string(hide_password=False), bounds=bounds)
                with engine.connect() as connection:
                    assert connection.execute(text("SHOW client_encoding")).scalar_one() == encoding
                    assert connection.execute(text("SELECT 'grün'")).scalar_one() == "grün"
                engine.dispose()
        finally:
            admin.execute(text(f"DROP DATABASE {made}"))
