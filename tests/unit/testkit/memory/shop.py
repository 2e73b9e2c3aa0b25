"""A service as users have them: orders in a SQLite file, messages about them, and a fence."""

from pathlib import Path

from sqlalchemy import create_engine, text

from halfbridge import Message, TransactionProducer
from halfbridge.serde.topics import PAIRS
from halfbridge.sql import Fence
from halfbridge.testkit.memory import MemoryStack

GROUP = "order-service"
TOPIC = "orders"
KEY = b"customer-42"
_INSERT = text("INSERT INTO placed VALUES (:what)")


class Shop:
    """Places orders.

    Args:
        path: Of its database; made.
    """

    def __init__(self, path: Path) -> None:
        self.engine = create_engine(f"sqlite:///{path}")
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE placed (what TEXT)"))
        self.fence = Fence(self.engine, producer_group=GROUP)
        self.fence.create()

    def place(self, producer: TransactionProducer, what: str) -> None:
        with self.fence.transaction(producer) as (tx, connection):
            tx.send(Message(TOPIC, key=KEY, value=what.encode()))
            connection.execute(_INSERT, {"what": what})

    def placed(self) -> list[bytes]:
        return [each.encode() for each in self._column("SELECT what FROM placed")]

    def fence_rows(self) -> list[str]:
        return self._column("SELECT outcome FROM halfbridge_fence WHERE producer_group <> ''")

    def close(self) -> None:
        self.engine.dispose()

    def _column(self, query: str) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query)).scalars())


def go_away(stack: MemoryStack, topic: str) -> None:
    """Have no broker answer for the partitions of an internal topic."""
    for place in _places(topic):
        stack.machine.broker.go_away(place, is_leaderless=False)


def come_back(stack: MemoryStack, topic: str) -> None:
    """Have the brokers answer again."""
    for place in _places(topic):
        stack.machine.broker.come_back(place)


def _places(topic: str) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(PAIRS)]
