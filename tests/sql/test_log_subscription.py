"""A user's table relayed by the database's log: each committed insert is a message, once."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from halfbridge.sql.log_subscription.errors import PositionLostError
from halfbridge.sql.log_subscription.positions import Positions
from halfbridge.sql.log_subscription.removal import remove
from tests.kit.waiting import until
from tests.sql.log_relay import Relayed, die_at, relaying
from tests.sql.log_scene import KINDS, NAME, Orders

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from halfbridge.sql.log_subscription.changes import LogSource, Position

pytestmark = [
    pytest.mark.broker,
    pytest.mark.parametrize("database", KINDS, indirect=True),
]

IDLE_STEPS = ("noted", "followed")  # of a relay that has nothing to do


def test_rows_there_and_rows_to_come_are_messages(relayed: Relayed) -> None:
    """A snapshot's rows come first, then what commits, in order and with its transaction."""
    relayed.orders.insert(1, 2, 3)
    with relaying(**{**relayed.given, "begin_at": "snapshot"}):
        assert relayed.delivered(3) == [1, 2, 3]
        relayed.orders.insert(6, 5)
        relayed.orders.insert(4)
        assert relayed.delivered(6) == [1, 2, 3, 6, 5, 4]
    relayed.orders.insert(7)  # nobody relays now
    with relaying(**relayed.given) as relay:
        assert relayed.delivered(7) == [1, 2, 3, 6, 5, 4, 7]
    assert relay.progress.retries == 0


def test_a_large_database_transaction_is_relayed_in_parts(relayed: Relayed) -> None:
    """One with more rows than a message transaction may have comes whole, in order, each once."""
    begun = Event()
    on_step = lambda step: begun.set() if step == "begun" else None  # noqa: E731
    with relaying(**relayed.given, on_step=on_step):
        assert begun.wait(60)
        with relayed.orders.engine.begin() as connection:
            rows = [relayed.orders.row(each) for each in range(2_500)]
            connection.execute(relayed.orders.table.insert(), rows)
        assert relayed.delivered(2_500) == list(range(2_500))


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(["sent", "claimed", "committed"], id="short"),
        pytest.param(
            [
                *("begin", "sent", "claimed", "committed", "decided", "advanced", "noted"),
                *("followed", "committed", "repeated", "claimed"),
            ],
            id="long",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_relay_killed_anywhere_loses_and_doubles_nothing(
    relayed: Relayed, steps: list[str]
) -> None:
    """Killed at each step in turn, with writers all the while, each order comes once, in order."""
    stop = Event()
    written: list[int] = []
    die_at("begun", 1, **{**relayed.given, "begin_at": "snapshot"})

    def write() -> None:
        first = len(written)
        relayed.orders.insert(first, first + 1)
        written.extend((first, first + 1))

    def write_on() -> None:
        while not stop.wait(0.01):
            write()

    for step in steps:
        if step in IDLE_STEPS:
            write()
            die_at(step, 1, **relayed.given)
            continue
        stop.clear()
        writer = Thread(target=write_on)
        writer.start()
        try:
            die_at(step, 1 if step == "repeated" else 2, **relayed.given)
        finally:
            stop.set()
            writer.join()
    with relaying(**relayed.given):
        assert relayed.delivered(len(written)) == written
    assert relayed.settled() == written


def test_of_two_relays_one_wins_each_position(relayed: Relayed) -> None:
    """Two begin and go on at a time on one table: each order comes once, in order."""
    given = {**relayed.given, "begin_at": "snapshot"}
    relayed.orders.insert(*range(10))
    with relaying(**given), relaying(**given):
        for number in range(10, 100, 2):
            relayed.orders.insert(number, number + 1)
        assert relayed.delivered(100) == list(range(100))
    assert relayed.settled() == list(range(100))


def test_a_position_that_another_relay_has_moved_is_not_lost(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that opens the log at a row read before another relay's move reads the row again."""
    relayed.orders.insert(1)
    with relaying(**{**relayed.given, "begin_at": "snapshot"}):
        assert relayed.delivered(1) == [1]
    log = type(relayed.orders.source())
    opens, opened = log.open, []

    def open_late(self: LogSource, position: Position) -> None:
        opened.append(position)
        if len(opened) == 1:
            relayed.orders.insert(2)
            advanced = Event()
            on_step = lambda step: advanced.set() if step == "advanced" else None  # noqa: E731
            with relaying(**relayed.given, on_step=on_step):
                assert advanced.wait(60)
            relayed.orders.insert(3)
        opens(self, position)

    monkeypatch.setattr(log, "open", open_late)
    with relaying(**relayed.given):
        assert relayed.delivered(3) == [1, 2, 3]
    assert relayed.settled() == [1, 2, 3]
    assert opened[0] != opened[-1]


def test_a_lost_position_stops_until_an_operator_chooses(relayed: Relayed) -> None:
    """Without the log behind its position a relay ends with an error that names the choice."""
    relayed.orders.insert(1)
    with relaying(**{**relayed.given, "begin_at": "snapshot"}):
        assert relayed.delivered(1) == [1]
    _lose(relayed.orders)
    relayed.orders.insert(2)
    with (
        pytest.raises(PositionLostError, match="--begin-at now or --begin-at snapshot") as lost,
        relaying(**relayed.given) as relay,
    ):
        relay.ended.wait(60)
    assert lost.value.subscription == NAME
    assert lost.value.position
    assert f"lost at {lost.value.position}: " in str(lost.value)
    # What a service is started with each time does not begin anew by itself.
    with (
        pytest.raises(PositionLostError),
        relaying(**{**relayed.given, "begin_at": "snapshot"}) as relay,
    ):
        relay.ended.wait(60)
    orders = relayed.orders
    remove(Positions(orders.engine, owner="operator"), orders.source(), NAME)
    with relaying(**{**relayed.given, "begin_at": "snapshot"}):
        assert relayed.delivered(3) == [1, 1, 2]


def test_a_table_made_anew_is_relayed_or_told(relayed: Relayed) -> None:
    """Inserts into a new table of the name are messages (MariaDB), or end the relay (PostgreSQL).

    PostgreSQL tells of the old table only, which has another name now.
    """
    orders = relayed.orders
    ended: AbstractContextManager[object] = nullcontext()
    if orders.database.name == "postgresql":
        ended = pytest.raises(PositionLostError, match="made anew or renamed")
    orders.insert(1)
    with relaying(**{**relayed.given, "begin_at": "snapshot"}):
        orders.insert(2)
        assert relayed.delivered(2) == [1, 2]
    with ended, relaying(**relayed.given) as relay:
        until("the log is read", lambda: relay.progress.is_open)
        orders.execute("ALTER TABLE orders RENAME TO orders_before")
        orders.table.create(orders.engine)
        orders.insert(3)
        if orders.database.name == "mariadb":
            assert relayed.delivered(3) == [1, 2, 3]
        else:
            assert relay.ended.wait(60)
    with ended, relaying(**relayed.given) as relay:
        if orders.database.name == "postgresql":
            assert relay.ended.wait(60)


def _lose(orders: Orders) -> None:
    if orders.database.name == "postgresql":
        orders.execute(f"SELECT pg_drop_replication_slot('halfbridge_{NAME}')")
        return
    orders.insert(1_000)  # behind the position, in a file that is gone then
    orders.execute("DELETE FROM orders WHERE id = 1000")
    with orders.database.admin_engine(isolation_level="AUTOCOMMIT").connect() as admin:
        admin.exec_driver_sql("FLUSH BINARY LOGS")
        while len(logs := admin.exec_driver_sql("SHOW BINARY LOGS").all()) > 1:
            # A reader that has gone still holds a file until the server notices.
            admin.exec_driver_sql(f"PURGE BINARY LOGS TO '{logs[-1][0]}'")
