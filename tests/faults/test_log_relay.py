"""The relay of a user's table, killed a hundred times on PostgreSQL and on MariaDB."""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from tests.kit.proxy_tcp import TcpProxy
from tests.sql.databases import OwnDatabase
from tests.sql.log_relay import ChildRelay, Relayed
from tests.sql.log_scene import Orders
from tests.sql.servers import MariaDbServer, PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.testkit.own_topics import OwnTopics
    from halfbridge.testkit.stack import HalfbridgeStack

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HALFBRIDGE_LOG_KILLS", "110"))
ROWS_MIN = 2_000 * KILLS // 110
SERVERS = {each.name: each for each in (PostgresServer, MariaDbServer)}
WRITERS = 3
ROWS_AT_A_TIME_MAX = 5  # in one database transaction
PAUSE_S = 0.1  # between two database transactions of a writer
SNAPSHOT_ROWS = 1_500  # two batches
FIRST_OF_IDLE = 10_000_000
PAUSED_S_MAX = 120.0  # for a database transaction that is under way, a server's restart in it
# What is done to a relay, in turn: it dies at a step by itself, or something happens to what it
# works with, it recovers, and is killed from outside.
BUSY_STEPS = ("begin", "sent", "claimed", "committed", "repeated", "decided", "advanced")
IDLE_STEPS = ("noted", "followed")
DISTURBANCES = ("server", "cut", "blackhole")
TURN = (*BUSY_STEPS, *IDLE_STEPS, *DISTURBANCES)
RESET = "reset when healed"  # of a connection that lost bytes
FIRST = ("staged", "begun", "claimed", "committed", "repeated")  # of the snapshot


class Writers:
    """Insert rows until stopped; the rows of each are in the order of their commits.

    Attributes:
        failed: Database transactions that failed, committed or not: the server was killed.
    """

    def __init__(self, orders: Orders, seed: int) -> None:
        self._orders = orders
        self._stopping = Event()
        self._allowed = Event()
        self._idle = [Event() for _ in range(WRITERS)]
        self.failed = 0
        self._raised: list[Exception] = []
        self._threads = [
            Thread(target=self._run, args=(each, random.Random(seed + each)))
            for each in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def go_on(self) -> None:
        """Let them write."""
        self._allowed.set()

    def pause(self) -> None:
        """Return when none of them writes."""
        self._allowed.clear()
        for each in self._idle:
            each.clear()
        for each in self._idle:
            assert each.wait(PAUSED_S_MAX), f"a writer does not pause: {self._raised}"

    def stop(self) -> None:
        """End them."""
        self._stopping.set()
        self._allowed.set()
        for thread in self._threads:
            thread.join(PAUSED_S_MAX)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self._raised == []

    def _run(self, writer: int, dice: random.Random) -> None:
        """Write; an error that no server explains is told to the test."""
        try:
            self._write(writer, dice)
        except Exception as error:  # noqa: BLE001 (raised by `stop`)
            self._raised.append(error)

    def _write(self, writer: int, dice: random.Random) -> None:
        number = SNAPSHOT_ROWS + writer
        while not self._stopping.wait(PAUSE_S):
            if not self._allowed.is_set():
                self._idle[writer].set()
                self._allowed.wait()
                continue
            count = dice.randint(1, ROWS_AT_A_TIME_MAX)
            rows = [
                {"id": number + each * WRITERS, "customer": f"w{writer}", "body": b"x"}
                for each in range(count)
            ]
            number += count * WRITERS
            try:
                with self._orders.engine.begin() as connection:
                    connection.execute(self._orders.table.insert(), rows)
            except (DBAPIError, self._orders.engine.dialect.loaded_dbapi.Error):
                self.failed += 1


@pytest.fixture(params=["postgresql", "mariadb"])
def own(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    """A durable server with one database of this test's own."""
    kind = SERVERS[request.param]
    with ExitStack() as stack:
        template = stack.enter_context(closing(Template(kind)))
        server = stack.enter_context(kind(template, durable=True))
        yield stack.enter_context(closing(OwnDatabase(server)))


def test_a_log_relay_outlives_kills_of_relay_and_server(
    own: OwnDatabase, halfbridge_stack: HalfbridgeStack, halfbridge_topics: OwnTopics
) -> None:
    """Rows of the table = messages, each once, and of each writer in the order of its commits.

    The relay dies at each of its steps, the server is killed and started again, connections are
    cut and led into a black hole.
    """
    seed = int(os.environ.get("HALFBRIDGE_LOG_SEED", "0")) or secrets.randbits(32)
    print(f"HALFBRIDGE_LOG_SEED={seed}")  # noqa: T201 (pytest shows it when the test fails)
    dice, began, done = random.Random(seed), monotonic(), Counter[str]()
    with closing(Orders(own)) as orders, TcpProxy(own.port) as proxy:
        relayed = Relayed(orders, halfbridge_stack, halfbridge_topics.create("orders"))
        url = orders.engine.url.set(port=proxy.port)
        given = {**relayed.given, "url": url.render_as_string(), "begin_at": "snapshot"}
        with orders.engine.begin() as connection:
            rows = [orders.row(each) for each in range(SNAPSHOT_ROWS)]
            connection.execute(orders.table.insert(), rows)
        writers = Writers(orders, seed)
        try:
            writers.go_on()
            for kill in range(KILLS):
                what = FIRST[kill] if kill < len(FIRST) else TURN[(kill - len(FIRST)) % len(TURN)]
                if what in IDLE_STEPS:
                    writers.pause()
                    orders.insert(FIRST_OF_IDLE + kill)  # there is something to note
                _kill(given, what, own=own, proxy=proxy, dice=dice)
                done[what] += 1
                writers.go_on()
        finally:
            writers.stop()
        with orders.engine.connect() as connection:
            columns = select(orders.table.c.id, orders.table.c.customer)
            truth = {row.id: row.customer for row in connection.execute(columns)}
        with closing(ChildRelay(given)):
            delivered = relayed.delivered(len(truth))
        delivered = relayed.settled()
        assert proxy.counts()[RESET] >= done["blackhole"]  # else they have hit nothing
    _print(own.name, done, rows=len(truth), unknown=writers.failed, took_s=monotonic() - began)
    assert sorted(delivered) == sorted(truth)
    order = defaultdict(list)
    for number in delivered:
        order[truth[number]].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert len(truth) >= ROWS_MIN


def _kill(
    given: dict[str, Any], what: str, *, own: OwnDatabase, proxy: TcpProxy, dice: random.Random
) -> None:
    """Disturb a relay and see that it recovers, then kill it; or have it die at a step."""
    if what not in DISTURBANCES:
        with closing(ChildRelay(given, die_at=what, die_count=_count(what, dice))) as relay:
            relay.wait_dead()
        return
    with closing(ChildRelay(given)) as relay:
        relay.wait_for("committed", dice.randint(1, 3))
        if what == "server":
            own.kill()
            own.restart()
        elif what == "cut":
            proxy.cut()
            relay.wait_for("failed", 1)
            proxy.heal()
        else:
            proxy.blackhole()
            Event().wait(dice.uniform(0.2, 2.0))  # nobody can tell that nothing arrives
            proxy.heal()
        relay.wait_for("committed", 2)


def _count(step: str, dice: random.Random) -> int:
    if step == "staged":
        return dice.randint(1, SNAPSHOT_ROWS)
    return dice.randint(1, 4) if step in BUSY_STEPS and step != "repeated" else 1


def _print(name: str, done: Counter[str], *, rows: int, unknown: int, took_s: float) -> None:
    print(  # noqa: T201 (the figures are the result)
        f"{name}: {done.total()} kills of the relay, {done['server']} of the server, {done['cut']}"
        f" cuts, {done['blackhole']} black holes; {rows} rows, {unknown} inserts that failed;"
        f" {took_s:.0f} s; {dict(done)}"
    )
