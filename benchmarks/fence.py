"""What fence and inbox cost, on each database: `python -m benchmarks.fence`.

Databases that keep their commits, broker, daemon and threads on this machine. A block: one message
of 200 bytes, one row of work. With the fence, and without: the same database transaction, then the
same message transaction's commit; and the steps of a fenced block, median ms. Inbox: one row of
work for each message, with `once` and without. Both in turn, several times, in one run; medians.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert

from halfbridge.bridge.message import Message
from halfbridge.sql import Fence, Inbox
from halfbridge.testkit.stack import HalfbridgeStack
from tests.sql.databases import Database, OwnDatabase, sqlite_database
from tests.sql.kafka_message import delivered
from tests.sql.servers import MariaDbServer, PostgresServer, Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUP = "bench"
BODY = b"x" * 200
THREADS = (1, 8)
BATCHES = (1, 100)  # messages of one database transaction
WARM_S = 1.0
STEPPED = 1_000  # blocks of one thread, of which each step is timed
WAIT_S = 60  # of SQLite's writers for each other
NO_CHECK_MS = 600_000  # a slow disk is no reason to ask
SERVERS = {"postgresql": PostgresServer, "mariadb": MariaDbServer}
WORK = Table(
    "work",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("item", String(200)),
    mysql_engine="InnoDB",
)


@contextmanager
def database_of(name: str) -> Iterator[Database]:
    """Yield a database whose commits survive a power cut."""
    with ExitStack() as stack:
        if name == "sqlite":
            directory = Path(stack.enter_context(TemporaryDirectory()))
            yield stack.enter_context(closing(sqlite_database(directory)))
            return
        kind = SERVERS[name]
        template = stack.enter_context(closing(Template(kind)))  # type: ignore[type-abstract]  # both are concrete
        server = stack.enter_context(kind(template, durable=True))
        yield stack.enter_context(closing(OwnDatabase(server)))


def rate(step: Callable[[], int], *, threads: int, seconds: float) -> dict[str, float]:
    """Have threads repeat a step that says how much it did; return rate and latencies."""
    done = [0] * threads
    taken_s: list[list[float]] = [[] for _ in range(threads)]
    failed: list[BaseException] = []
    end = time.monotonic() + seconds

    def run(number: int) -> None:
        try:
            while (began := time.monotonic()) < end:
                done[number] += step()
                taken_s[number].append(time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001  (told by the caller's thread)
            failed.append(error)

    running = [Thread(target=run, args=(number,)) for number in range(threads)]
    began = time.monotonic()
    for each in running:
        each.start()
    for each in running:
        each.join()
    if failed:
        raise failed[0]
    cuts = quantiles([each for some in taken_s for each in some], n=100)
    rates = sum(done) / (time.monotonic() - began)
    return {"rate": rates, "p50_ms": cuts[49] * 1_000, "p99_ms": cuts[98] * 1_000}


def compared(
    ways: dict[str, Callable[[], int]], *, threads: int, seconds: float, runs: int
) -> dict[str, dict[str, float]]:
    """Measure each way in turn, several times; return the medians."""
    for step in ways.values():
        rate(step, threads=threads, seconds=WARM_S)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, step in ways.items():
            found[way].append(rate(step, threads=threads, seconds=seconds))
    return {
        way: {name: round(median(each[name] for each in some), 2) for name in some[0]}
        for way, some in found.items()
    }


def blocks(fence: Fence, producer: Any, topic: str) -> dict[str, Callable[[], int]]:
    """Return a block with the fence, and the same without."""
    message, work = Message(topic, key=b"customer-42", value=BODY), {"item": "two shirts"}

    def fenced() -> int:
        with fence.transaction(producer) as (tx, connection):
            tx.send(message)
            connection.execute(insert(WORK), work)
        return 1

    def plain() -> int:
        with producer.begin() as tx:
            tx.send(message)
            with fence.engine.begin() as connection:
                connection.execute(insert(WORK), work)
        return 1

    return {"plain": plain, "fence": fenced}


def steps(fence: Fence, producer: Any, topic: str) -> dict[str, float]:
    """Return the median time of each step of a fenced block, ms."""
    message, work = Message(topic, key=b"customer-42", value=BODY), {"item": "two shirts"}
    noted: list[tuple[float, ...]] = []
    for _ in range(STEPPED):
        began = time.perf_counter()
        with fence.transaction(producer) as (tx, connection):
            begun = time.perf_counter()
            tx.send(message)
            sent = time.perf_counter()
            connection.execute(insert(WORK), work)
            worked = time.perf_counter()
        noted.append((began, begun, sent, worked, time.perf_counter()))
    names = ("begin", "half message acknowledged", "fence row and work", "COMMIT and decision")
    spans = zip(*(pairwise(each) for each in noted), strict=True)
    return {
        name: round(1_000 * median(end - start for start, end in each), 2)
        for name, each in zip(names, spans, strict=True)
    }


def takers(inbox: Inbox, engine: Engine, batch: int) -> dict[str, Callable[[], int]]:
    """Return a consumer's transaction with the inbox, and the same without."""
    numbers = iter(range(1_000_000_000))
    work = {"item": "two shirts"}

    def take(*, is_marked: bool) -> int:
        with engine.begin() as connection:
            for _ in range(batch):
                message = delivered(f"{next(numbers):032x}")
                if not is_marked or inbox.once(connection, message):
                    connection.execute(insert(WORK), work)
        return batch

    return {"plain": lambda: take(is_marked=False), "inbox": lambda: take(is_marked=True)}


def _tell(**found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--databases", nargs="+", default=["sqlite", *SERVERS])
    given = parser.parse_args()
    measured = {"runs": given.runs, "seconds": given.seconds}
    with HalfbridgeStack(transaction_timeout_ms=NO_CHECK_MS) as stack:
        topic = stack.create_topic("orders")
        for name in given.databases:
            with database_of(name) as database:
                options = {"connect_args": {"timeout": WAIT_S}} if name == "sqlite" else {}
                engine = database.engine(pool_size=max(THREADS), **options)
                WORK.create(engine)
                fence = Fence(engine, producer_group=f"{GROUP}-{name}")
                fence.create()
                inbox = Inbox(engine, group_id=GROUP)
                inbox.create()
                check: Any = fence.check  # a checker may answer with a count as well
                with stack.producer(fence.producer_group, checker=check) as producer:
                    _tell(database=name, steps_ms=steps(fence, producer, topic))
                    for threads in THREADS:
                        ways = blocks(fence, producer, topic)
                        found = compared(ways, threads=threads, **measured)
                        _tell(database=name, threads=threads, **found)
                for batch in BATCHES:
                    ways = takers(inbox, engine, batch)
                    found = compared(ways, threads=1, **measured)
                    _tell(database=name, batch=batch, **found)


if __name__ == "__main__":
    main()
