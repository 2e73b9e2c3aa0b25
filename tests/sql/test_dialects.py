"""Differences between databases that the fence's tests do not cover."""

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest
from sqlalchemy import URL, create_engine, insert, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from halfbridge.bridge import NoAnswerError, Resolution
from halfbridge.sql import Fence, Inbox, InboxUsageError, Outcome, TransactionEndedError
from halfbridge.sql.dialects.base import connected
from halfbridge.sql.fence_table import FenceTable, write_committed
from tests.integration.producing import GROUP, Cluster
from tests.kit.waiting import until
from tests.sql.databases import KINDS, Database, killed_at_return, shared_database
from tests.sql.fence_scene import Scene, new_id, on, work

# On MySQL too, and not `long` (conftest.py).
pytestmark = pytest.mark.more

JOIN_S_MAX = 30.0
PASSWORD = "secret"
SHORT_WAIT = text("SET SESSION innodb_lock_wait_timeout = 1")  # seconds; the least on MySQL


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_connection_lost_in_the_pool_is_reported_as_any_other(database: Database) -> None:
    """Setting the level of a dead connection raises SQLAlchemy's error; the next one is fresh."""
    engine = database.engine(pool_size=1)
    with engine.connect() as connection:
        number = connection.scalar(text("SELECT connection_id()"))
    with database.admin_engine().connect() as admin:
        admin.execute(text(f"KILL {number}"))
    with pytest.raises(DBAPIError) as raised, connected(engine, "READ COMMITTED"):
        pytest.fail("the level was set on a dead connection")
    assert raised.value.connection_invalidated
    with connected(engine, "READ COMMITTED") as connection:
        assert connection.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_connection_lost_at_its_return_costs_nothing(database: Database) -> None:
    """The result is valid, the pool keeps its only slot, and the next connection is fresh."""
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    fences = FenceTable(engine)
    fences.create()
    expected = fences.report()
    with killed_at_return(engine, database) as killed:
        assert fences.report() == expected
    assert killed.is_set()
    assert fences.report() == expected


# --- innodb_rollback_on_timeout ------------------------------------------------------------


def swallow_a_time_out(scene: Scene, connection: Any) -> None:
    """Work, let the next statement time out at a lock, and work on."""
    connection.execute(SHORT_WAIT)
    work(connection, 1)
    with scene.truth.connect() as rival:
        work(rival, 2)
        with pytest.raises(DBAPIError, match="1205"):
            work(connection, 2)
        rival.rollback()
    work(connection, 3)


@pytest.fixture(params=["mariadb", "mysql"])
def rolling_back(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of a server whose lock time-outs roll back whole transactions."""
    template = request.getfixturevalue(f"{request.param}_template")
    options = ("--innodb-rollback-on-timeout=ON",)
    with (
        KINDS[request.param](template, durable=False, options=options) as server,
        closing(shared_database(server)) as made,
    ):
        yield made


@pytest.mark.broker
@on("mariadb", "mysql")
def test_a_lock_time_out_that_is_swallowed(scene: Scene) -> None:
    """It rolls back its statement only: the rest is committed, with the row and the message."""
    with scene.block() as (tx, connection):
        swallow_a_time_out(scene, connection)
    scene.check_committed(tx, 1, 3)


@pytest.mark.broker
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_lock_time_out_that_rolls_back_all(
    rolling_back: Database, cluster: Cluster, producer: Any, when: str
) -> None:
    """innodb_rollback_on_timeout=ON: the fence row is gone, so later work is rolled back too."""
    scene = Scene(rolling_back, cluster=cluster, producer=producer)
    with (
        pytest.raises(TransactionEndedError) as caught,
        scene.fence.transaction(producer) as (tx, connection),
    ):
        if when == "before":
            tx.send(scene.message())
        swallow_a_time_out(scene, connection)
        if when == "behind":
            tx.send(scene.message())
    assert caught.value.outcome is Outcome.ROLLED_BACK
    scene.check_rolled_back(tx)


@pytest.mark.broker
@on("mariadb", "mysql")
def test_a_lock_time_out_that_ends_the_block(scene: Scene) -> None:
    """The error reaches the caller; neither the work nor the message is committed."""
    with scene.truth.connect() as rival:
        work(rival, 2)
        with pytest.raises(DBAPIError, match="1205"), scene.block() as (tx, connection):
            work(connection, 1)
            connection.execute(SHORT_WAIT)
            work(connection, 2)
    scene.check_rolled_back(tx)


@pytest.mark.broker
@on("mariadb", "mysql")
def test_a_lock_time_out_of_the_fence_row(
    database: Database, cluster: Cluster, producer: Any
) -> None:
    """A block that could not write its row commits nothing, though its code continues."""
    scene = Scene(
        database,
        cluster=cluster,
        producer=producer,
        connect_args={"init_command": SHORT_WAIT.text},
    )
    with pytest.raises(DBAPIError, match="1205"), scene.block() as (tx, connection):
        with scene.truth.connect() as rival:
            row = {"producer_group": GROUP, "transaction_id": tx.id, "outcome": "committed"}
            rest = {"message_count": 1, "created_at_ms": 0}
            rival.execute(insert(scene.fence.tables[0]).values(**row, **rest))
            with pytest.raises(DBAPIError, match="1205"):
                work(connection, 1)
            rival.rollback()
        with pytest.raises(DBAPIError, match="1205"):
            work(connection, 2)
    scene.check_rolled_back(tx)


def test_a_lock_time_out_that_rolls_back_marks(rolling_back: Database) -> None:
    """innodb_rollback_on_timeout=ON: COMMIT is refused where a mark of the inbox is gone."""
    scene = Scene(rolling_back)
    inbox = Inbox(scene.engine, group_id="billing")
    inbox.create()
    with (
        pytest.raises(InboxUsageError, match="rolled back 1 of 1 marks"),
        scene.engine.begin() as connection,
    ):
        assert inbox.once(connection, None, key="order-1")
        swallow_a_time_out(scene, connection)
    assert scene.worked() == []


# --- gap locks, user locks, XA -------------------------------------------------------------


@on("mariadb", "mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_check_that_has_its_answer_holds_up_no_neighbour(database: Database, level: str) -> None:
    """It holds a gap lock at the duplicate only while it runs, at each isolation level."""
    scene = Scene(database, isolation_level=level)
    ids = [new_id() for _ in range(9)]
    scene.commit(ids[4])
    assert scene.fence.check(scene.view(ids[4])).resolution is Resolution.COMMIT
    for each in (*ids[:4], *ids[5:]):
        with scene.in_flight(each) as connection:
            connection.execute(SHORT_WAIT)
            assert scene.fence.check(scene.view(ids[4])).resolution is Resolution.COMMIT
            connection.commit()
    assert scene.rows() == len(ids)


@on("mariadb", "mysql")
def test_a_user_lock_is_no_part_of_a_transaction(scene: Scene) -> None:
    """GET_LOCK: neither a lock that is held nor one that times out affects a check."""
    mine = new_id()
    with scene.truth.connect() as holder, scene.in_flight(mine) as connection:
        assert holder.scalar(text("SELECT GET_LOCK('halfbridge', 0)")) == 1
        assert connection.scalar(text("SELECT GET_LOCK('halfbridge', 1)")) == 0
        assert connection.scalar(text("SELECT GET_LOCK('mine', 0)")) == 1
        connection.commit()
        assert scene.fence.check(scene.view(mine)).resolution is Resolution.COMMIT
        assert connection.scalar(text("SELECT RELEASE_LOCK('mine')")) == 1  # COMMIT keeps it


def user_lock_waits(scene: Scene) -> int:
    """Return how many connections wait for a user lock in the scene's database."""
    query = "SELECT count(*) FROM information_schema.processlist WHERE state = 'User lock'"
    with scene.truth.connect() as connection:
        return int(connection.scalar(text(f"{query} AND db = DATABASE()")))


@pytest.mark.broker
@on("mysql")
def test_a_deadlock_of_user_locks_that_is_swallowed(scene: Scene) -> None:
    """MySQL refuses one of the two, and rolls nothing back: the block commits."""
    with (
        ThreadPoolExecutor(1) as pool,
        scene.truth.connect() as rival,
        scene.block() as (tx, connection),
    ):
        work(connection, 1)
        ask = text("SELECT GET_LOCK(:name, 30)")
        assert connection.scalar(ask, {"name": "first"}) == 1
        assert rival.scalar(ask, {"name": "second"}) == 1
        waiting = pool.submit(rival.scalar, ask, {"name": "first"})
        until("the rival waits", lambda: user_lock_waits(scene))
        with pytest.raises(DBAPIError, match="3058"):
            connection.scalar(ask, {"name": "second"})
        connection.execute(text("DO RELEASE_ALL_LOCKS()"))
        assert waiting.result(JOIN_S_MAX) == 1
        work(connection, 2)
    scene.check_committed(tx, 1, 2)


@pytest.mark.broker
@on("mariadb", "mysql")
def test_an_xa_transaction_cannot_begin_inside(scene: Scene) -> None:
    """The server refuses it in a transaction, and the block commits."""
    with scene.block() as (tx, connection):
        work(connection, 1)
        with pytest.raises(DBAPIError, match="XAER_OUTSIDE"):
            connection.execute(text("XA START 'mine'"))
        work(connection, 2)
    scene.check_committed(tx, 1, 2)


@on("mariadb", "mysql")
def test_an_xa_transaction_in_flight_gives_no_answer(database: Database, scene: Scene) -> None:
    """Prepared, it outlives its connection, and keeps the lock on its row until it is decided."""
    mine = new_id()
    with scene.engine.connect() as connection:
        connection.execute(text("XA START 'mine'"))
        write_committed(
            scene.fence._table,
            connection,
            producer_group=GROUP,
            transaction_id=mine,
            message_count=1,
        )
        connection.execute(text("XA END 'mine'"))
        connection.execute(text("XA PREPARE 'mine'"))
        connection.invalidate()
    with pytest.raises(NoAnswerError, match=r"(?i)lock"):
        scene.fence.check(scene.view(mine))
    with database.engine(isolation_level="AUTOCOMMIT").connect() as other:
        other.execute(text("XA COMMIT 'mine'"))
    assert scene.fence.check(scene.view(mine)).resolution is Resolution.COMMIT


# --- caching_sha2_password -----------------------------------------------------------------


@contextmanager
def with_password(database: Database) -> Iterator[URL]:
    """Yield the URL of a new user, whose password the server has not cached yet."""
    name, url = f"u_{secrets.token_hex(4)}", make_url(database.url)
    with database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        admin.execute(
            text(
                f"CREATE USER {name}@'{url.host}'"
                f" IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'"
            )
        )
        admin.execute(text(f"GRANT ALL ON {url.database}.* TO {name}@'{url.host}'"))
        try:
            yield url.set(username=name, password=PASSWORD)
        finally:
            admin.execute(text(f"DROP USER {name}@'{url.host}'"))


def check_once(url: URL, **arguments: Any) -> None:
    """Create a fence and write a row, each on a new connection."""
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
    fence = Fence(engine, producer_group=GROUP)
    fence.create()
    assert fence.roll_back(new_id())


@on("mysql")
@pytest.mark.parametrize("is_encrypted", [True, False])
def test_a_password_by_pymysql(database: Database, is_encrypted: bool) -> None:
    """It is sent by TLS, or under the server's RSA key; later connections need neither."""
    with with_password(database) as url:
        for _ in range(2):
            check_once(url, ssl_disabled=not is_encrypted)


@on("mysql")
def test_a_password_by_pymysql_without_cryptography(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS is enough. Without TLS the error names the package."""
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    with with_password(database) as url:
        with pytest.raises(RuntimeError, match="'cryptography' package is required"):
            check_once(url, ssl_disabled=True)
        # TLS is used where the server has it; before 1.2 it must be asked for.
        asked = {} if pymysql.VERSION >= (1, 2) else {"ssl": {"check_hostname": False}}
        check_once(url, **asked)


@on("mysql")
def test_a_password_by_asyncmy(database: Database) -> None:
    """Two connections succeed, of which the first needs the server's RSA key."""

    async def ask(url: URL) -> None:
        engine = create_async_engine(url.set(drivername="mysql+asyncmy"), poolclass=NullPool)
        for _ in range(2):
            async with engine.connect() as connection:
                assert await connection.scalar(text("SELECT 1")) == 1
        await engine.dispose()

    with with_password(database) as url:
        asyncio.run(ask(url))
