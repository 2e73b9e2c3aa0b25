"""fence.enter: what it demands of a connection, on each database and a real Kafka."""

# ruff: noqa: SIM117  (what the body of a block does is what is tested)

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from halfbridge.bridge import IllegalTransitionError, Transaction
from halfbridge.sql import (
    FencedError,
    FenceUsageError,
    NotDurableError,
    TableError,
    TransactionEndedError,
)
from halfbridge.sql.local_messages.rows import RowStateError
from halfbridge.sql.local_messages.writer import LocalMessages
from tests.integration.producing import Cluster
from tests.sql.databases import Database
from tests.sql.fence_scene import Scene, on, work

pytestmark = pytest.mark.broker


def sent(scene: Scene) -> Transaction:
    """Return a message transaction of this fence, with one message."""
    tx: Transaction = scene.producer.begin(context=scene.fence.context())
    tx.send(scene.message())
    return tx


@pytest.mark.feature
@pytest.mark.parametrize("has_session", [True, False])
def test_by_hand(scene: Scene, has_session: bool) -> None:
    """Sends, a database transaction with the row first, and tx.commit() commit both."""
    tx = sent(scene)
    opened = Session(scene.engine) if has_session else scene.engine.connect()
    with opened as handle, handle.begin():
        scene.fence.enter(handle, tx)
        work(handle, 1)
    tx.commit()
    scene.check_committed(tx, 1)


def test_rolled_back_by_hand_the_row_goes_too(scene: Scene) -> None:
    """The connection is free for other work afterwards, and for another row."""
    tx, other = sent(scene), sent(scene)
    with scene.engine.connect() as connection:
        scene.fence.enter(connection, tx)
        connection.rollback()
        work(connection, 1)
        connection.commit()
        scene.fence.enter(connection, other)
        work(connection, 2)
        connection.commit()
    assert scene.worked() == [1, 2]
    assert scene.fenced(tx.id) is None
    assert scene.fenced(other.id) == ("committed", 1)


@pytest.mark.parametrize("has_session", [True, False])
def test_a_fenced_transaction_cannot_commit(scene: Scene, has_session: bool) -> None:
    """COMMIT is refused though the error was swallowed, and MariaDB and SQLite would commit."""
    tx = sent(scene)
    scene.fence.roll_back(tx.id)
    opened = Session(scene.engine) if has_session else scene.engine.connect()
    with opened as handle:
        if scene.database.name != "postgresql":  # there every statement fails by now
            work(handle, 1)
        with pytest.raises(FencedError):
            scene.fence.enter(handle, tx)
        with pytest.raises(FencedError):
            handle.commit()
    assert scene.worked() == []


def test_autocommit_is_refused(database: Database, cluster: Cluster, producer: Any) -> None:
    """`enter` and the block refuse it; no work is committed."""
    scene = Scene(database, cluster=cluster, producer=producer, isolation_level="AUTOCOMMIT")
    tx = sent(scene)
    with scene.engine.connect() as connection:
        with pytest.raises(FenceUsageError, match="AUTOCOMMIT"):
            scene.fence.enter(connection, tx)
    with (
        pytest.raises(FenceUsageError, match="AUTOCOMMIT"),
        scene.fence.transaction(producer) as (other, connection),
    ):
        other.send(scene.message())
        work(connection, 1)
    assert scene.worked() == []
    assert scene.fenced(tx.id) is None
    assert scene.fenced(other.id) == ("rolled_back", 0)


@on("sqlite")
def test_a_begin_event_of_the_users_own(scene: Scene) -> None:
    """A block works with SQLAlchemy's recipe for sqlite3: no isolation level, BEGIN by an event."""

    @event.listens_for(scene.engine, "connect")
    def _(driver: Any, _: Any) -> None:
        driver.isolation_level = None

    @event.listens_for(scene.engine, "begin")
    def _(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    scene.engine.dispose()
    with scene.block() as (tx, connection):
        work(connection, 1)
    assert scene.worked() == [1]
    assert scene.fence.roll_back(tx.id) is False


@on("sqlite")
def test_the_drivers_late_begin_is_no_gap(scene: Scene) -> None:
    """sqlite3 begins at the first INSERT only; `enter` opens a transaction before it."""
    tx = sent(scene)
    with scene.engine.connect() as connection:
        driver = connection.connection.dbapi_connection
        begun: list[bool] = []
        event.listen(
            connection,
            "before_cursor_execute",
            lambda *given: begun.append(driver.in_transaction) if "INSERT" in given[2] else None,
        )
        scene.fence.enter(connection, tx)
        connection.commit()
    assert begun == [True]


def test_a_savepoint_alone_is_refused(scene: Scene) -> None:
    """Its rollback would remove the row, and keep the work before the savepoint."""
    tx = sent(scene)
    with scene.engine.connect() as connection, connection.begin():
        work(connection, 1)
        with connection.begin_nested():
            with pytest.raises(FenceUsageError, match="a savepoint alone"):
                scene.fence.enter(connection, tx)
    assert scene.fenced(tx.id) is None


def test_a_savepoint_of_sql_text_that_takes_the_row_with_it(scene: Scene) -> None:
    """COMMIT is refused: the work before the savepoint would be committed without the row."""
    tx = sent(scene)
    with scene.engine.connect() as connection:
        work(connection, 1)
        connection.execute(text("SAVEPOINT mine"))
        scene.fence.enter(connection, tx)
        connection.execute(text("ROLLBACK TO SAVEPOINT mine"))
        with pytest.raises(TransactionEndedError):
            connection.commit()
    assert scene.worked() == []
    assert scene.fenced(tx.id) is None


@on("postgresql", "mariadb", "mysql")
def test_a_two_phase_commit_is_refused(scene: Scene) -> None:
    """It commits in two steps, neither of which the fence can guard."""
    tx = sent(scene)
    with scene.engine.connect() as connection, connection.begin_twophase() as begun:
        with pytest.raises(FenceUsageError, match="two-phase"):
            scene.fence.enter(connection, tx)
        begun.rollback()
    with Session(scene.engine, twophase=True) as session:
        with pytest.raises(FenceUsageError, match="two-phase"):
            scene.fence.enter(session, tx)


@on("sqlite")
def test_a_session_of_somebody_elses_transaction_is_refused(scene: Scene) -> None:
    """A session bound to a connection is refused, as its commit commits nothing."""
    tx = sent(scene)
    with scene.engine.connect() as connection, connection.begin():
        with Session(connection) as session:
            with pytest.raises(FenceUsageError, match="bound to a connection"):
                scene.fence.enter(session, tx)
        with pytest.raises(FenceUsageError, match="bound to a connection"):
            scene.fence.transaction(
                scene.producer, session_factory=sessionmaker(connection)
            ).__enter__()


@on("sqlite")
def test_a_session_that_has_begun_is_refused(scene: Scene) -> None:
    """The row would not be the first statement."""
    session = Session(scene.engine)
    work(session, 1)
    with pytest.raises(FenceUsageError, match="has begun already"):
        scene.fence.transaction(scene.producer, session_factory=lambda: session).__enter__()
    session.close()


def test_a_connection_to_another_database(scene: Scene, tmp_path: Path) -> None:
    """It is refused: its table would take the row, and no check would find it there."""
    tx = sent(scene)
    with scene.truth.connect() as connection:
        connection.execute(text("DROP TABLE halfbridge_fence"))
        connection.commit()
    scene.fence_on(scene.truth).create()  # the same name, and another table
    with scene.truth.connect() as connection:
        with pytest.raises(TableError, match="give a connection to the fence's database"):
            scene.fence.enter(connection, tx)
        with pytest.raises(TableError):
            connection.commit()
    assert scene.rows() == 0


@on("postgresql")
def test_synchronous_commit_is_turned_on_for_the_transaction(
    database: Database, cluster: Cluster, producer: Any
) -> None:
    """With it off, a server that is killed would lose committed work."""
    options = {"connect_args": {"options": "-c synchronous_commit=off"}}
    scene = Scene(database, cluster=cluster, producer=producer, pool_size=1, **options)
    shown = text("SHOW synchronous_commit")
    with scene.engine.connect() as connection:
        scene.fence.enter(connection, sent(scene))
        assert connection.execute(shown).scalar_one() == "on"
        connection.execute(text("SET LOCAL synchronous_commit = off"))
        late: list[str] = []
        event.listen(
            connection, "commit", lambda each: late.append(each.execute(shown).scalar_one())
        )
        connection.commit()
        assert late == ["on"]
        assert connection.execute(shown).scalar_one() == "off"


@on("postgresql")
@pytest.mark.parametrize("level", ["remote_apply", "local"])
def test_other_levels_of_synchronous_commit_stay(
    database: Database, cluster: Cluster, producer: Any, level: str
) -> None:
    """`enter` does not change levels that are durable."""
    options = {"connect_args": {"options": f"-c synchronous_commit={level}"}}
    scene = Scene(database, cluster=cluster, producer=producer, **options)
    with scene.engine.connect() as connection:
        scene.fence.enter(connection, sent(scene))
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == level


@on("sqlite")
def test_a_file_that_is_not_synchronised_is_refused(scene: Scene) -> None:
    """PRAGMA synchronous=OFF may lose the whole file: `enter` and `roll_back` refuse it."""
    tx = sent(scene)
    event.listen(scene.engine, "connect", lambda each, _: each.execute("PRAGMA synchronous = OFF"))
    scene.engine.dispose()
    with scene.engine.connect() as connection:
        with pytest.raises(NotDurableError, match="PRAGMA synchronous is OFF"):
            scene.fence.enter(connection, tx)
    with pytest.raises(NotDurableError):
        scene.fence.roll_back(tx.id)
    assert scene.fenced(tx.id) is None


@on("mariadb", "mysql")
def test_a_server_that_forgets_a_second_is_refused(scene: Scene) -> None:
    """innodb_flush_log_at_trx_commit=0: a commit is in the server's memory only."""
    tx = sent(scene)
    query = text("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
    change = "SET GLOBAL innodb_flush_log_at_trx_commit = {}"
    with scene.database.admin_engine().connect() as admin:
        before = admin.execute(query).scalar_one()
        admin.execute(text(change.format(0)))
        try:
            with scene.engine.connect() as connection:
                with pytest.raises(NotDurableError, match="innodb_flush_log_at_trx_commit is 0"):
                    scene.fence.enter(connection, tx)
            with pytest.raises(NotDurableError):
                scene.fence.roll_back(tx.id)
        finally:
            admin.execute(text(change.format(before)))
    assert scene.fenced(tx.id) is None


@on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_blocks_at_each_isolation_level(
    database: Database, cluster: Cluster, producer: Any, isolation: str
) -> None:
    """One block commits, and one that a check came before is fenced."""
    scene = Scene(database, cluster=cluster, producer=producer, isolation_level=isolation)
    with scene.fence.transaction(producer) as (tx, connection):
        tx.send(scene.message())
        work(connection, 1)
    assert scene.fence.roll_back(tx.id) is False
    with pytest.raises(FencedError), scene.fence.transaction(producer) as (other, connection):
        other.send(scene.message())
        scene.fence.check(scene.view(other.id))
        work(connection, 2)
    scene.check_rolled_back(other, 1)


def test_messages_are_not_committed_before_the_database(scene: Scene) -> None:
    """tx.commit() is refused before the database's COMMIT, and after its rollback."""
    for ending in ("rollback", "commit"):
        tx = sent(scene)
        with scene.engine.connect() as connection:
            scene.fence.enter(connection, tx)
            with pytest.raises(IllegalTransitionError, match="commit the database first"):
                tx.commit()
            getattr(connection, ending)()
        if ending == "rollback":
            with pytest.raises(IllegalTransitionError, match="commit the database first"):
                tx.commit()
        else:
            tx.commit()


@on("sqlite", "postgresql")
def test_after_a_commit_that_failed_messages_cannot_commit(scene: Scene) -> None:
    """The error of a deferred constraint is swallowed: the message block must not commit alone."""
    if scene.database.name == "sqlite":
        event.listen(scene.engine, "connect", lambda each, _: each.execute("PRAGMA foreign_keys=1"))
        scene.engine.dispose()
    owner = "INTEGER REFERENCES work (number) DEFERRABLE INITIALLY DEFERRED"
    with scene.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE parts (owner {owner})"))
    with (
        pytest.raises(IllegalTransitionError, match="the database's COMMIT has failed"),
        scene.producer.begin(context=scene.fence.context()) as tx,
    ):
        tx.send(scene.message())
        with pytest.raises(IntegrityError), scene.engine.begin() as connection:
            scene.fence.enter(connection, tx)
            connection.execute(text("INSERT INTO parts VALUES (1)"))
    assert scene.fenced(tx.id) is None
    assert scene.decisions(tx.id) == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_two_rows_in_one_database_transaction(scene: Scene, is_lost: bool) -> None:
    """Both message transactions commit; not the first one, if the database rolled it back."""
    first, second = sent(scene), sent(scene)
    with scene.engine.connect() as connection:
        scene.fence.enter(connection, first)
        if is_lost:
            connection.exec_driver_sql("ROLLBACK")  # as a database may after a deadlock
        scene.fence.enter(connection, second)
        work(connection, 1)
        connection.commit()
    assert scene.fenced(first.id) == (None if is_lost else ("committed", 1))
    if is_lost:
        with pytest.raises(IllegalTransitionError, match="commit the database first"):
            first.commit()
    else:
        first.commit()
    second.commit()


def test_enter_is_refused_inside_of_a_block(scene: Scene) -> None:
    """The block commits one message transaction, its own."""
    with scene.block() as (_, connection):
        work(connection, 1)
        with pytest.raises(FenceUsageError, match="commits one message transaction"):
            scene.fence.enter(connection, sent(scene))
    assert scene.worked() == [1]


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_a_confirmation_that_comes_late_ends_a_block(scene: Scene, is_swallowed: bool) -> None:
    """Its own error leaves the block, though the code may have swallowed it; neither commits."""
    messages = LocalMessages(scene.engine)
    messages.create()
    row_id = messages.pre_send(scene.message())
    messages.withdraw(row_id)
    swallowed = suppress(RowStateError) if is_swallowed else nullcontext()
    with pytest.raises(RowStateError, match="LOCAL_ROLLBACK"):
        with scene.block() as (tx, connection):
            work(connection, 1)
            with swallowed:
                messages.confirm(connection, row_id)
    scene.check_rolled_back(tx)


def test_without_a_committed_fence_row_messages_cannot_commit(scene: Scene) -> None:
    """A forgotten enter is an error: a check would roll back what the database has committed."""
    for commit in ("commit", "commit_async"):
        tx = sent(scene)
        with pytest.raises(IllegalTransitionError, match="its fence row is not committed"):
            getattr(tx, commit)()
        tx.rollback()
    with (
        pytest.raises(IllegalTransitionError, match="its fence row is not committed"),
        scene.producer.begin(context=scene.fence.context()) as forgotten,
        scene.engine.begin() as connection,
    ):
        forgotten.send(scene.message())
        work(connection, 1)


def test_the_row_may_be_the_last_statement(scene: Scene) -> None:
    """So a message can carry an id that the database has made."""
    with (
        scene.producer.begin(context=scene.fence.context()) as tx,
        scene.engine.begin() as connection,
    ):
        work(connection, 1)
        tx.send(scene.message())
        scene.fence.enter(connection, tx)
    scene.check_committed(tx, 1)
