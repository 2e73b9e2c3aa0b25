"""The connections of a relay that runs by itself. No Kafka."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import text

from halfbridge.sql import Fence
from halfbridge.sql.engines import engine_of
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.relay import Relay
from halfbridge.sql.local_messages.writer import LocalMessages

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.sql.databases import Database

_NUMBERS = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT connection_id()"}
_KILLS = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}


def number_of(engine: Engine, name: str) -> int:
    """Return the database's number of the connection that a use has."""
    with engine.connect() as connection:
        return int(connection.execute(text(_NUMBERS[name])).scalar_one())


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_command_that_runs_on_keeps_connections_that_live(database: Database) -> None:
    """The same one for each use; another one, without an error, once that one has died."""
    engine = engine_of(database.url, keeps_connections=True)
    try:
        number = number_of(engine, database.name)
        assert number_of(engine, database.name) == number
        with database.admin_engine().connect() as admin:
            admin.execute(text(_KILLS[database.name].format(number)))
        assert number_of(engine, database.name) != number
    finally:
        engine.dispose()


@pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
def test_a_relay_ends_in_order_though_its_connection_died(database: Database) -> None:
    """Whichever layer raises: the leases run out, and nothing is raised."""
    engine = database.engine(pool_size=1, max_overflow=0)
    messages = LocalMessages(engine)
    messages.create()
    fence = Fence(engine, producer_group="relay")
    no_producer = cast("Any", None)  # none is needed without rows
    with closing(Relay(messages, fence, no_producer, RelayConfig())) as relay:
        number = number_of(relay.engine, database.name)
        with database.admin_engine().connect() as admin:
            admin.execute(text(_KILLS[database.name].format(number)))
