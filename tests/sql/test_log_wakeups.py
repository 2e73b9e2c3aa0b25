"""The log as what wakes a relay of the local message table."""

from __future__ import annotations

from contextlib import closing
from queue import Queue
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import NullPool, select, text

from halfbridge.sql.log_subscription import pg_wire, wakeups
from halfbridge.sql.log_subscription.errors import LogSettingsError, LogUnavailableError
from halfbridge.sql.log_subscription.wakeups import LogListener
from tests.kit.waiting import until
from tests.sql.log_scene import KINDS, PATIENCE_S, Orders, endings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sql.databases import Database


class Looks:
    """A relay that looks at the table when it is woken, and tells what is new."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._seen: set[int] = set()
        self.news: Queue[set[int]] = Queue()
        self.listener = LogListener(orders.engine, table="orders", wake=self._look)

    def _look(self) -> None:
        with self._orders.engine.connect() as connection:
            found = set(connection.scalars(select(self._orders.table.c.id)))
        if found - self._seen:
            self.news.put(found - self._seen)
        self._seen |= found

    def wait_for(self, *numbers: int) -> None:
        """Return when these orders were seen; nobody looks but who is woken."""
        missing = set(numbers)
        while missing:
            missing -= self.news.get(timeout=PATIENCE_S)


@pytest.fixture
def looks(database: Database) -> Iterator[Looks]:
    """A table, and who looks at it when woken."""
    with closing(Orders(database)) as orders:
        made = Looks(orders)
        yield made
        made.listener.stop()


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_rows_are_seen_without_looking_by_the_clock(looks: Looks) -> None:
    """What was there at the start and what is committed later wakes the relay, each time."""
    looks._orders.insert(1)
    looks.listener.start()
    looks.wait_for(1)
    for number in range(2, 30):
        looks._orders.insert(number)
        looks.wait_for(number)


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_an_interrupted_log_is_followed_by_a_look(looks: Looks) -> None:
    """Rows that commit while the log is not read are found when it is read again."""
    looks.listener.start()
    looks._orders.insert(1)
    looks.wait_for(1)
    with looks._orders.database.admin_engine().connect() as admin:
        query, end = endings(looks._orders.database.name)
        for (process,) in admin.execute(text(query)).all():
            admin.execute(text(end % process))
    looks._orders.insert(2)
    looks.wait_for(2)


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_two_tables_and_one_made_anew_wake_their_relays(looks: Looks) -> None:
    """What was made on the server for another table, or an older one, is not taken for this."""
    orders = looks._orders
    orders.execute("CREATE TABLE others (id int primary key)")
    woken = Queue[None]()
    for table in ("others", "orders"):
        before = LogListener(orders.engine, table=table, wake=lambda: woken.put(None))
        before.start()
        woken.get(timeout=PATIENCE_S)
        before.stop()
    orders.execute("DROP TABLE orders")
    orders.table.create(orders.engine)
    looks.listener.start()
    until("the log is read", lambda: looks.listener.is_listening)
    for number in range(3):
        orders.insert(number)
        looks.wait_for(number)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_log_that_was_read_is_not_kept(looks: Looks) -> None:
    """The slot follows what is written to other tables, so that the server can remove its log."""
    orders = looks._orders
    looks.listener.start()
    orders.insert(1)
    looks.wait_for(1)
    orders.execute("CREATE TABLE others (id int primary key)", "INSERT INTO others VALUES (1)")
    slots = "FROM pg_replication_slots WHERE database = current_database()"
    with orders.engine.connect() as connection:
        end = connection.scalar(text("SELECT pg_current_wal_flush_lsn()::text"))
        assert connection.scalar(text(f"SELECT count(*) {slots}")) == 1

    def is_free() -> bool:
        with orders.engine.connect() as connection:
            passed = f"SELECT confirmed_flush_lsn >= '{end}'::pg_lsn {slots}"
            return bool(connection.scalar(text(passed)))

    until("the slot has passed what was read", is_free)


def walsenders(orders: Orders) -> int:
    """Return how many processes of the server send its log, or are to, in this database."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' "
        "AND datname = current_database()"
    )
    engine = orders.database.admin_engine(poolclass=NullPool)
    with engine.connect() as connection:
        return int(connection.scalar(text(query)) or 0)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_slot_is_waited_for_once_however_long_others_write(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database transaction that stays open costs one slot, which a stop gives up."""
    monkeypatch.setattr(pg_wire, "_ANSWER_S_MAX", 0.1)  # less than one look at the clock
    orders, attempts = looks._orders, list[int]()
    with orders.engine.connect() as slow:
        slow.execute(orders.table.insert(), orders.row(1))
        looks.listener.start()
        until("the slot is being made", lambda: walsenders(orders) == 1)
        ends_s = monotonic() + 2 * (pg_wire._WANTED_INTERVAL_S + wakeups._RECONNECT_S)
        while monotonic() < ends_s:
            attempts.append(walsenders(orders))
        assert set(attempts) == {1}
        looks.listener.stop()
        until("the server has given up the slot", lambda: walsenders(orders) == 0)
        slow.commit()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_statement_without_an_answer_is_given_up_by_the_server_too(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a lock does not stay on the server when its client has waited enough."""
    monkeypatch.setattr(pg_wire, "_ANSWER_S_MAX", 0.1)
    orders = looks._orders
    with orders.engine.connect() as owner:
        owner.execute(text("LOCK TABLE orders"))
        with pytest.raises(LogUnavailableError, match="no answer within"):
            orders.source().begin_now()  # the publication waits for the table
        until("nobody waits on the server", lambda: walsenders(orders) == 0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_has_no_log(database: Database) -> None:
    """A database without a log is refused with the ones that have one."""
    with pytest.raises(LogSettingsError, match="PostgreSQL or MariaDB"):
        LogListener(database.engine(), table="orders", wake=lambda: None)
