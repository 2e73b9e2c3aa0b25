"""The row of a subscription that is begun: beside another relay, and from a slow snapshot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.bridge import Message
from halfbridge.sql.bounds import Bounds
from halfbridge.sql.engines import engine_of
from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import PositionTakenError
from halfbridge.sql.log_subscription.positions import Positions
from tests.kit.waiting import until
from tests.sql.log_scene import KINDS, NAME
from tests.sql.test_inbox_waits import WAITING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sql.databases import Database


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_a_relay_that_moved_meanwhile_is_held_off(database: Database) -> None:
    """A claim that commits while the row is begun anew gives no right to the next claim."""
    positions = Positions(database.engine(), owner="test")
    positions.create()
    before = positions.begin(NAME, Position("1"), producer_group="g")
    with (
        ThreadPoolExecutor(1) as pool,
        database.admin_engine(isolation_level="AUTOCOMMIT").connect() as administrator,
    ):
        with positions.claiming() as connection:
            moved = positions.claim(connection, NAME, before, before)
            begun = pool.submit(positions.begin, NAME, Position("2"), producer_group="g")
            until("it waits", lambda: administrator.scalar(text(WAITING[database.name])))
            connection.commit()
        assert begun.result().version > moved.version
    with pytest.raises(PositionTakenError):
        positions.move(NAME, moved, moved)


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_a_snapshot_may_think_for_longer_than_a_transaction_may_idle(database: Database) -> None:
    """The first row may need a sort of the table; the server does not end the staging meanwhile."""
    idle_s = 1
    engine = engine_of(database.url, bounds=Bounds(idle_transaction_s=idle_s))
    positions = Positions(engine, owner="test")
    positions.create()

    def sorted_rows() -> Iterator[Message]:
        Event().wait(2 * idle_s)  # what the server would have ended is silent for so long
        for number in range(3):
            yield Message("t", value=b"%d" % number)

    try:
        positions.begin(NAME, Position("1"), sorted_rows(), producer_group="g")
        assert [number for number, _ in positions.staged(NAME, 0, 10)] == [1, 2, 3]
    finally:
        engine.dispose()
