"""A log subscription whose database server is killed."""

from __future__ import annotations

from contextlib import closing
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from tests.sql.log_relay import Relayed, relaying
from tests.sql.log_scene import Orders

if TYPE_CHECKING:
    from halfbridge.testkit.own_topics import OwnTopics
    from halfbridge.testkit.stack import HalfbridgeStack
    from tests.sql.databases import OwnDatabase

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    "kills", [pytest.param(1, id="short"), pytest.param(8, id="long", marks=pytest.mark.long)]
)
def test_a_killed_server_loses_and_doubles_nothing(
    own_database: OwnDatabase,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    kills: int,
) -> None:
    """Killed under writers and restarted, each row of the table comes once, in order of commits."""
    stop, fresh = Event(), Event()
    with closing(Orders(own_database)) as orders:
        relayed = Relayed(orders, halfbridge_stack, halfbridge_topics.create("orders"))

        def write() -> None:
            number = 0
            while not stop.wait(0.005):
                try:
                    orders.insert(number, number + 1)
                except DBAPIError:  # the server is away; the outcome may be unknown
                    stop.wait(0.1)
                else:
                    fresh.set()
                number += 2

        writer = Thread(target=write)
        with relaying(**{**relayed.given, "begin_at": "snapshot"}) as relay:
            writer.start()
            try:
                for _ in range(kills):
                    before = relay.progress.messages
                    while relay.progress.messages < before + 20:
                        assert not relay.ended.wait(0.01)
                    own_database.kill()
                    own_database.restart()
                    fresh.clear()
                    assert fresh.wait(60)
            finally:
                stop.set()
                writer.join()
            with orders.engine.connect() as connection:
                rows = list(connection.scalars(select(orders.table.c.id).order_by("id")))
            assert relayed.delivered(len(rows)) == rows
        assert relayed.settled() == rows
