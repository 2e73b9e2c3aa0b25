"""The tests of a user's service: with the plugin that the wheel brings, and a database."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from halfbridge import Message
from halfbridge.sql import Fence
from halfbridge.testkit.memory import MemoryStack, Step


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """The service's database."""
    made = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE placed (what TEXT)"))
    yield made
    made.dispose()


@pytest.mark.parametrize("step", Step)
def test_row_and_message_or_neither(
    halfbridge_memory: MemoryStack, engine: Any, step: Step
) -> None:
    """Wherever the service dies, a consumer reads what the database has."""
    stack, fence = halfbridge_memory, Fence(engine, producer_group="order-service")
    fence.create()
    topic = stack.create_topic("orders")
    producer = stack.producer("order-service", checker=fence.check)
    with stack.crash_at(step), producer, fence.transaction(producer) as (tx, connection):
        tx.send(Message(topic, key=b"customer-42", value=b"two shirts"))
        connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
    stack.restart()
    stack.wait_until_decided()
    with engine.connect() as connection:
        placed = list(connection.execute(text("SELECT what FROM placed")).scalars())
    assert [each.value.decode() for each in stack.read_committed(topic)] == placed
    assert stack.dead_letters() == []
