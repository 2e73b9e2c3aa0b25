"""fence.transaction: each way through the block, on each database and a real Kafka."""

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from halfbridge.bridge import (
    AsyncTransactionProducer,
    IllegalTransitionError,
    MessageView,
    OutcomeUnknownError,
    Resolution,
)
from halfbridge.kafka.errors import ConfigError, InvalidMessageError
from halfbridge.serde.headers import parse_half
from halfbridge.sql import (
    CommitUnknownError,
    FencedError,
    FenceUsageError,
    Inbox,
    InboxUsageError,
    Outcome,
    TransactionEndedError,
)
from tests.integration.producing import Cluster
from tests.sql.databases import WITH_MYSQL, Database
from tests.sql.fence_scene import Scene, kill_session, new_id, on, work
from tests.sql.kafka_message import delivered

pytestmark = pytest.mark.broker

HELD_BACK = {"linger_ms": 1_000}  # records wait a second: none is acknowledged before


class BrokenError(Exception):
    """An error that a block raises."""


@WITH_MYSQL
@pytest.mark.feature
def test_left_normally_the_database_commits_and_then_the_messages(scene: Scene) -> None:
    """Row and op have the count of messages; the half message names the fence's table."""
    with scene.block() as (tx, connection):
        tx.send(scene.message(b"a hat"))
        work(connection, 1)
        work(connection, 2)
    assert scene.worked() == [1, 2]
    assert scene.fenced(tx.id) == ("committed", 2)
    assert scene.decisions(tx.id) == [("COMMIT", 2)]
    assert scene.context_sent(tx.id) == scene.fence.table_id()


def test_a_session_of_the_users_own(scene: Scene) -> None:
    """A session works like a connection; savepoints inside may be rolled back."""
    with scene.fence.transaction(scene.producer, session_factory=sessionmaker(scene.engine)) as (
        tx,
        session,
    ):
        assert isinstance(session, Session)
        tx.send(scene.message())
        with pytest.raises(BrokenError), session.begin_nested():
            work(session, 1)
            raise BrokenError
        with session.begin_nested():
            work(session, 2)
    scene.check_committed(tx, 2)


def test_the_fence_row_is_the_first_statement(scene: Scene) -> None:
    """Sends run no statement in the database; the row is inserted before the first statement."""
    table = scene.fence.tables[0].name
    scene.fence.table_id()
    executed: list[str] = []
    with scene.fence.transaction(scene.producer) as (tx, connection):
        event.listen(connection, "before_cursor_execute", lambda *given: executed.append(given[2]))
        tx.send(scene.message())
        assert executed == []
        assert not connection.in_transaction()
        work(connection, 1)
        writes = [each for each in executed if each.startswith("INSERT")]
    assert len(writes) == 2
    assert table in writes[0]


def test_a_block_that_only_sends_is_refused(scene: Scene) -> None:
    """Its work was probably done on another connection, which commits without the messages."""
    with (
        pytest.raises(FenceUsageError, match="no statement ran on the block's connection"),
        scene.block() as (tx, _),
    ):
        pass
    assert scene.decisions(tx.id) == [("ROLLBACK", 1)]


def test_a_block_that_only_sends_and_means_it(scene: Scene) -> None:
    """With allow_empty its row is written all the same, for checks."""
    with scene.fence.transaction(scene.producer, allow_empty=True) as (tx, _):
        tx.send(scene.message())
    assert scene.fenced(tx.id) == ("committed", 1)
    assert scene.decisions(tx.id) == [("COMMIT", 1)]


@pytest.mark.feature
def test_the_inbox_in_the_block(scene: Scene) -> None:
    """A mark, the work and the fence row commit together; a repeated message is not taken."""
    inbox = Inbox(scene.engine, group_id="billing")
    inbox.create()
    with scene.block() as (tx, connection):
        assert inbox.once(connection, None, key="order-1")
        work(connection, 1)
    scene.check_committed(tx, 1)
    with scene.block() as (again, connection):
        assert not inbox.once(connection, None, key="order-1")
    assert scene.decisions(again.id) == [("COMMIT", 1)]


@on("sqlite", "postgresql", "mariadb", "mysql")
def test_a_mark_that_is_gone_refuses_the_commit_before_it_is_sent(scene: Scene) -> None:
    """Database and messages roll back with the inbox's error; nothing is in doubt."""
    inbox = Inbox(scene.engine, group_id="billing")
    inbox.create()
    with (
        pytest.raises(InboxUsageError, match="rolled back 1 of 1 marks"),
        scene.block() as (tx, connection),
    ):
        inbox.once(connection, None, key="order-1")
        work(connection, 1)
        connection.execute(inbox.table.delete())
    assert scene.worked() == []
    assert scene.decisions(tx.id) == [("ROLLBACK", 1)]


def test_a_listener_of_the_application_may_work_at_the_commit(scene: Scene) -> None:
    """Its statements are part of the block's transaction."""
    event.listen(scene.engine, "commit", lambda each: work(each, 2))
    with scene.block() as (tx, connection):
        event.listen(connection, "commit", lambda each: work(each, 3))
        work(connection, 1)
    assert scene.worked() == [1, 2, 3]
    assert scene.decisions(tx.id) == [("COMMIT", 1)]


def test_a_commit_that_a_listener_of_the_application_refuses(scene: Scene) -> None:
    """COMMIT was not sent, so nothing is in doubt: database and messages roll back."""

    def refuse(_: object) -> None:
        raise BrokenError

    with pytest.raises(BrokenError), scene.block() as (tx, connection):
        work(connection, 1)
        event.listen(connection, "commit", refuse)
    assert scene.worked() == []
    assert scene.decisions(tx.id) == [("ROLLBACK", 1)]


def test_a_block_without_sends_is_a_plain_database_transaction(scene: Scene) -> None:
    """It has no op, and its row counts 0; after an exception, or without a statement, no row."""
    with scene.fence.transaction(scene.producer) as (tx, connection):
        work(connection, 1)
    with pytest.raises(BrokenError), scene.fence.transaction(scene.producer) as (_, connection):
        work(connection, 2)
        raise BrokenError
    with scene.fence.transaction(scene.producer):
        pass
    assert scene.worked() == [1]
    assert scene.fenced(tx.id) == ("committed", 0)
    assert scene.rows() == 1
    assert scene.decisions(tx.id) == []


@pytest.mark.feature
def test_an_exception_rolls_back_both(scene: Scene) -> None:
    """The fence row is set to rolled_back, then the message transaction is rolled back."""
    with pytest.raises(BrokenError), scene.block() as (tx, connection):
        work(connection, 1)
        raise BrokenError
    scene.check_rolled_back(tx)


def test_left_by_an_exception_before_the_first_statement(scene: Scene) -> None:
    """No row is needed: nobody else can enter. The message transaction is rolled back."""
    with pytest.raises(BrokenError), scene.block() as (tx, _):
        raise BrokenError
    assert scene.fenced(tx.id) is None
    assert scene.decisions(tx.id) == [("ROLLBACK", 1)]


def test_a_pool_of_one_connection_is_enough(
    database: Database, cluster: Cluster, producer: Any
) -> None:
    """The block gives its connection back before the fence needs another."""
    scene = Scene(
        database, cluster=cluster, producer=producer, pool_size=1, max_overflow=0, pool_timeout=1
    )
    with pytest.raises(BrokenError), scene.fence.transaction(producer) as (tx, connection):
        tx.send(scene.message())
        work(connection, 1)
        raise BrokenError
    assert scene.fenced(tx.id) == ("rolled_back", 0)


def _commit(connection: Any) -> None:
    connection.commit()


def _begin_and_commit(connection: Any) -> None:
    with connection.begin_nested() if connection.in_transaction() else connection.begin():
        work(connection, 9)
    connection.commit()


@pytest.mark.parametrize(
    ("commit", "is_let_out", "has_session"),
    [
        (_commit, True, False),
        (_commit, False, False),
        (_commit, False, True),
        (_begin_and_commit, False, False),
        (_begin_and_commit, True, True),
    ],
)
def test_only_the_block_commits(
    scene: Scene, commit: Callable[[Any], None], is_let_out: bool, has_session: bool
) -> None:
    """The user's own commit is refused; nothing is committed, even if the error is swallowed."""
    given = {"session_factory": sessionmaker(scene.engine)} if has_session else {}
    with (
        pytest.raises(FenceUsageError, match="only the block commits"),
        scene.block(**given) as (tx, handle),
    ):
        work(handle, 1)
        try:
            commit(handle)
        except FenceUsageError:
            if is_let_out:
                raise
    scene.check_rolled_back(tx)


def test_a_rollback_inside_ends_the_block(scene: Scene) -> None:
    """Statements after it would have no fence row, and are refused."""
    with (
        pytest.raises(FenceUsageError, match="second database transaction"),
        scene.block() as (tx, connection),
    ):
        work(connection, 1)
        connection.rollback()
        work(connection, 2)
    with (
        pytest.raises(
            TransactionEndedError, match="the statements before that are rolled back"
        ) as caught,
        scene.block() as (other, connection),
    ):
        work(connection, 3)
        connection.rollback()
    assert caught.value.outcome is Outcome.ROLLED_BACK
    assert scene.worked() == []
    for each in (tx, other):
        assert scene.fenced(each.id) == ("rolled_back", 0)
        assert scene.decisions(each.id) == [("ROLLBACK", 1)]


def test_a_session_that_begins_anew_inside(scene: Scene) -> None:
    """It is refused, as it would commit work without a fence row."""
    with (
        pytest.raises(FenceUsageError, match="second database transaction"),
        scene.fence.transaction(scene.producer, session_factory=sessionmaker(scene.engine)) as (
            tx,
            session,
        ),
    ):
        tx.send(scene.message())
        work(session, 1)
        session.rollback()
        work(session, 2)
    scene.check_rolled_back(tx)


def test_a_rollback_of_the_message_transaction_inside(scene: Scene) -> None:
    """The work would be committed without its messages, so both are rolled back."""
    with (
        pytest.raises(FenceUsageError, match="raise an exception instead"),
        scene.block() as (tx, connection),
    ):
        work(connection, 1)
        tx.rollback()
    assert scene.worked() == []
    assert scene.fenced(tx.id) == ("rolled_back", 0)


@pytest.mark.feature
@pytest.mark.parametrize("is_let_out", [True, False])
def test_a_check_that_comes_first(scene: Scene, is_let_out: bool) -> None:
    """Its rollback is final: the block cannot commit, even if the error is swallowed."""
    with pytest.raises(FencedError, match="a check came before"), scene.block() as (tx, connection):
        assert scene.fence.check(scene.view(tx.id)).resolution is Resolution.ROLLBACK
        try:
            work(connection, 1)
        except FencedError:
            if is_let_out:
                raise
    scene.check_rolled_back(tx)


@on("mariadb", "mysql")
def test_a_statement_that_commits_by_itself(scene: Scene) -> None:
    """DDL commits on MariaDB: the error has the outcome, and the later work is rolled back."""
    with (
        pytest.raises(TransactionEndedError, match="before that are committed") as caught,
        scene.block() as (tx, connection),
    ):
        work(connection, 1)
        connection.execute(text("CREATE TABLE other (number INT)"))
        work(connection, 2)
    assert caught.value.outcome is Outcome.COMMITTED
    scene.check_committed(tx, 1)


@on("mariadb", "mysql")
def test_an_exception_behind_a_statement_that_commits_by_itself(scene: Scene) -> None:
    """The committed row decides: the messages of the committed work are committed."""
    with pytest.raises(BrokenError), scene.block() as (tx, connection):
        work(connection, 1)
        connection.execute(text("CREATE TABLE other (number INT)"))
        raise BrokenError
    scene.check_committed(tx, 1)


@on("sqlite")
def test_a_script_of_the_drivers_own_commits(scene: Scene) -> None:
    """executescript() commits first; the end of the block raises TransactionEndedError."""
    with pytest.raises(TransactionEndedError) as caught, scene.block() as (tx, connection):
        work(connection, 1)
        connection.connection.dbapi_connection.executescript("SELECT 1;")
        work(connection, 2)
    assert caught.value.outcome is Outcome.COMMITTED
    scene.check_committed(tx, 1)


@on("postgresql", "mariadb", "mysql")
def test_a_commit_in_sql_text(scene: Scene) -> None:
    """SQLAlchemy does not notice it; the block does, as its mark of the transaction is gone."""
    with pytest.raises(TransactionEndedError) as caught, scene.block() as (tx, connection):
        work(connection, 1)
        connection.execute(text("COMMIT"))
        work(connection, 2)
    assert caught.value.outcome is Outcome.COMMITTED
    scene.check_committed(tx, 1)


@on("mariadb", "mysql")
def test_a_deadlock_that_is_swallowed(scene: Scene) -> None:
    """MariaDB has rolled everything back, the row too, so the later work is rolled back as well."""
    with scene.truth.begin() as connection:
        for number in range(100, 120):
            work(connection, number)
    with (
        pytest.raises(TransactionEndedError) as caught,
        scene.fence.transaction(scene.producer) as (tx, connection),
        scene.truth.connect() as rival,
    ):
        tx.send(scene.message())
        work(connection, 1)
        # The rival has more changes, so it wins; it waits for row 1, the block then for its rows.
        rival.execute(text("SET SESSION innodb_lock_wait_timeout = 30"))
        rival.execute(text("UPDATE work SET number = number + 1000 WHERE number >= 100"))
        waiting = rival.connection.dbapi_connection
        waiting._execute_command(3, "UPDATE work SET number = 2 WHERE number = 1")  # COM_QUERY
        with pytest.raises(DBAPIError, match="1213"):
            connection.execute(text("UPDATE work SET number = 7 WHERE number >= 100"))
        waiting._read_query_result()
        rival.rollback()
        work(connection, 3)
    assert caught.value.outcome is Outcome.ROLLED_BACK
    assert scene.worked() == list(range(100, 120))
    assert scene.fenced(tx.id) == ("rolled_back", 0)
    assert scene.decisions(tx.id) == [("ROLLBACK", 1)]


@on("postgresql")
def test_an_error_of_a_statement_that_is_swallowed(scene: Scene) -> None:
    """PostgreSQL would answer COMMIT with a rollback and no error; the block raises the error."""
    with (
        pytest.raises(DBAPIError, match="current transaction is aborted"),
        scene.block() as (tx, connection),
    ):
        work(connection, 1)
        with pytest.raises(IntegrityError):
            work(connection, 1)
    scene.check_rolled_back(tx)


@on("postgresql", "mariadb", "mysql")
def test_a_connection_lost_before_the_commit(scene: Scene) -> None:
    """No work can be committed: the row is set to rolled_back, and the messages are rolled back."""
    with pytest.raises(DBAPIError), scene.block() as (tx, connection):
        work(connection, 1)
        kill_session(scene.database, connection)
    scene.check_rolled_back(tx)


@on("postgresql", "mariadb", "mysql")
def test_a_connection_lost_at_the_commit_decides_nothing(scene: Scene) -> None:
    """The outcome is unknown; the check finds that nothing was committed."""
    with pytest.raises(CommitUnknownError), scene.block() as (tx, connection):
        work(connection, 1)
        event.listen(connection, "commit", lambda each: kill_session(scene.database, each))
    assert scene.fenced(tx.id) is None
    assert scene.decisions(tx.id) == []
    assert scene.fence.check(scene.view(tx.id)).resolution is Resolution.ROLLBACK
    assert scene.worked() == []


@pytest.mark.feature
def test_a_commit_whose_answer_is_lost_decides_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check finds that it was committed, and how many messages there are."""

    def do_commit(connection: Any) -> None:
        connection.commit()
        raise ConnectionError

    with pytest.raises(CommitUnknownError) as caught, scene.block() as (tx, connection):
        work(connection, 1)
        monkeypatch.setattr(scene.engine.dialect, "do_commit", do_commit)
    monkeypatch.undo()
    assert isinstance(caught.value, OutcomeUnknownError)
    assert scene.decisions(tx.id) == []
    answer = scene.fence.check(scene.view(tx.id))
    assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 1)
    assert scene.worked() == [1]


@on("postgresql", "sqlite")
def test_a_constraint_that_refuses_the_commit(scene: Scene) -> None:
    """The error proves that nothing was committed, so the block rolls back the messages."""
    with scene.truth.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE part (number INTEGER REFERENCES work (number)"
                " DEFERRABLE INITIALLY DEFERRED)"
            )
        )
    with pytest.raises(IntegrityError), scene.block() as (tx, connection):
        if scene.database.name == "sqlite":
            connection.connection.dbapi_connection.execute("PRAGMA foreign_keys = ON")
        work(connection, 1)
        connection.execute(text("INSERT INTO part VALUES (2)"))
    scene.check_rolled_back(tx)


@on("sqlite")
def test_a_message_commit_in_doubt(scene: Scene) -> None:
    """OutcomeUnknownError: the work is committed, and a check commits the messages."""
    assert scene.cluster is not None
    settings = {**HELD_BACK, "decisions": "acknowledged", "decision_timeout_ms": 10}
    with scene.cluster.producer(**settings) as slow:
        with (
            pytest.raises(OutcomeUnknownError) as caught,
            scene.fence.transaction(slow) as (tx, connection),
        ):
            tx.send(scene.message())
            work(connection, 1)
        assert not isinstance(caught.value, CommitUnknownError)
    assert scene.worked() == [1]
    assert scene.fenced(tx.id) == ("committed", 1)


async def _check(_: MessageView) -> Resolution:
    return Resolution.UNKNOWN


@on("sqlite")
def test_a_producer_that_does_not_go_with_the_fence(scene: Scene) -> None:
    """Another group, a check_timeout_ms below 4000, and an asyncio producer raise ConfigError."""
    assert scene.cluster is not None
    hasty = scene.cluster.producer(check_timeout_ms=3_999)
    with pytest.raises(ConfigError, match=r"check_timeout_ms: 3999 .* at least 4000"):
        scene.fence.transaction(hasty)
    with pytest.raises(ConfigError, match="producer_group"):
        scene.fence.transaction(scene.cluster.producer(producer_group="others"))
    asynchronous: Any = AsyncTransactionProducer(checker=_check, config=hasty.config)
    with pytest.raises(ConfigError, match=r"AsyncTransactionProducer .* AsyncFence"):
        scene.fence.transaction(asynchronous)


@on("sqlite")
def test_the_first_check_waits_as_long_as_is_asked(scene: Scene) -> None:
    """`immunity_ms` of the block is stored in each half message."""
    assert scene.cluster is not None
    with scene.block(immunity_ms=60_000) as (tx, connection):
        work(connection, 1)
    found = [parse_half(each.headers())[0] for each in scene.cluster.read(scene.cluster.names.half)]
    assert [each.immunity_ms for each in found if each.transaction_id == tx.id] == [60_000]


@on("sqlite")
def test_a_transaction_older_than_any_check(scene: Scene) -> None:
    """It is refused: the daemon has given it up, and rows of its age may be purged."""
    with (
        pytest.raises(FencedError, match="longer than transaction_age_ms_max"),
        scene.block() as (tx, connection),
    ):
        tx.id = new_id(age_ms=259_200_000)
        work(connection, 1)
    assert scene.worked() == []


@pytest.mark.parametrize("has_worked", [False, True])
@on("sqlite")
def test_only_the_block_commits_its_messages(scene: Scene, *, has_worked: bool) -> None:
    """tx.commit() inside is refused, as the database might still roll back."""
    with (
        pytest.raises(IllegalTransitionError, match="only the block commits"),
        scene.block() as (tx, connection),
    ):
        if has_worked:
            work(connection, 1)
        tx.commit()
    assert scene.worked() == []
    assert [kind for kind, _ in scene.decisions(tx.id)] == ["ROLLBACK"]


@on("sqlite")
def test_a_producer_that_is_closed_meanwhile(scene: Scene, cluster: Cluster) -> None:
    """OutcomeUnknownError: the database has committed, so the work must not be repeated."""
    with (
        cluster.producer() as own,
        pytest.raises(OutcomeUnknownError, match="do not repeat the work"),
        scene.fence.transaction(own) as (tx, connection),
    ):
        tx.send(scene.message())
        work(connection, 1)
        own.close()
    assert scene.worked() == [1]
    assert scene.fenced(tx.id) == ("committed", 1)
    assert scene.decisions(tx.id) == []


@pytest.mark.parametrize("sent", [0, 1])
@on("sqlite")
def test_a_refused_send_that_is_swallowed(scene: Scene, sent: int) -> None:
    """The database does not commit without its message, whether it was the only one or not."""
    with (
        pytest.raises(FenceUsageError, match="a send was refused"),
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        for _ in range(sent):
            tx.send(scene.message())
        with suppress(InvalidMessageError):
            tx.send(scene.message(b"x" * 20_000_000))
        work(connection, 1)
    assert scene.worked() == []


@on("sqlite")
def test_a_session_that_is_used_again(scene: Scene) -> None:
    """The end of a block removes its listeners."""
    sessions = scoped_session(sessionmaker(scene.engine))
    for number in (1, 2):
        with scene.block(session_factory=sessions) as (_, session):
            work(session, number)
    sessions.execute(text("SELECT 1"))
    sessions.remove()
    assert scene.worked() == [1, 2]


def _fails(scene: Scene) -> None:
    with suppress(BrokenError), scene.block() as (_, connection):
        work(connection, 1)
        raise BrokenError


def _commits_inside(scene: Scene) -> None:
    with suppress(FenceUsageError), scene.block() as (_, connection):
        work(connection, 2)
        connection.commit()


def _with_session(scene: Scene) -> None:
    with scene.block(session_factory=sessionmaker(scene.engine)) as (_, session):
        work(session, 3)


def _with_connection(scene: Scene) -> None:
    with scene.block() as (_, connection):
        work(connection, 4)


def _without_block(scene: Scene) -> None:
    with scene.producer.begin(context=scene.fence.context()) as tx, scene.engine.begin() as begun:
        tx.send(scene.message())
        scene.fence.enter(begun, tx)
        work(begun, 5)


def _with_inbox(scene: Scene) -> None:
    inbox = Inbox(scene.engine, group_id="billing")
    inbox.create()
    with scene.block() as (_, connection):
        assert inbox.once(connection, delivered(new_id()))
        work(connection, 6)


@pytest.mark.parametrize(
    "runs",
    [_fails, _commits_inside, _with_session, _with_connection, _without_block, _with_inbox],
)
@on("sqlite", "postgresql")
def test_an_ended_block_is_freed(scene: Scene, runs: Callable[[Scene], None]) -> None:
    """Nothing keeps its connection, or a service would grow with each of its transactions."""
    begun: list[ref[Connection]] = []
    event.listen(scene.engine, "begin", lambda connection: begun.append(ref(connection)))
    runs(scene)
    gc.collect()
    assert begun
    assert [each() for each in begun if each() is not None] == []
