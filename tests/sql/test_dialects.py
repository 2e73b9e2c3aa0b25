"""What differs between databases, as far as the fence's tests do not show it."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from halfbridge.sql.dialects.base import connected
from halfbridge.sql.fence_table import FenceTable
from tests.sql.databases import Database, killed_at_return


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_connection_lost_in_the_pool_is_told_as_any_other(database: Database) -> None:
    """Setting the level of a dead connection raises SQLAlchemy's error; the next one is fresh."""
    engine = database.engine(pool_size=1)
    with engine.connect() as connection:
        number = connection.scalar(text("SELECT connection_id()"))
    with database.admin_engine().connect() as admin:
        admin.execute(text(f"KILL {number}"))
    with pytest.raises(DBAPIError) as raised, connected(engine, "READ COMMITTED"):
        pytest.fail("the level was set on a dead connection")
    assert raised.value.connection_invalidated
    with connected(engine, "READ COMMITTED") as connection:
        assert connection.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("database", ["mariadb", "mysql"], indirect=True)
def test_a_connection_lost_at_its_return_costs_nothing(database: Database) -> None:
    """What was read stands, the pool keeps its only place, and the next connection is fresh."""
    engine = database.engine(pool_size=1, max_overflow=0, pool_timeout=1)
    fences = FenceTable(engine)
    fences.create()
    expected = fences.report()
    with killed_at_return(engine, database) as killed:
        assert fences.report() == expected
    assert killed.is_set()
    assert fences.report() == expected
