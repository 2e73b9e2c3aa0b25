"""The order service's database: orders and their fence in one file."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from halfbridge.demo.database import _ORDERS, OrderDatabase

if TYPE_CHECKING:
    from pathlib import Path


def opened(path: Path) -> closing[OrderDatabase]:
    """Return the database of a service, its successor's too."""
    return closing(OrderDatabase(path / "orders.sqlite", producer_group="g"))


def test_placed_order_is_found_by_a_successor(tmp_path: Path) -> None:
    """A committed order is there for another process's connection, under the same fence."""
    with opened(tmp_path) as database, opened(tmp_path) as successor:
        with database.engine.begin() as connection:
            database.place(connection, 1, customer="c", transaction_id="t")
        with successor.engine.connect() as connection:
            assert connection.execute(select(_ORDERS.c.transaction_id)).scalar_one() == "t"
        assert successor.fence.table_id() == database.fence.table_id()


def test_order_that_fails_before_its_commit_is_not_there(tmp_path: Path) -> None:
    """What raises before the commit rolls the order back."""

    def fail(database: OrderDatabase) -> None:
        with database.engine.begin() as connection:
            database.place(connection, 1, customer="c", transaction_id="t")
            raise RuntimeError

    with opened(tmp_path) as database:
        with pytest.raises(RuntimeError):
            fail(database)
        with database.engine.connect() as connection:
            assert connection.execute(select(_ORDERS)).all() == []
