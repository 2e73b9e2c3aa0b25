"""A user's table and its log, for tests of log subscriptions."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, LargeBinary, MetaData, String, Table, text

from halfbridge.sql.log_subscription.errors import LogUnavailableError
from halfbridge.sql.log_subscription.sources import log_source
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Engine

    from halfbridge.sql.log_subscription.changes import Insert, LogSource, Position
    from tests.sql.databases import Database

PATIENCE_S = 30.0
KINDS = ["postgresql", "mariadb"]
NAME = "orders_relay"


class Orders:
    """A table of orders in a database, and sources of its log."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.engine: Engine = database.engine()
        self.table = Table(
            "orders",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("customer", String(40)),
            Column("body", LargeBinary(10_000_000)),
        )
        if database.name == "mariadb":
            make_durable(database)
        self.table.metadata.create_all(self.engine)
        self._sources: list[LogSource] = []

    def insert(self, *ids: int) -> None:
        """Insert orders in one database transaction."""
        with self.engine.begin() as connection:
            for each in ids:
                connection.execute(self.table.insert(), self.row(each))

    def row(self, number: int) -> dict[str, Any]:
        """Return the columns of an order."""
        return {"id": number, "customer": f"c{number % 5}", "body": b"%d" % number}

    def source(self) -> LogSource:
        """Return a new source of the log; `close` closes it."""
        made = log_source(self.engine, name=NAME, table="orders")
        self._sources.append(made)
        return made

    def execute(self, *statements: str) -> None:
        """Run statements, each in a database transaction of its own."""
        for statement in statements:
            with self.engine.begin() as connection:
                connection.execute(text(statement))

    def close(self) -> None:
        """Close all sources, so that the database can be dropped."""
        for each in self._sources:
            each.close()


def make_durable(database: Database) -> None:
    """Set the shared MariaDB server as a log that may be read must be."""
    with database.admin_engine().connect() as connection:
        connection.execute(text("SET GLOBAL sync_binlog = 1"))


def reopen(source: LogSource, position: Position) -> None:
    """Open a source anew; PostgreSQL frees a slot only once it has seen the old stream end."""

    def is_open() -> bool:
        try:
            source.open(position)
        except LogUnavailableError:
            return False
        return True

    until("the slot is free", is_open)


def read_until(source: LogSource, count: int) -> list[Insert]:
    """Return the next `count` inserts of an open source; fails after PATIENCE_S."""
    found: list[Insert] = []
    deadline_s = monotonic() + PATIENCE_S
    while len(found) < count:
        assert monotonic() < deadline_s, f"only {len(found)} of {count} inserts came"
        found += source.read(count - len(found), 1.0)
    return found


def ids(inserts: list[Insert] | tuple[Insert, ...]) -> list[int]:
    """Return the orders' numbers."""
    return [number(each.values) for each in inserts]


def number(values: Mapping[str, Any]) -> int:
    """Return the number of an order in its row."""
    return int(values["id"])


def endings(kind: str) -> tuple[str, str]:
    """Return what lists the server's processes that send a log, and what ends one of them."""
    if kind == "mariadb":
        query = "SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"
        return query, "KILL %d"
    query = (
        "SELECT active_pid FROM pg_replication_slots WHERE active AND database = current_database()"
    )
    return query, "SELECT pg_terminate_backend(%d)"
