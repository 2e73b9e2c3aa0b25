"""A slot that PostgreSQL invalidates, for it keeps more log than max_slot_wal_keep_size."""

from __future__ import annotations

import logging
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, text

from halfbridge.sql.log_subscription.errors import SlotLostError
from halfbridge.sql.log_subscription.positions import Positions
from halfbridge.sql.log_subscription.removal import remove
from halfbridge.sql.log_subscription.wakeups import LogListener
from tests.kit.waiting import until
from tests.sql.log_relay import Relayed, relaying
from tests.sql.log_scene import NAME, PATIENCE_S, Orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.testkit.own_topics import OwnTopics
    from halfbridge.testkit.stack import HalfbridgeStack
    from tests.sql.databases import OwnDatabase

pytestmark = pytest.mark.parametrize("own_database", ["postgresql"], indirect=True)
SEGMENTS = 4  # of log, each more than the server keeps for a slot
STOP_S_MAX = 60.0
SLOTS = "SELECT wal_status FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def orders(own_database: OwnDatabase) -> Iterator[Orders]:
    """A table on a server that keeps as little log for slots as can be."""
    with closing(Orders(own_database)) as made:
        admin(made, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        yield made


def admin(orders: Orders, *statements: str) -> None:
    """Run statements that an administrator runs."""
    engine = orders.database.admin_engine(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for each in statements:
            connection.execute(text(each))


def lose_slots(orders: Orders) -> None:
    """Write log until the server has given up what its slots need."""
    for _ in range(SEGMENTS):
        admin(orders, "SELECT pg_logical_emit_message(false, '', 'x')", "SELECT pg_switch_wal()")
    admin(orders, "CHECKPOINT")


def statuses(orders: Orders) -> list[str]:
    """Return the states of the database's slots."""
    with orders.engine.connect() as connection:
        return list(connection.scalars(text(SLOTS)))


@pytest.mark.broker
@pytest.mark.parametrize("is_read", [False, True], ids=["away", "reading"])
def test_a_users_table_stops_until_an_operator_chooses(
    orders: Orders,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
    *,
    is_read: bool,
) -> None:
    """The relay ends with the reason, whether it reads just then, and at each start; then anew."""
    relayed = Relayed(orders, halfbridge_stack, halfbridge_topics.create("orders"))
    given = {**relayed.given, "begin_at": "snapshot"}
    orders.insert(1)
    held = Event()

    def hold(step: str) -> None:
        """Hold the relay in the middle of a batch, while the server goes on without it."""
        if is_read and step == "claimed" and relay.progress.messages:
            lose_slots(orders)
            assert statuses(orders) == ["lost"]
            held.set()

    lost = pytest.raises(SlotLostError, match=r"max_slot_wal_keep_size.*relay remove")
    if is_read:
        with lost, relaying(**given, on_step=hold) as relay:
            assert relayed.delivered(1) == [1]
            orders.insert(2)
            assert held.wait(STOP_S_MAX)
            assert relay.ended.wait(STOP_S_MAX)
    else:
        with relaying(**given) as relay:
            orders.insert(2)
            assert relayed.delivered(2) == [1, 2]
        lose_slots(orders)
        assert statuses(orders) == ["lost"]
    orders.insert(3)
    with lost, relaying(**given) as relay:
        assert relay.ended.wait(STOP_S_MAX)
    remove(Positions(orders.engine, owner="operator"), orders.source(), NAME)
    with relaying(**given):
        assert relayed.delivered(5) == [1, 2, 1, 2, 3]
    assert relayed.settled() == [1, 2, 1, 2, 3]


def test_our_own_table_is_looked_at_instead(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener says so, looks at the table, and listens again with another slot."""
    caplog.set_level(logging.INFO, "halfbridge.sql")
    seen: set[int] = set()
    holding, held, released = Event(), Event(), Event()

    def look() -> None:
        with orders.engine.connect() as connection:
            seen.update(connection.scalars(select(orders.table.c.id)))
        if holding.is_set():
            held.set()
            released.wait(STOP_S_MAX)

    listener = LogListener(orders.engine, table="orders", wake=look)
    listener.start()
    try:
        until("the log is read", lambda: listener.is_listening)
        (before,) = slots(orders)
        holding.set()
        orders.insert(1)
        assert held.wait(PATIENCE_S)
        lose_slots(orders)
        holding.clear()
        orders.insert(2)
        released.set()
        until("the row is seen", lambda: seen == {1, 2})
        until("another slot is read", lambda: before not in slots(orders) and bool(slots(orders)))
        orders.insert(3)
        until("the row is seen", lambda: seen == {1, 2, 3})
    finally:
        released.set()
        listener.stop()
    assert "orders is looked at by the clock" in caplog.text


def slots(orders: Orders) -> list[str]:
    """Return the names of the database's slots."""
    with orders.engine.connect() as connection:
        names = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        return list(connection.scalars(text(names)))
