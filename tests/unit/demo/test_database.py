"""The order service's database answers checks by what was really committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.demo.database import OrderDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the database is."""
    return tmp_path / "orders.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[OrderDatabase]:
    """Return an empty database."""
    opened = OrderDatabase(path)
    yield opened
    opened.close()


def test_placed_order_is_found_by_a_successor(path: Path, database: OrderDatabase) -> None:
    """A committed order is there for another process's connection."""
    database.place(1, customer="c", transaction_id="t")
    successor = OrderDatabase(path)

    assert successor.is_placed("t")
    successor.close()


def test_order_that_fails_before_its_commit_is_not_there(database: OrderDatabase) -> None:
    """What raises before the commit rolls the order back."""

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        database.place(1, customer="c", transaction_id="t", before_commit=fail)

    assert not database.is_placed("t")
