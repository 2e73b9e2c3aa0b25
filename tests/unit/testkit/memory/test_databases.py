"""Database connections of code that dies."""

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import StaticPool

from halfbridge import Message, Resolution
from halfbridge.testkit.memory import MemoryStack, Step

TOPIC = "orders"


@pytest.fixture
def engine() -> Engine:
    """A database in memory, with one connection and one table."""
    made = create_engine("sqlite://", poolclass=StaticPool)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE placed (what TEXT)"))
    return made


def test_a_database_in_memory_outlives_its_client(engine: Engine) -> None:
    """To close its one connection would delete it: it is rolled back in place of that."""
    with MemoryStack() as stack:
        stack.create_topic(TOPIC)
        with (
            stack.producer("g", checker=lambda _: Resolution.UNKNOWN) as producer,
            stack.crash_at(Step.BEFORE_LOCAL_COMMIT),
            engine.begin() as connection,
            producer.begin() as tx,
        ):
            tx.send(Message(TOPIC, value=b"two shirts"))
            connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
            stack.mark(Step.BEFORE_LOCAL_COMMIT)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM placed")).scalar() == 0
    engine.dispose()


def test_a_plain_commit_is_not_the_step(engine: Engine) -> None:
    """Reads and writes without a fence row are nobody's local transaction."""
    with MemoryStack() as stack:
        stack.create_topic(TOPIC)
        with stack.producer("g", checker=lambda _: Resolution.UNKNOWN) as producer:
            crash = stack.crash_at(Step.AFTER_LOCAL_COMMIT)
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
            with producer.begin() as tx:
                tx.send(Message(TOPIC, value=b"two shirts"))
            assert crash.process is None
    engine.dispose()


def test_nothing_is_watched_after_the_stack(engine: Engine) -> None:
    """An engine's events are its own again."""
    with MemoryStack() as stack:
        stack.crash_at(Step.AFTER_LOCAL_COMMIT)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
    engine.dispose()
