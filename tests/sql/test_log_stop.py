"""A log subscription that is told to stop while it begins."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from halfbridge.sql.log_subscription.positions import Positions
from tests.kit.waiting import until
from tests.sql.log_relay import Relayed, Running, relaying
from tests.sql.log_scene import KINDS, NAME

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.broker
ROWS = 3_500  # four batches
STOP_S_MAX = 60.0


@pytest.fixture
def relayed(relayed: Relayed) -> Relayed:
    """A table, and a relay that begins with a snapshot."""
    relayed.given["begin_at"] = "snapshot"
    return relayed


def fill(relayed: Relayed) -> None:
    """Insert the rows of the snapshot."""
    with relayed.orders.engine.begin() as connection:
        rows = [relayed.orders.row(each) for each in range(ROWS)]
        connection.execute(relayed.orders.table.insert(), rows)


def stopped_at(relayed: Relayed, step: str) -> Counter[str]:
    """Run a relay that is told to stop at its first `step`; return what it did until it ended."""
    done: Counter[str] = Counter()
    running: list[Running] = []

    def on_step(name: str) -> None:
        done[name] += 1
        if name == step:
            until("the relay is known", lambda: bool(running))
            running[0].stop.set()

    with relaying(**relayed.given, on_step=on_step) as relay:
        running.append(relay)
        assert relay.ended.wait(STOP_S_MAX)
    return done


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_a_stop_ends_a_snapshot_between_two_batches(relayed: Relayed) -> None:
    """One batch of the staged rows is sent; the next relay sends the others, each once."""
    fill(relayed)
    assert stopped_at(relayed, "committed")["committed"] == 1
    relayed.orders.insert(ROWS)
    with relaying(**relayed.given) as relay:
        assert relayed.delivered(ROWS + 1) == list(range(ROWS + 1))
    assert relay.progress.batches >= ROWS // 1_000
    assert relayed.settled() == list(range(ROWS + 1))


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_a_stop_while_a_snapshot_is_staged_leaves_nothing_begun(relayed: Relayed) -> None:
    """The relay ends between two rows; another one begins anew, with rows that came meanwhile."""
    fill(relayed)
    assert stopped_at(relayed, "staged")["staged"] == 1
    positions = Positions(relayed.orders.engine, owner="test")
    assert positions.read(NAME) is None
    assert positions.staged(NAME, 0, 1) == []
    relayed.orders.insert(ROWS)
    with relaying(**relayed.given):
        assert relayed.delivered(ROWS + 1) == list(range(ROWS + 1))


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_stop_while_others_keep_a_slot_waiting(relayed: Relayed) -> None:
    """A slot waits for every database transaction that runs; a relay that is to end does not."""
    orders = relayed.orders
    slots = text("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")

    def count() -> int:
        with orders.engine.connect() as connection:
            return int(connection.scalar(slots) or 0)

    with orders.engine.connect() as slow:
        slow.execute(orders.table.insert(), orders.row(1))
        with relaying(**relayed.given) as relay:
            until("the slot is being made", lambda: count() == 1)
            relay.stop.set()
            assert relay.ended.wait(STOP_S_MAX)
        until("nothing is left", lambda: count() == 0)
        slow.commit()
    with relaying(**relayed.given):
        assert relayed.delivered(1) == [1]
