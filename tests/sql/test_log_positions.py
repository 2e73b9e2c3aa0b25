"""The row of a subscription that is begun anew while another relay moves it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import PositionTakenError
from halfbridge.sql.log_subscription.positions import Positions
from tests.integration.waiting import until
from tests.sql.log_scene import KINDS, NAME
from tests.sql.test_inbox_waits import WAITING

if TYPE_CHECKING:
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
