"""A block within a block of a blocking fence, without Kafka."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from halfbridge import Message
from halfbridge.sql import Fence, FenceUsageError
from halfbridge.testkit.memory import MemoryStack

GROUP = "order-service"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    yield made
    made.dispose()


def test_a_session_serves_one_block_at_a_time(engine: Engine) -> None:
    """An inner block, and one on a session that has begun, are refused; nothing is committed."""
    fence = Fence(engine, producer_group=GROUP)
    fence.create()
    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        with stack.producer(GROUP, checker=fence.check) as producer, Session(engine) as session:

            def given() -> Session:
                return session

            with (
                pytest.raises(FenceUsageError, match="session"),
                fence.transaction(producer, session_factory=given) as (tx, outer),
            ):
                tx.send(Message(topic, value=b"outer"))
                outer.connection().exec_driver_sql("CREATE TABLE placed (what TEXT)")
                with fence.transaction(producer, session_factory=given):
                    raise AssertionError("the inner block must not run")
            session.begin()
            with (
                pytest.raises(FenceUsageError, match="session"),
                fence.transaction(producer, session_factory=given),
            ):
                raise AssertionError("the block must not run")
            session.rollback()
            stack.wait_until_decided()
            assert stack.read_committed(topic) == []
        with engine.connect() as connection:
            assert not engine.dialect.has_table(connection, "placed")
