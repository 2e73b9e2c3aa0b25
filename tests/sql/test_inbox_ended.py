"""The inbox after a database transaction has ended without the caller."""

from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from halfbridge.sql import Inbox, InboxUsageError
from halfbridge.sql.dialects.base import roll_back_below
from tests.sql.databases import Database
from tests.sql.fence_scene import on
from tests.sql.kafka_message import delivered

HEAVY = 1_000  # rows that one transaction of a deadlock has changed, for it to win
WORK = Table("work", MetaData(), Column("number", Integer, primary_key=True), mysql_engine="InnoDB")


@pytest.fixture
def engine(database: Database) -> Engine:
    """An engine with one connection, so that the next transaction meets what one leaves behind."""
    made = database.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    WORK.create(made)
    return made


def work(connection: Connection | Session, number: int) -> None:
    """Do a piece of work."""
    connection.execute(insert(WORK).values(number=number))


def done(database: Database) -> list[int]:
    """Return the committed work."""
    with database.engine().connect() as connection:
        return sorted(connection.execute(select(WORK.c.number)).scalars())


def check_untaken(inbox: Inbox, engine: Engine, database: Database) -> None:
    """Check that nothing is committed, and that the message can be taken on the same connection."""
    assert done(database) == []
    with engine.begin() as connection:
        assert inbox.once(connection, delivered())
        work(connection, 9)
    assert done(database) == [9]


def deadlock(connection: Connection | Session, database: Database) -> None:
    """Lose a deadlock, which rolls all of the transaction back, and swallow it."""
    with database.engine().begin() as other:
        other.execute(insert(WORK), [{"number": number} for number in range(100, 100 + HEAVY)])
    work(connection, 50)
    with database.engine().connect() as rival:
        # The rival has more changes, so it wins; it waits for row 50, the caller then for its rows.
        rival.execute(text("SET SESSION innodb_lock_wait_timeout = 30"))
        rival.execute(text("UPDATE work SET number = number + 10000 WHERE number >= 100"))
        waiting: Any = rival.connection.dbapi_connection
        waiting._execute_command(3, "UPDATE work SET number = 51 WHERE number = 50")  # COM_QUERY
        with pytest.raises(DBAPIError, match="1213"):
            connection.execute(text("UPDATE work SET number = 7 WHERE number >= 100"))
        waiting._read_query_result()
        rival.execute(text("DELETE FROM work"))
        rival.commit()


@on("mariadb", "mysql")
@pytest.mark.parametrize("messages", [1, 150])
def test_a_deadlock_that_is_swallowed(
    inbox: Inbox, engine: Engine, database: Database, messages: int
) -> None:
    """MariaDB has rolled the mark back too, so COMMIT of the later work is refused."""
    with engine.connect() as connection:
        for index in range(messages):
            assert inbox.once(connection, delivered(index=index))
        deadlock(connection, database)
        work(connection, 3)
        assert inbox.once(connection, delivered(index=1_000))
        with pytest.raises(InboxUsageError, match=f"{messages} of .*let the error end"):
            connection.commit()
    check_untaken(inbox, engine, database)


@on("mariadb", "mysql")
def test_a_deadlock_that_a_session_swallows(
    inbox: Inbox, engine: Engine, database: Database
) -> None:
    """The same for a session."""
    with Session(engine) as session:
        assert inbox.once(session, delivered())
        deadlock(session, database)
        work(session, 3)
        with pytest.raises(InboxUsageError, match="let the error end"):
            session.commit()
    check_untaken(inbox, engine, database)


@on("postgresql")
def test_an_error_that_is_swallowed(inbox: Inbox, engine: Engine, database: Database) -> None:
    """PostgreSQL would answer COMMIT with a rollback and no error; the mark is read first."""
    with engine.connect() as connection:
        assert inbox.once(connection, delivered())
        work(connection, 1)
        with pytest.raises(DBAPIError):
            work(connection, 1)
        with pytest.raises(DBAPIError, match="current transaction is aborted"):
            connection.commit()
    check_untaken(inbox, engine, database)


@on("sqlite")
def test_a_conflict_that_rolls_back(inbox: Inbox, engine: Engine, database: Database) -> None:
    """SQLite's OR ROLLBACK ends the transaction; COMMIT of the next one is refused."""
    with engine.connect() as connection:
        assert inbox.once(connection, delivered())
        work(connection, 1)
        with pytest.raises(DBAPIError):
            connection.execute(text("INSERT OR ROLLBACK INTO work VALUES (1)"))
        work(connection, 3)
        with pytest.raises(InboxUsageError, match="let the error end"):
            connection.commit()
    check_untaken(inbox, engine, database)


@on("mariadb", "mysql")
def test_a_statement_that_commits_by_itself(
    inbox: Inbox, engine: Engine, database: Database
) -> None:
    """The mark is committed with the earlier work; later work is committed by itself, or not."""
    with engine.begin() as connection:
        assert inbox.once(connection, delivered())
        work(connection, 1)
        connection.execute(text("CREATE TABLE another (number INTEGER)"))
        assert done(database) == [1]
        work(connection, 2)
    assert done(database) == [1, 2]
    with engine.begin() as connection:
        assert not inbox.once(connection, delivered())
        assert inbox.once(connection, delivered(index=1))
        connection.execute(text("CREATE TABLE one_more (number INTEGER)"))
        work(connection, 3)
        connection.rollback()
    assert done(database) == [1, 2]
    with engine.begin() as connection:
        assert not inbox.once(connection, delivered(index=1))  # though 3 was never done


def test_a_commit_that_somebody_else_refuses(
    inbox: Inbox, engine: Engine, database: Database
) -> None:
    """SQLAlchemy has no event of its end; the next transaction is not checked for its marks."""

    def refuse(_: Connection) -> None:
        raise RuntimeError("refused")

    with engine.connect() as connection:
        event.listen(connection, "commit", refuse)
        assert inbox.once(connection, delivered())
        with pytest.raises(RuntimeError, match="refused"):
            connection.commit()
        event.remove(connection, "commit", refuse)
        roll_back_below(connection)
        connection.rollback()
        work(connection, 1)
        connection.commit()
    assert done(database) == [1]


def test_savepoints_take_their_marks_back(inbox: Inbox, engine: Engine, database: Database) -> None:
    """Marks of a rolled back savepoint can be taken again, and COMMIT is not refused."""
    with engine.begin() as connection:
        early = connection.begin_nested()
        assert inbox.once(connection, delivered())
        early.rollback()
        assert inbox.once(connection, delivered(index=1))
        late = connection.begin_nested()
        assert inbox.once(connection, delivered(index=2))
        late.rollback()
        kept = connection.begin_nested()
        assert inbox.once(connection, delivered(index=3))
        kept.commit()
        work(connection, 1)
    assert done(database) == [1]
    with engine.connect() as connection:
        taken = [inbox.once(connection, delivered(index=index)) for index in range(4)]
        connection.rollback()
        assert taken == [True, False, True, False]
        assert inbox.once(connection, delivered())
        connection.rollback()
        work(connection, 2)
        connection.commit()  # no check for marks that were rolled back
    assert done(database) == [1, 2]
