"""Statements in MariaDB's log in place of rows: refused, unless they concern other tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import LogSettingsError, UnreadableChangeError
from tests.sql.log_scene import Orders, ids, read_until, reopen

if TYPE_CHECKING:
    from pathlib import Path

    from halfbridge.sql.log_subscription.changes import LogSource

pytestmark = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
FUNCTION = "CREATE FUNCTION fill(a int) RETURNS int DETERMINISTIC MODIFIES SQL DATA BEGIN %s; END"
INTO_ORDERS = "INSERT INTO orders (id) VALUES (NEW.id)"
# What is made before, and the statement in a session whose binlog_format is STATEMENT.
FILLED = {
    "by name": ((), "INSERT INTO orders (id) VALUES (1)"),
    "by a trigger": (
        (f"CREATE TRIGGER t AFTER INSERT ON others FOR EACH ROW {INTO_ORDERS}",),
        "INSERT INTO others VALUES (1)",
    ),
    "by a trigger of a table without transactions": (
        (
            "CREATE TABLE plain (id int) ENGINE = MyISAM",
            f"CREATE TRIGGER t AFTER INSERT ON plain FOR EACH ROW {INTO_ORDERS}",
        ),
        "INSERT INTO plain VALUES (1)",
    ),
    "by a trigger that calls a procedure": (
        (
            "CREATE PROCEDURE put(a int) INSERT INTO orders (id) VALUES (a)",
            "CREATE TRIGGER t AFTER INSERT ON others FOR EACH ROW CALL put(NEW.id)",
        ),
        "INSERT INTO others VALUES (1)",
    ),
    "by a view": (
        ("CREATE VIEW seen AS SELECT id FROM orders",),
        "INSERT INTO seen VALUES (1)",
    ),
    "by a function": (
        (FUNCTION % "INSERT INTO orders (id) VALUES (a); RETURN a",),
        "SELECT fill(1)",
    ),
    "by a procedure": (
        ("CREATE PROCEDURE put(a int) INSERT INTO orders (id) VALUES (a)",),
        "CALL put(1)",
    ),
    "by a function that a new table is filled from": (
        (FUNCTION % "INSERT INTO orders (id) VALUES (a); RETURN a",),
        "CREATE TEMPORARY TABLE made SELECT fill(1) AS id",
    ),
    "as it is made": (
        (),
        "CREATE OR REPLACE TABLE orders (id int primary key) SELECT 1 AS id",
    ),
}


@pytest.fixture
def orders(orders: Orders) -> Orders:
    """A user's table, and another one."""
    orders.execute("CREATE TABLE others (id int primary key)")
    return orders


def by_statement(orders: Orders, *statements: str, schema: bool = True) -> None:
    """Run statements in a session that writes them to the log in place of rows."""
    engine = orders.database.admin_engine(
        isolation_level="AUTOCOMMIT", connect_args={"local_infile": True}
    )
    with engine.connect() as admin:
        admin.execute(text("SET SESSION binlog_format = STATEMENT"))
        if schema:
            admin.execute(text(f"USE {orders.engine.url.database}"))
        for each in statements:
            admin.execute(text(each))


@pytest.mark.parametrize("way", FILLED)
def test_a_statement_that_fills_the_table_stops_the_reader(
    orders: Orders, source: LogSource, way: str
) -> None:
    """Whether it names the table or not: its rows are not in the log, and are never passed over."""
    made, statement = FILLED[way]
    with orders.database.admin_engine().connect() as admin:
        admin.execute(text(f"USE {orders.engine.url.database}"))
        for each in made:
            admin.execute(text(each))
    by_statement(orders, statement)
    with pytest.raises(UnreadableChangeError, match="in place of rows") as caught:
        read_until(source, 1)
    behind = re.search(r"The position after it is (\S+)$", str(caught.value))
    assert behind is not None
    orders.execute("INSERT INTO orders (id) VALUES (9)")
    source.open(Position(behind[1]))  # as an operator may choose
    assert ids(read_until(source, 1)) == [9]


def test_a_file_that_is_loaded_into_the_table_stops_the_reader(
    orders: Orders, source: LogSource, tmp_path: Path
) -> None:
    """LOAD DATA is another event than other statements; into another table it is passed over."""
    path = tmp_path / "rows"
    path.write_text("1\n")
    load = f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE %s (id)"
    by_statement(orders, load % "others")
    orders.insert(2)
    assert ids(read_until(source, 1)) == [2]
    by_statement(orders, load % "orders")
    with pytest.raises(UnreadableChangeError, match=r"in place of rows.*names the table"):
        read_until(source, 1)


def test_statements_that_concern_other_tables_are_passed_over(
    orders: Orders, source: LogSource
) -> None:
    """Other tables, triggers and views that do not lead to the table, and what only reads it.

    A longer name that begins with the table's is another one.
    """
    orders.execute("CREATE TABLE orders_before (id int primary key)")
    schema = orders.engine.url.database
    with orders.database.admin_engine().connect() as admin:
        admin.execute(text(f"USE {schema}"))
        admin.execute(
            text(
                "CREATE TRIGGER t AFTER INSERT ON others FOR EACH ROW "
                "INSERT INTO orders_before VALUES (NEW.id)"
            )
        )
        admin.execute(text("CREATE VIEW seen AS SELECT id FROM others"))
    by_statement(
        orders,
        *("INSERT INTO others VALUES (1)", "INSERT INTO seen VALUES (2)", "DELETE FROM others"),
        "CREATE TABLE copied SELECT id FROM orders",
    )
    by_statement(orders, f"INSERT INTO {schema}.orders_before VALUES (3)", schema=False)
    orders.execute("CREATE TABLE taken SELECT id FROM others")  # rows, behind their CREATE TABLE
    orders.insert(1)
    assert ids(read_until(source, 1)) == [1]


def test_what_the_reader_may_not_see_stops_it_until_it_may(
    orders: Orders, source: LogSource
) -> None:
    """Triggers of a schema are hidden from users without the right; granted, reading goes on."""
    schema, hidden = orders.engine.url.database, f"{orders.engine.url.database}_hidden"
    with orders.database.admin_engine().connect() as admin:
        try:
            admin.execute(text(f"CREATE DATABASE {hidden}"))
            admin.execute(text(f"CREATE TABLE {hidden}.others (id int primary key)"))
            begun = Position(source.read_to)
            by_statement(orders, f"INSERT INTO {hidden}.others VALUES (1)")
            with pytest.raises(UnreadableChangeError, match=f"functions of {hidden}: grant"):
                read_until(source, 1)
            admin.execute(text(f"GRANT TRIGGER, EXECUTE ON {hidden}.* TO service@'127.0.0.1'"))
            orders.insert(1)
            reopen(source, begun)
            assert ids(read_until(source, 1)) == [1]
            made = f"CREATE TRIGGER {hidden}.t AFTER INSERT ON {hidden}.others FOR EACH ROW "
            admin.execute(text(made + f"INSERT INTO {schema}.orders (id) VALUES (NEW.id)"))
            by_statement(orders, f"INSERT INTO {hidden}.others VALUES (2)", schema=False)
            with pytest.raises(UnreadableChangeError, match="others leads to the table"):
                read_until(source, 1)
        finally:
            admin.execute(text(f"DROP DATABASE IF EXISTS {hidden}"))
            admin.execute(text(f"REVOKE TRIGGER, EXECUTE ON {hidden}.* FROM service@'127.0.0.1'"))


def test_what_fills_no_table_needs_no_right(orders: Orders, source: LogSource) -> None:
    """Temporary tables, and what drops or empties tables, in a schema that the reader may not see.

    A session that writes rows leaves such statements in the log, too.
    """
    hidden = f"{orders.engine.url.database}_hidden"
    with orders.database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        try:
            for each in (f"CREATE DATABASE {hidden}", f"USE {hidden}", "CREATE TABLE o (id int)"):
                admin.execute(text(each))
            for form in ("ROW", "MIXED", "STATEMENT"):
                admin.execute(text(f"SET SESSION binlog_format = {form}"))
                for each in (
                    *("BEGIN", "CREATE TEMPORARY TABLE t (id int)", "DROP TEMPORARY TABLE t"),
                    *("COMMIT", "BEGIN", "CREATE TEMPORARY TABLE t (id int)", "ROLLBACK"),
                    *("DROP TEMPORARY TABLE t", "TRUNCATE TABLE o", "ALTER TABLE o ADD c%s int"),
                ):
                    admin.execute(text(each.replace("%s", form.lower())))
            admin.execute(text("DROP TABLE o"))
            orders.insert(1)
            assert ids(read_until(source, 1)) == [1]
            admin.execute(text("CREATE TEMPORARY TABLE t SELECT 1"))
            with pytest.raises(UnreadableChangeError, match=f"functions of {hidden}: grant"):
                read_until(source, 1)
        finally:
            admin.execute(text(f"DROP DATABASE IF EXISTS {hidden}"))


def test_what_is_no_schema_needs_no_right(orders: Orders, source: LogSource) -> None:
    """Numbers and literals have dots too; an alias is asked about, as a schema's name could be."""
    schema = orders.engine.url.database
    orders.execute("CREATE TABLE prices (id int primary key, price decimal(5,2), note text)")
    insert = f"INSERT INTO {schema}.prices VALUES (1, 1.5, 'a@b.example, it''s. so')"
    by_statement(orders, insert)
    orders.insert(1)
    assert ids(read_until(source, 1)) == [1]
    by_statement(orders, "UPDATE prices AS p SET p.price = 2")
    with pytest.raises(UnreadableChangeError, match="triggers and functions of p: grant"):
        read_until(source, 1)


@pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
def test_a_server_that_writes_statements_is_refused(
    orders: Orders, source: LogSource, form: str
) -> None:
    """A relay neither begins nor goes on while the server's own format is another one."""
    begun = Position(source.read_to)
    with orders.database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        try:
            admin.execute(text(f"SET GLOBAL binlog_format = {form}"))
            for begin in (source.begin_now, lambda: source.open(begun)):
                with pytest.raises(LogSettingsError, match=f"binlog_format is {form}.*ROW"):
                    begin()
        finally:
            admin.execute(text("SET GLOBAL binlog_format = ROW"))
