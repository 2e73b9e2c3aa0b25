"""What a guarded connection refuses to commit, and in which order its guards are asked."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from halfbridge.sql.dialects import database_of
from halfbridge.sql.errors import FenceUsageError, InboxUsageError
from halfbridge.sql.guards import commits_fence_row, guard_of, mark_guard_of, reached_driver

MARKS = Table(
    "marks",
    MetaData(),
    Column("group_id", String, primary_key=True),
    Column("transaction_id", String, primary_key=True),
    Column("message_index", Integer, primary_key=True),
)
MARK = ("billing", "0" * 32, 0)
DATABASE = database_of("sqlite")


@pytest.fixture
def connection() -> Iterator[Connection]:
    """Yield a connection of a database in memory that has a table of marks."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    MARKS.create(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def insert(connection: Connection) -> None:
    """Insert the mark, and have it guarded."""
    connection.execute(MARKS.insert().values(MARK))
    mark_guard_of(connection).add(MARKS, MARK)


def count(connection: Connection) -> int:
    return len(connection.execute(MARKS.select()).all())


def test_a_connection_has_one_guard_of_each_kind(connection: Connection) -> None:
    """Whoever asks, and however often."""
    assert guard_of(connection, DATABASE) is guard_of(connection, DATABASE)
    assert mark_guard_of(connection) is mark_guard_of(connection)


def test_an_armed_guard_refuses_the_commit_until_it_may_pass(connection: Connection) -> None:
    """A transaction whose fence row was not written is rolled back, and the next one is free."""
    guard = guard_of(connection, DATABASE)
    insert(connection)
    guard.arm(connection, "an id")
    with pytest.raises(FenceUsageError, match="the fence row was not written"):
        connection.commit()
    assert (guard.is_commit_sent, reached_driver(guard.refused or AssertionError())) == (False,) * 2
    connection.rollback()
    assert count(connection) == 0
    insert(connection)
    connection.commit()
    assert (count(connection), commits_fence_row(connection)) == (1, False)


def test_what_waits_for_the_commit_is_called_when_it_goes_out(connection: Connection) -> None:
    """And is forgotten after a rollback; test_fence_enter has COMMITs that fail."""
    guard, sent = guard_of(connection, DATABASE), []
    connection.begin()
    guard.arm(connection, "an id")
    guard.pass_with(None)
    guard.follow(connection, lambda is_sent: sent.append(("rolled back", is_sent)))
    connection.rollback()
    connection.begin()
    guard.arm(connection, "an id")
    guard.pass_with(None)
    guard.follow(connection, lambda is_sent: sent.append(("committed", is_sent)))
    assert (sent, guard.is_commit_sent) == ([], False)
    connection.commit()
    assert (sent, guard.is_commit_sent) == ([("committed", True)], True)


@pytest.mark.parametrize("is_fence_first", [False, True])
def test_marks_are_checked_before_the_fence_lets_commit_go_out(
    connection: Connection, is_fence_first: bool
) -> None:
    """A lost mark refuses the commit, whichever guard was made first; COMMIT was not sent then."""
    sent: list[bool] = []
    for makes_fence in (is_fence_first, not is_fence_first):
        if makes_fence:
            guard_of(connection, DATABASE)
        else:
            mark_guard_of(connection)
    guard = guard_of(connection, DATABASE)
    insert(connection)
    guard.arm(connection, "an id")
    guard.pass_with(None)
    guard.follow(connection, sent.append)
    connection.execute(MARKS.delete())  # as a database that rolls back by itself
    with pytest.raises(InboxUsageError, match="1 of 1 marks"):
        connection.commit()
    assert (sent, guard.is_commit_sent) == ([], False)


def test_a_mark_below_a_savepoint_goes_with_it(connection: Connection) -> None:
    """The code has rolled it back itself: the commit is allowed."""
    insert(connection)
    with connection.begin_nested() as savepoint:
        mark_guard_of(connection).add(MARKS, ("billing", "1" * 32, 0))
        savepoint.rollback()
    connection.commit()
    assert count(connection) == 1


def test_a_commit_that_fails_in_the_driver_has_reached_it(connection: Connection) -> None:
    """One that another listener refuses has not: its outcome is known."""

    def do_commit(_connection: object) -> None:
        raise OperationalError("COMMIT", None, RuntimeError("gone"))

    def refuse(_connection: object) -> None:
        raise ValueError

    connection.begin()
    event.listen(connection, "commit", refuse)
    with pytest.raises(ValueError) as refused:  # noqa: PT011  (the application's own)
        connection.commit()
    assert not reached_driver(refused.value)
    event.remove(connection, "commit", refuse)
    connection.rollback()
    connection.dialect.do_commit = do_commit  # type: ignore[method-assign]  # (a driver that fails)
    connection.begin()
    with pytest.raises(OperationalError) as lost:
        connection.commit()
    assert reached_driver(lost.value)
