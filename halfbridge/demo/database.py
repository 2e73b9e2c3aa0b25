"""The order service's database: SQLite, with one row for each order that was placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, insert

from halfbridge.sql import Fence

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

_LOCK_WAIT_S = 30.0  # many transactions wait for the one writer of SQLite
_POOL = 16  # one connection for each thread that places orders
_ORDERS = Table(
    "orders",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("customer", String, nullable=False),
    Column("transaction_id", String, nullable=False, unique=True),
)


class OrderDatabase:
    """The table of placed orders, and the fence in the same database. Thread-safe.

    Args:
        path: The database file, shared by a killed service and its successor.
        producer_group: The fence's group.

    Attributes:
        engine: The SQLAlchemy engine.
        fence: The fence, in the same file.
    """

    def __init__(self, path: Path, *, producer_group: str) -> None:
        self.engine = create_engine(
            f"sqlite:///{path}", pool_size=_POOL, connect_args={"timeout": _LOCK_WAIT_S}
        )
        event.listen(self.engine, "connect", _write_ahead)
        _ORDERS.metadata.create_all(self.engine)
        self.fence = Fence(self.engine, producer_group=producer_group)
        self.fence.create()

    def close(self) -> None:
        """Close the file."""
        self.engine.dispose()

    def place(
        self, connection: Connection, number: int, *, customer: str, transaction_id: str
    ) -> None:
        """Insert an order into the open transaction."""
        order = {"number": number, "customer": customer, "transaction_id": transaction_id}
        connection.execute(insert(_ORDERS).values(**order))


def _write_ahead(driver: Any, _: Any) -> None:
    driver.execute("PRAGMA journal_mode=WAL")
