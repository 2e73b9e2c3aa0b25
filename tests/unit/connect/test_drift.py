"""Which connectors read a table that has changed since they were made.

SQLite stands for the server: an attached database answers the query that MariaDB is asked.
"""

import pytest
from sqlalchemy import create_engine, text

from halfbridge.checker.admin.doctor.facts import Drift
from halfbridge.connect.drift import find_drifts

MARIADB = "io.debezium.connector.mariadb.MariaDbConnector"
TABLES = (("shop", "orders", "SYSTEM VERSIONED"), ("shop", "refunds", "BASE TABLE"))


def drifts(include: str, connector_class: str = MARIADB) -> list[Drift]:
    """Return the drifts of one connector; the table shop.orders is versioned."""
    config = {"connector.class": connector_class, "table.include.list": include}
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("ATTACH ':memory:' AS information_schema"))
        columns = "table_schema TEXT, table_name TEXT, table_type TEXT"
        connection.execute(text(f"CREATE TABLE information_schema.tables ({columns})"))
        for row in TABLES:
            insert = text("INSERT INTO information_schema.tables VALUES (:a, :b, :c)")
            connection.execute(insert, dict(zip("abc", row, strict=True)))
        return [*find_drifts(connection, {"shop-connector": config})]


@pytest.mark.parametrize(
    "include", [r"shop\.orders", r"shop\.refunds, SHOP\.Orders", r"shop\.(orders|refunds)", ".*"]
)
def test_a_connector_that_reads_the_table_is_named(include: str) -> None:
    """Its list has patterns, separated by commas, of which one matches the whole name."""
    assert drifts(include) == [Drift("shop-connector", "shop.orders")]


@pytest.mark.parametrize(
    "include", ["", r"shop\.refunds", "orders", "shop\\.order", r"x\,shop\.orders"]
)
def test_a_connector_that_does_not_read_the_table_is_not(include: str) -> None:
    """Nor is one whose pattern has a comma of its own, after a backslash."""
    assert drifts(include) == []


def test_a_pattern_that_only_java_understands_matches_nothing() -> None:
    """It is somebody's own, and no error here; the other patterns count."""
    assert drifts(r"\p{Alpha}+(") == []
    assert drifts(r"\p{Alpha}+(,shop\.orders") == [Drift("shop-connector", "shop.orders")]


def test_connectors_of_other_databases_are_left_out() -> None:
    """A PostgreSQL connector does not read MariaDB's tables, whatever its list says."""
    assert drifts(".*", "io.debezium.connector.postgresql.PostgresConnector") == []
    assert drifts(".*", "io.debezium.connector.mysql.MySqlConnector")
