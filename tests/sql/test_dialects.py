"""What differs between databases, as far as the fence's tests do not show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from halfbridge.sql.dialects import set_isolation

if TYPE_CHECKING:
    from tests.sql.databases import Database


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_connection_lost_in_the_pool_is_told_as_any_other(database: Database) -> None:
    """Setting the level of a dead connection raises SQLAlchemy's error; the next one is fresh."""
    engine = database.engine(pool_size=1)
    with engine.connect() as connection:
        number = connection.scalar(text("SELECT connection_id()"))
    with database.admin_engine().connect() as admin:
        admin.execute(text(f"KILL {number}"))
    with engine.connect() as connection, pytest.raises(DBAPIError) as raised:
        set_isolation(connection, "READ COMMITTED")
    assert raised.value.connection_invalidated
    with engine.connect() as connection:
        set_isolation(connection, "READ COMMITTED")
        assert connection.scalar(text("SELECT 1")) == 1
