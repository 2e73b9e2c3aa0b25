"""fence.transaction with sends after statements, on each database and a real Kafka."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, event, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from halfbridge.bridge import IllegalTransitionError, NoAnswerError, Resolution
from halfbridge.kafka.errors import HalfNotStoredError, InvalidMessageError
from halfbridge.sql import FencedError, FenceUsageError, Outcome, TransactionEndedError
from tests.sql.fence_scene import Scene, on, work

pytestmark = pytest.mark.broker

HELD_BACK = {"linger_ms": 300}  # records wait: none is acknowledged before
JOIN_S_MAX = 30.0
NUMBERED = Table("numbered", MetaData(), Column("id", Integer, primary_key=True))


class BrokenError(Exception):
    """An error that a block raises."""


class Base(DeclarativeBase):
    """The base of the ORM's tables."""


class Placed(Base):
    """A row that the database numbers."""

    __tablename__ = "placed"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.feature
def test_a_message_carries_an_id_that_the_database_made(scene: Scene) -> None:
    """Insert, take the id, send it: both are committed, and the row has the number."""
    NUMBERED.metadata.create_all(scene.truth)
    with scene.fence.transaction(scene.producer) as (tx, connection):
        (number,) = connection.execute(insert(NUMBERED)).inserted_primary_key or ()
        tx.send(scene.message(f"order {number}".encode()))
    scene.check_committed(tx)
    assert scene.context_sent(tx.id) == scene.fence.table_id()
    answer = scene.fence.check(scene.view(tx.id))
    assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 1)


@pytest.mark.feature
def test_sends_before_between_and_after_statements(scene: Scene) -> None:
    """Row and op count all messages; the block waits for each send before COMMIT."""
    assert scene.cluster is not None
    with (
        scene.cluster.producer(**HELD_BACK) as slow,
        scene.fence.transaction(slow) as (tx, connection),
    ):
        futures = [tx.send_async(scene.message())]
        work(connection, 1)
        futures.append(tx.send_async(scene.message()))
        work(connection, 2)
        futures.append(tx.send_async(scene.message()))
        assert not any(each.done() for each in futures)
        event.listen(connection, "commit", lambda _: awaited.append([e.done() for e in futures]))
        awaited: list[list[bool]] = []
    assert awaited == [[True] * 3]
    scene.check_committed(tx, 1, 2, messages=3)


@on("sqlite")
def test_the_number_is_written_only_where_it_differs(scene: Scene) -> None:
    """A block whose sends all come first runs no UPDATE."""
    updates: list[str] = []

    @event.listens_for(scene.engine, "before_cursor_execute")
    def _(*given: Any) -> None:
        updates.extend([given[2]] if given[2].startswith("UPDATE") else [])

    with scene.block() as (_, connection):
        work(connection, 1)
    assert updates == []
    with scene.block() as (tx, connection):
        work(connection, 2)
        tx.send(scene.message())
    assert len(updates) == 1
    scene.check_committed(tx, 1, 2, messages=2)


def test_an_exception_after_a_late_send(scene: Scene) -> None:
    """Neither the statements nor the messages are committed."""
    with pytest.raises(BrokenError), scene.fence.transaction(scene.producer) as (tx, connection):
        work(connection, 1)
        tx.send(scene.message())
        raise BrokenError
    scene.check_rolled_back(tx)


@pytest.mark.feature
def test_a_check_that_meets_the_open_block_gets_no_answer(scene: Scene) -> None:
    """It waits for the row, and never answers ROLLBACK; after COMMIT it answers the number."""
    with (
        ThreadPoolExecutor(1) as pool,
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        work(connection, 1)
        tx.send(scene.message())
        with pytest.raises(NoAnswerError, match=r"(?i)lock"):
            pool.submit(scene.fence.check, scene.view(tx.id)).result(JOIN_S_MAX)
        tx.send(scene.message())
    answer = scene.fence.check(scene.view(tx.id))
    assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 2)
    scene.check_committed(tx, 1, messages=2)


@on("sqlite")
def test_a_check_between_a_send_and_the_first_statement(scene: Scene) -> None:
    """Its rollback is final; messages sent afterwards are rolled back too."""
    with pytest.raises(FencedError), scene.block() as (tx, connection):
        assert scene.fence.check(scene.view(tx.id)).resolution is Resolution.ROLLBACK
        with suppress(FencedError):
            work(connection, 1)
        tx.send(scene.message())
    scene.check_rolled_back(tx, messages=2)


@pytest.mark.feature
@pytest.mark.parametrize("is_async", [True, False])
@on("sqlite")
def test_a_late_send_that_is_not_acknowledged(scene: Scene, *, is_async: bool) -> None:
    """The database rolls back, even if the error is swallowed, or the future is never read."""
    assert scene.cluster is not None
    settings = {"linger_ms": 1_000, "send_timeout_ms": 500}
    with (
        scene.cluster.producer(**settings) as slow,
        pytest.raises(HalfNotStoredError, match="do not commit the local transaction"),
        scene.fence.transaction(slow) as (tx, connection),
    ):
        work(connection, 1)
        if is_async:
            tx.send_async(scene.message())
        else:
            with suppress(HalfNotStoredError):
                tx.send(scene.message(), 0.0)
        work(connection, 2)
    assert scene.worked() == []
    assert scene.fenced(tx.id) == ("rolled_back", 0)
    # Where no broker has answered yet, the block does not wait for the ROLLBACK: a check decides.
    assert scene.decisions(tx.id) in ([], [("ROLLBACK", 1)])


@on("sqlite")
def test_a_refused_late_send_that_is_swallowed(scene: Scene) -> None:
    """The database does not commit without its message."""
    with (
        pytest.raises(FenceUsageError, match="a send was refused"),
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        work(connection, 1)
        with suppress(InvalidMessageError):
            tx.send(scene.message(b"x" * 20_000_000))
    assert scene.worked() == []


@on("sqlite")
@pytest.mark.parametrize("sent", [0, 1])
def test_a_send_while_the_database_commits(scene: Scene, sent: int) -> None:
    """The row has the number already: the send is refused, and so is the commit."""
    with (
        pytest.raises(IllegalTransitionError, match="send before that"),
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        work(connection, 1)
        for _ in range(sent):
            tx.send(scene.message())
        event.listen(connection, "commit", lambda _: tx.send(scene.message()))
    assert scene.worked() == []
    assert scene.decisions(tx.id) == [("ROLLBACK", 1)] * sent


@on("sqlite")
@pytest.mark.parametrize("worked", [(), (1,)])
def test_a_send_after_the_block(scene: Scene, worked: tuple[int, ...]) -> None:
    """It is refused, as it could not be committed, also if the block has sent nothing."""
    with scene.fence.transaction(scene.producer) as (tx, connection):
        for number in worked:
            work(connection, number)
    with pytest.raises(IllegalTransitionError):
        tx.send(scene.message())
    assert scene.worked() == list(worked)


def test_a_listener_of_the_orm_sends(scene: Scene) -> None:
    """The flush at the end of the block comes before the number is written."""
    Base.metadata.create_all(scene.truth)
    with scene.fence.transaction(scene.producer, session_factory=sessionmaker(scene.engine)) as (
        tx,
        session,
    ):

        def send(flushed: Session, _: object) -> None:
            for each in flushed.new:
                tx.send(scene.message(f"order {each.id}".encode()))

        event.listen(session, "after_flush", send)
        session.add_all([Placed(), Placed()])
    scene.check_committed(tx, messages=2)


@on("mariadb", "mysql")
@pytest.mark.parametrize("early", [0, 1])
def test_a_late_send_behind_a_statement_that_commits_by_itself(scene: Scene, early: int) -> None:
    """The committed row has the early number; the op commits all messages of the block."""
    with (
        pytest.raises(TransactionEndedError) as caught,
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        for _ in range(early):
            tx.send(scene.message())
        work(connection, 1)
        connection.execute(text("CREATE TABLE other (number INT)"))
        tx.send(scene.message())
        work(connection, 2)
    assert caught.value.outcome is Outcome.COMMITTED
    assert scene.worked() == [1]
    assert scene.fenced(tx.id) == ("committed", early)
    assert scene.decisions(tx.id) == [("COMMIT", early + 1)]


@on("mariadb", "mysql")
def test_a_block_without_sends_may_commit_by_itself(scene: Scene) -> None:
    """No message depends on its transaction."""
    with scene.fence.transaction(scene.producer) as (_, connection):
        work(connection, 1)
        connection.execute(text("CREATE TABLE other (number INT)"))
        work(connection, 2)
    assert scene.worked() == [1, 2]


@on("mariadb", "mysql", "sqlite")
def test_the_row_is_gone_when_the_number_is_written(scene: Scene) -> None:
    """The database has rolled back, and the code has continued: nothing is committed."""
    with (
        pytest.raises(TransactionEndedError) as caught,
        scene.fence.transaction(scene.producer) as (tx, connection),
    ):
        work(connection, 1)
        connection.execute(text("ROLLBACK"))
        work(connection, 2)
        tx.send(scene.message())
    assert caught.value.outcome is Outcome.ROLLED_BACK
    scene.check_rolled_back(tx)
