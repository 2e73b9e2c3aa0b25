"""fence.purge beside local transactions in flight: neither waits for the other without need."""

import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from halfbridge.bridge import NoAnswerError, Resolution
from halfbridge.sql import FencedError
from halfbridge.sql.errors import PurgeError
from halfbridge.sql.fence_purge import needed_ms
from halfbridge.sql.fence_table import CLOCK_MARGIN_MS, YOUNG_MS, write_committed
from tests.integration.producing import GROUP
from tests.sql.databases import Database
from tests.sql.fence_scene import Scene, new_id, on

JOIN_S_MAX = 60.0
KEPT_MS = 33 * 86_400_000
OLD_MS = KEPT_MS + 10_000
LEVELS = [None, "READ COMMITTED", "SERIALIZABLE"]


@pytest.fixture
def scene(database: Database) -> Scene:
    """A service on one database, without Kafka."""
    return Scene(database)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit lock waits to 100 ms, or to a second on MariaDB and MySQL."""
    for name, wait_ms in (("sqlite", 100), ("postgresql", 100), ("mariadb", 1_000)):
        monkeypatch.setattr(f"halfbridge.sql.dialects.{name}.CHECK_WAIT_MS", wait_ms)


def aged(scene: Scene, count: int, outcome: str = "committed") -> list[str]:
    """Write rows that a purge deletes; return their ids."""
    ids = [new_id(OLD_MS) for _ in range(count)]
    row = {"producer_group": GROUP, "outcome": outcome, "message_count": 1, "created_at_ms": 1}
    with scene.truth.begin() as connection:
        rows = [{**row, "transaction_id": each} for each in ids]
        connection.execute(insert(scene.fence.tables[0]), rows)
    return ids


@on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("level", LEVELS)
def test_long_local_transactions_do_not_hold_up_a_purge(
    database: Database, level: str | None
) -> None:
    """A purge does not wait for a fence row beside those that it deletes, in a table of any size.

    MariaDB locks the rows that INSERT ... SELECT reads, and the one after a range that it deletes.
    """
    given = {} if level is None else {"isolation_level": level}
    scene = Scene(database, **given)
    mine = new_id()
    with scene.in_flight(mine) as connection:
        for count in (1, 3, 60, 1_200):
            aged(scene, count)
            assert scene.fence.purge().rows == count
            scene.commit(new_id())
        connection.commit()
    assert scene.fence.check(scene.view(mine)).resolution is Resolution.COMMIT


@on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("level", LEVELS)
def test_a_purge_in_the_middle_holds_up_no_local_transaction(
    database: Database, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks enter, and checks answer, while its deletes are not committed yet."""
    given = {} if level is None else {"isolation_level": level}
    scene = Scene(database, **given)
    scene.commit(new_id())
    aged(scene, 60)
    seen: list[Resolution] = []
    commit = type(scene.truth.connect()).commit

    def commit_late(connection: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(others).result(JOIN_S_MAX)
        commit(connection)

    def others() -> None:
        entered, never = new_id(), new_id()
        scene.commit(entered)
        answers = [scene.fence.check(scene.view(each)) for each in (entered, never)]
        seen.extend(each.resolution for each in answers)

    with monkeypatch.context() as patched:
        patched.setattr("sqlalchemy.engine.Connection.commit", commit_late)
        assert scene.fence.purge().rows == 60
    assert seen == [Resolution.COMMIT, Resolution.ROLLBACK] * (len(seen) // 2)
    assert len(seen) >= 4  # in the purge's transaction of the watermark, and in that of the rows


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("is_released", [True, False])
def test_a_purge_that_is_held_up_says_by_what(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_released: bool
) -> None:
    """It waits ATTEMPTS_MAX times and blocks nobody; PurgeError has PostgreSQL's process id."""
    monkeypatch.setattr("halfbridge.sql.fence_purge.ATTEMPTS_MAX", 2)
    table = scene.fence.tables[0]
    (old,) = aged(scene, 1)
    row = select(table).where(scene.fence._table.is_watermark()).with_for_update()
    with scene.database.engine().connect() as holder:
        scene.fence.database.begin(holder)
        holder.execute(row)

        def pause(_: float) -> None:
            if scene.database.name != "sqlite":  # which has one writer
                scene.commit(new_id())
            if is_released:
                holder.rollback()

        monkeypatch.setattr("halfbridge.sql.fence_purge.sleep", pause)
        if is_released:
            assert scene.fence.purge().rows == 1
            return
        with pytest.raises(PurgeError, match=r"2 times.*run the purge again") as caught:
            scene.fence.purge()
        if scene.database.name == "postgresql":
            own = holder.execute(text("SELECT pg_backend_pid()")).scalar_one()
            assert f"process {own}" in str(caught.value)
    assert scene.fenced(old) == ("committed", 1)


@on("sqlite")
@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("uses", [1, 2])
def test_a_purge_tries_again_where_it_may_not_even_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, uses: int
) -> None:
    """A writer's commit locks SQLite's file against readers too, if it is not in WAL mode."""
    (old,) = aged(scene, 1)
    ended: list[None] = []
    with scene.database.engine().connect() as holder:

        def lock(_connection: Any, _record: Any) -> None:
            """Lock the file once the purge has used `uses` connections."""
            ended.append(None)
            if len(ended) == uses:
                holder.exec_driver_sql("BEGIN EXCLUSIVE")

        monkeypatch.setattr("halfbridge.sql.fence_purge.sleep", lambda _: holder.rollback())
        event.listen(scene.engine, "checkin", lock)
        assert scene.fence.purge().rows == 1
        assert len(ended) > uses
    assert scene.fenced(old) is None


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("is_committed", [True, False])
def test_work_older_than_the_watermark_that_ends_behind_the_purge(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """A row committed after the purge began is found; without a row, a check has no answer.

    Such work locks the watermark, so a purge waits for it, and for no other work.
    """
    monkeypatch.setattr("halfbridge.sql.fence_purge.ATTEMPTS_MAX", 1)
    mine = new_id(OLD_MS)
    (old,) = aged(scene, 1)
    with ThreadPoolExecutor(1) as pool, scene.in_flight(mine, message_count=2) as connection:
        with pytest.raises(PurgeError):
            pool.submit(scene.fence.purge).result(JOIN_S_MAX)
        if is_committed:
            connection.commit()
    assert scene.fenced(old) == ("committed", 1)
    assert scene.fence.purge().rows == 1
    if is_committed:
        answer = scene.fence.check(scene.view(mine))
        assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 2)
    else:
        with pytest.raises(NoAnswerError, match="were purged"):
            scene.fence.check(scene.view(mine))


@on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_lets_nobody_enter_behind_a_purge(database: Database, level: str) -> None:
    """`enter` fails though its rolled_back row was purged, and the snapshot is older than that."""
    scene = Scene(database, isolation_level=level)
    (mine,) = aged(scene, 1, "rolled_back")
    with scene.engine.connect() as connection:
        own = scene.fence.tables[0].c.table_id
        if database.name == "postgresql" or level != "SERIALIZABLE":  # there a SELECT locks
            assert connection.execute(select(own).where(own.is_not(None))).one()
        scene.fence_on(scene.truth).purge()
        with pytest.raises((FencedError, DBAPIError)) as caught:
            _enter(scene, connection, mine)
        if isinstance(caught.value, DBAPIError):
            assert scene.fence.database.is_held_up(caught.value)  # a serialization failure
    assert scene.fenced(mine) is None


def _enter(scene: Scene, connection: Any, transaction_id: str) -> None:
    write_committed(
        scene.fence._table,
        connection,
        producer_group=GROUP,
        transaction_id=transaction_id,
        message_count=1,
    )


@on("postgresql", "mariadb", "mysql")
def test_a_service_needs_no_rights_to_update_or_delete(scene: Scene) -> None:
    """SELECT and INSERT on the fence table are enough to enter and to check; a purge needs more."""
    name = f"u_{secrets.token_hex(4)}"
    host = "" if scene.database.name == "postgresql" else "@'127.0.0.1'"
    with _user(scene, name + host):
        url = make_url(scene.database.url).set(username=name)
        scene.engine = create_engine(url, poolclass=NullPool)
        scene.fence = scene.fence_on(scene.engine)
        mine, never = new_id(), new_id()
        scene.commit(mine)
        assert scene.fence.check(scene.view(mine)).resolution is Resolution.COMMIT
        assert scene.fence.check(scene.view(never)).resolution is Resolution.ROLLBACK
        late = new_id(2 * YOUNG_MS)
        if scene.database.name == "postgresql":  # where a lock on the watermark needs UPDATE
            with pytest.raises(DBAPIError, match="permission denied"):
                scene.commit(late)
        else:
            scene.commit(late)
        with pytest.raises(DBAPIError, match=r"(?i)denied"):
            scene.fence.purge()


@contextmanager
def _user(scene: Scene, name: str) -> Iterator[None]:
    """Make a user of the server, and drop it at the end."""
    statements = {
        "postgresql": ("CREATE ROLE {} LOGIN", "DROP OWNED BY {}; DROP ROLE {}"),
        "mariadb": ("CREATE USER {}", "DROP USER {}"),
        "mysql": ("CREATE USER {}", "DROP USER {}"),
    }
    make, drop = statements[scene.database.name]
    with scene.database.admin_engine().connect() as admin:
        admin.execute(text(make.format(name)))
        admin.execute(text(f"GRANT SELECT, INSERT ON halfbridge_fence TO {name}"))
        admin.commit()
        try:
            yield
        finally:
            for each in drop.split("; "):
                admin.execute(text(each.format(name)))
            admin.commit()


def test_what_is_young_cannot_have_been_purged() -> None:
    """An id that enters without a read of the watermark is younger than all purged rows."""
    assert needed_ms(1, 0) == YOUNG_MS + CLOCK_MARGIN_MS


@on("sqlite")
@pytest.mark.parametrize("ahead_ms", [2 * CLOCK_MARGIN_MS, -2 * CLOCK_MARGIN_MS])
def test_a_purge_by_a_wrong_clock_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """It is refused if the clocks of database and machine differ: rows may be too young."""
    (old,) = aged(scene, 1)
    monkeypatch.setattr(
        "halfbridge.sql.fence_purge.time_ns", lambda: time.time_ns() - ahead_ms * 1_000_000
    )
    with pytest.raises(PurgeError, match="clock"):
        scene.fence.purge()
    assert scene.fenced(old) == ("committed", 1)
