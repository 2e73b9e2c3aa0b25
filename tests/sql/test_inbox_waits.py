"""The inbox under concurrency: a second transaction waits for the end of the first."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, OperationalError

from halfbridge.sql import Inbox
from tests.kit.waiting import until
from tests.sql.databases import Database
from tests.sql.kafka_message import delivered

WAITING = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # Not innodb_trx: it does not change while it is queried more often than each 100 ms.
    "mariadb": "SELECT CAST(variable_value AS INT) FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
    "mysql": "SELECT CAST(variable_value AS SIGNED) FROM performance_schema.global_status"
    " WHERE variable_name = 'Innodb_row_lock_current_waits'",
}
TAKERS = 8
MESSAGES = 40


@pytest.fixture
def engine(database: Database) -> Engine:
    """An engine with a connection for each taker."""
    return database.engine(pool_size=TAKERS)


def take(inbox: Inbox, engine: Engine, index: int = 0) -> bool:
    """Take one message in a transaction."""
    with engine.begin() as connection:
        return inbox.once(connection, delivered(index=index))


@contextmanager
def second(inbox: Inbox, engine: Engine, database: Database) -> Iterator[Future[bool]]:
    """Yield the answer of a second transaction, which waits for the one in flight."""
    with ThreadPoolExecutor(1) as pool, database.admin_engine().connect() as administrator:
        answer = pool.submit(take, inbox, engine)
        query = text(WAITING[database.name])

        def is_waiting() -> bool:
            administrator.rollback()
            return bool(administrator.execute(query).scalar_one())

        until("the second waits", is_waiting)
        yield answer


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_the_second_waits_for_the_first(
    inbox: Inbox, engine: Engine, database: Database, *, commits: bool
) -> None:
    """The second gets False after a commit and True after a rollback, and no answer before."""
    with engine.connect() as first:
        assert inbox.once(first, delivered())
        with second(inbox, engine, database) as answer:
            assert not answer.done()
            if commits:
                first.commit()
            else:
                first.rollback()
            assert answer.result() is not commits
    assert not take(inbox, engine)


@pytest.mark.parametrize(
    "database",
    ["postgresql", "mariadb", pytest.param("mysql", marks=pytest.mark.more)],
    indirect=True,
)
def test_the_second_waits_for_a_first_that_is_gone(
    inbox: Inbox, engine: Engine, database: Database
) -> None:
    """A connection that breaks rolls back: the second one does the work."""
    first = engine.connect()
    assert inbox.once(first, delivered())
    with second(inbox, engine, database) as answer:
        first.invalidate()
        assert answer.result()
    first.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_says_that_it_cannot_say(inbox: Inbox, engine: Engine, database: Database) -> None:
    """SQLite has one lock: a transaction that does not get it in time fails, and can be retried."""
    hasty = database.engine(connect_args={"timeout": 0})
    with engine.connect() as first:
        assert inbox.once(first, delivered())
        with pytest.raises(OperationalError, match="locked"):
            take(inbox, hasty)
        first.rollback()
    assert take(inbox, hasty)
    assert not take(inbox, engine)


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_wait_that_ends_in_vain_decides_nothing(
    inbox: Inbox, engine: Engine, database: Database
) -> None:
    """The lock's time-out is an error; the message can be taken later."""
    limits = {
        "postgresql": "SET LOCAL lock_timeout = 10",
        "mariadb": "SET innodb_lock_wait_timeout = 0",
        "mysql": "SET innodb_lock_wait_timeout = 1",  # the minimum
    }
    with engine.connect() as first, engine.connect() as hasty:
        assert inbox.once(first, delivered())
        hasty.execute(text(limits[database.name]))
        with pytest.raises(OperationalError):
            inbox.once(hasty, delivered())
        hasty.rollback()
        first.rollback()
    assert take(inbox, engine)


def test_of_many_at_once_each_message_has_one(inbox: Inbox, engine: Engine) -> None:
    """Eight takers race for each of 40 messages; some roll back, and deadlocks are retried."""
    start = Barrier(TAKERS)

    def run(number: int) -> list[int]:
        mine = []
        start.wait()
        for index in range(MESSAGES):
            for attempt in range(50):  # a deadlock or a full lock time-out each
                try:
                    with engine.connect() as connection:
                        is_first = inbox.once(connection, delivered(index=index))
                        if is_first and attempt == 0 and (index + number) % 3 == 0:
                            connection.rollback()  # the work has failed: it comes again
                            continue
                        connection.commit()
                except DBAPIError:
                    continue
                mine += [index] * is_first
                break
        return mine

    with ThreadPoolExecutor(TAKERS) as pool:
        found = [index for each in pool.map(run, range(TAKERS)) for index in each]
    assert sorted(found) == list(range(MESSAGES))


def test_many_processes_make_the_table(engine: Engine) -> None:
    """Concurrent calls of `create` succeed, and each caller can use the table."""
    start = Barrier(TAKERS)

    def make(number: int) -> bool:
        inbox = Inbox(engine, group_id=f"group-{number}", name="made_by_many")
        start.wait()
        inbox.create()
        return take(inbox, engine)

    with ThreadPoolExecutor(TAKERS) as pool:
        assert all(pool.map(make, range(TAKERS)))
