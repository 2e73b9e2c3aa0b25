"""What both log sources promise, on real servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from secrets import token_bytes
from threading import Event
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import LogUnavailableError, PositionLostError
from tests.sql.log_scene import KINDS, Orders, endings, ids, number, read_until, reopen

if TYPE_CHECKING:
    from halfbridge.sql.log_subscription.changes import LogSource

pytestmark = pytest.mark.parametrize("database", KINDS, indirect=True)


def test_committed_inserts_come_in_the_order_of_commits(orders: Orders, source: LogSource) -> None:
    """A transaction that began first and committed last comes last, and whole."""
    with orders.engine.connect() as slow:
        slow.execute(orders.table.insert(), orders.row(1))
        orders.insert(2, 3)
        slow.execute(orders.table.insert(), orders.row(4))
        slow.commit()
    found = read_until(source, 4)
    assert ids(found) == [2, 3, 1, 4]
    assert [each.ends_transaction for each in found] == [False, True, False, True]
    assert found[0].values == {"id": 2, "customer": "c2", "body": b"2"}


def test_only_what_is_committed_and_inserted_comes(orders: Orders, source: LogSource) -> None:
    """Rollbacks, rolled back savepoints, updates, deletes and other tables make no insert."""
    orders.execute("CREATE TABLE others (id int primary key)")
    with orders.engine.connect() as connection:
        connection.execute(orders.table.insert(), orders.row(1))
        connection.rollback()
        connection.execute(orders.table.insert(), orders.row(2))
        savepoint = connection.begin_nested()
        connection.execute(orders.table.insert(), orders.row(3))
        savepoint.rollback()
        connection.commit()
    orders.execute(
        "UPDATE orders SET customer = 'x'",
        "DELETE FROM orders",
        "INSERT INTO others VALUES (1)",
    )
    orders.insert(4)
    assert ids(read_until(source, 2)) == [2, 4]


def test_inserts_of_any_statement_come(orders: Orders) -> None:
    """INSERT ... SELECT, upserts that insert, rows of partitions; not upserts that update."""
    upsert = {
        "postgresql": "ON CONFLICT (id) DO UPDATE SET customer = 'again'",
        "mariadb": "ON DUPLICATE KEY UPDATE customer = 'again'",
    }[orders.database.name]
    orders.execute("DROP TABLE orders")
    if orders.database.name == "postgresql":
        orders.execute(
            "CREATE TABLE orders (id int primary key, customer text) PARTITION BY HASH (id)",
            "CREATE TABLE part_0 PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE part_1 PARTITION OF orders FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        )
    else:
        orders.execute(
            "CREATE TABLE orders (id int primary key, customer text) PARTITION BY HASH (id) "
            "PARTITIONS 2"
        )
    source = orders.source()
    reopen(source, source.begin_now())
    orders.execute(
        "INSERT INTO orders (id) VALUES (1), (2), (3)",
        f"INSERT INTO orders (id) VALUES (3) {upsert}",
        f"INSERT INTO orders (id) VALUES (4) {upsert}",
        "INSERT INTO orders (id) SELECT id + 10 FROM orders WHERE id = 1",
        "DELETE FROM orders",
        "INSERT INTO orders (id) VALUES (5)",
    )
    found = read_until(source, 6)
    assert sorted(ids(found)) == [1, 2, 3, 4, 5, 11]
    assert ids(found)[-1] == 5
    assert {each.table for each in found} == {"orders"}


def test_the_log_is_read_again_from_any_position(orders: Orders, source: LogSource) -> None:
    """Each position of a first reading leads to exactly the rest, also within a transaction."""
    orders.insert(1, 2, 3)
    orders.insert(4)
    orders.insert(5, 6)
    first = read_until(source, 6)
    for place, insert in enumerate(first[:-1]):
        reopen(source, insert.position)
        rest = read_until(source, 5 - place)
        # One position may be written in two ways: where the transaction before ends, or later,
        # where the server said that it had sent everything.
        assert [(each.values, each.ends_transaction) for each in rest] == [
            (each.values, each.ends_transaction) for each in first[place + 1 :]
        ]


def test_what_was_advanced_over_comes_no_more(orders: Orders, source: LogSource) -> None:
    """Reading goes on behind a position that the server was told."""
    orders.insert(1)
    (insert,) = read_until(source, 1)
    source.advance(insert.position.commit)
    orders.insert(2)
    reopen(source, insert.position)
    assert ids(read_until(source, 1)) == [2]


def test_reading_passes_over_other_transactions(orders: Orders, source: LogSource) -> None:
    """Without inserts into the table the position moves on all the same."""
    begun = source.read_to
    orders.execute("CREATE TABLE others (id int primary key)", "INSERT INTO others VALUES (1)")
    for _ in range(100):
        assert source.read(10, 0.1) == ()
        if source.read_to != begun:
            break
    assert source.read_to != begun
    orders.insert(1)
    reopen(source, Position(source.read_to))
    assert ids(read_until(source, 1)) == [1]


def test_a_snapshot_and_the_log_are_every_row_once(orders: Orders) -> None:
    """With writers all the while, what the snapshot lacks is in the log behind it, and no more."""
    stop, writers = Event(), 4
    source = orders.source()
    orders.insert(*range(1_000_000, 1_000_010))

    def write(writer: int) -> int:
        """Insert in transactions of three, which overlap with those of others."""
        written = 0
        while not stop.is_set():
            first = (writer + written * writers) * 3
            orders.insert(first, first + 1, first + 2)
            written += 1
        return written

    with ThreadPoolExecutor(writers) as pool:
        running = [pool.submit(write, each) for each in range(writers)]
        try:
            for _ in range(5):  # as many snapshots, each at another moment
                with source.begin_snapshot() as snapshot:
                    rows = [number(each) for each in snapshot.rows()]
                    position = snapshot.position
        finally:
            stop.set()
        written = [each.result() for each in running]
    expected = {
        (writer + each * writers) * 3 + place
        for writer, count in enumerate(written)
        for each in range(count)
        for place in range(3)
    } | set(range(1_000_000, 1_000_010))
    assert rows == sorted(rows)
    reopen(source, position)
    logged = ids(read_until(source, len(expected) - len(rows)))
    assert sorted(rows + logged) == sorted(expected)
    assert source.read(1, 0.2) == ()


def test_a_position_of_the_future_is_lost(orders: Orders, source: LogSource) -> None:
    """A log that ends before the position belongs to another server, or was set back."""
    orders.insert(1)
    beyond = {"postgresql": "FF/0", "mariadb": "0-1-99999999"}[orders.database.name]

    def read() -> None:
        source.open(Position(beyond))  # PostgreSQL tells it here
        source.read(1, 30.0)

    with pytest.raises(PositionLostError):
        read()


def test_a_lost_connection_is_told_and_reading_goes_on(orders: Orders, source: LogSource) -> None:
    """A reader whose connection the server ends says so, and opens again where it stood."""
    orders.insert(1)
    (insert,) = read_until(source, 1)
    with orders.database.admin_engine().connect() as admin:
        query, end = endings(orders.database.name)
        for (process,) in admin.execute(text(query)).all():
            admin.execute(text(end % process))
    with pytest.raises(LogUnavailableError):
        source.read(1, 30.0)
    orders.insert(2)
    reopen(source, insert.position)
    assert ids(read_until(source, 1)) == [2]


def test_lag_is_what_was_not_read_yet(orders: Orders, source: LogSource) -> None:
    """The lag counts the bytes of the log behind the reader, and is gone when it has caught up."""
    body = {**orders.row(1), "body": token_bytes(2_000_000)}
    with orders.engine.begin() as connection:
        connection.execute(orders.table.insert(), body)
    source.close()
    assert source.lag_bytes() > 1_000_000
    reopen(source, Position(source.read_to))
    (insert,) = read_until(source, 1)
    source.advance(insert.position.commit)
    source.close()
    assert source.lag_bytes() < 1_000_000
