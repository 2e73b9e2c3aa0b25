"""Celery with a Redis of its own: tasks are given, and their workers killed."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from celery import Celery
from redis import Redis
from redis.exceptions import ConnectionError as NotThereError
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.reader import read_all
from halfbridge.testkit.watchdog import Watchdog
from tests.kit.waiting import until
from tests.sql.processes import as_unprivileged, new_directory
from tests.tools import tool

if TYPE_CHECKING:
    from tests.integration.test_examples import Shop

TASKS_A_LIFE = 24
SLOW_S = 180.0  # a worker imports and starts two producers, on a machine that does other things too
VISIBILITY_S = 1  # the next worker looks for lost tasks when it starts, and again 100 s later
# Tasks without halfbridge, with what Celery does by default.
PLAIN_TASKS = """
import os
from celery.signals import worker_process_init, worker_process_shutdown
from confluent_kafka import Producer
from celery_shop import app, engine, insert, orders, start, stop

worker_process_init.disconnect(start)
worker_process_shutdown.disconnect(stop)
app.conf.update(task_acks_late=False, task_reject_on_worker_lost=None)
plain = None
app.finalize()
app.tasks.unregister("celery_shop.place")  # else the first of a name may win

@worker_process_init.connect
def start_plain(**_):
    global plain
    plain = Producer({"bootstrap.servers": os.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"]})

@app.task(name="celery_shop.place")
def place(item):
    with engine.begin() as connection:
        number = connection.scalar(insert(orders).values(item=item).returning(orders.c.id))
    plain.produce(TOPIC, item.encode(), b"%d" % number)
    plain.flush()
"""


@contextmanager
def redis_server() -> Iterator[Redis]:
    """Yield a Redis that keeps nothing on disk, for one client in this thread."""
    program = Path(tool("redis-server", package="redis-server"))
    directory = new_directory()
    (port,) = free_ports(1)
    command = [str(program), "--bind", HOST, "--port", str(port), "--save", "", "--daemonize", "no"]
    with closing(Watchdog(directory)) as watchdog, closing(Redis(HOST, port)) as client:
        process = watchdog.start(
            [command], stdout=subprocess.DEVNULL, **as_unprivileged(program, directory)
        )

        def answers() -> bool:
            with suppress(NotThereError):
                return bool(client.ping())
            return False

        try:
            until("Redis answers", answers)
            yield client
        finally:
            process.kill()
            process.wait(SLOW_S)
            watchdog.forget(process.pid)


class CeleryTasks:
    """A worker of celery_shop.py, or of another program with its task, with two processes."""

    def __init__(self, shop: Shop, redis: Redis, url: str, program: str) -> None:
        port = redis.connection_pool.connection_kwargs["port"]
        redis.flushall()
        shop.environ["SHOP_BROKER"] = f"redis://{HOST}:{port}/0"
        shop.environ["SHOP_URL"] = url
        shop.environ["SHOP_VISIBILITY_S"] = str(VISIBILITY_S)
        self._shop, self._redis, self._program = shop, redis, program
        self._caller = Celery(broker=shop.environ["SHOP_BROKER"])
        self._engine = create_engine(url, poolclass=NullPool)
        self._worker: subprocess.Popen[bytes] | None = None
        self.items: list[str] = []

    def give(self, items: Sequence[str]) -> None:
        """Give a task for each item; its id is the item's name, so that it may be given again."""
        for item in items:
            self._caller.send_task("celery_shop.place", (item,), task_id=f"task-{item}")

    def start(self) -> None:
        """Start the worker."""
        words = ("worker", "--concurrency", "2", "--without-gossip", "--without-mingle")
        self._worker = self._shop.start("-m", "celery", "-A", self._program, *words)

    def place_under_kills(self, kills: int, kill: Callable[[random.Random], None]) -> None:
        """Kill again and again while there are tasks to do."""
        draw = random.Random(seed := secrets.randbits(32))
        print(f"seed {seed}")
        self.start()
        for life in range(kills):
            batch = [f"hat-{life}-{number}" for number in range(TASKS_A_LIFE)]
            self.items += batch
            goal = self.rows().total() + draw.randint(1, TASKS_A_LIFE // 2)
            self.give(batch)
            self.await_rows(goal)
            kill(draw)

    def kill_process(self, draw: random.Random) -> None:
        """Kill a process of the pool; the worker starts another one."""
        _kill(draw.choice(until("a process", self._pool)))

    def kill_pool(self, _draw: random.Random) -> None:
        """Kill all processes of the pool; the worker starts others."""
        for each in self._pool():
            _kill(each)

    def kill_worker(self, _draw: random.Random) -> None:
        """Kill the worker with its pool, and start another one."""
        assert self._worker is not None
        pool = self._pool()
        self._worker.kill()
        self._worker.wait(SLOW_S)
        for each in pool:
            _kill(each)
        self._redis.delete("unacked_mutex")  # which it may have held, for five minutes
        self.start()

    def await_rows(self, count: int) -> None:
        """Return once there are so many orders."""
        log = (self._shop.directory / "-m.out").read_text
        until(
            f"{count} rows",
            lambda: self.rows().total() >= count,
            within_s=SLOW_S,
            every_s=0.05,
            explain=log,
        )

    def finish(self) -> None:
        """Return once no task is left and all transactions are decided."""
        log = (self._shop.directory / "-m.out").read_text
        until("no task is left", self._is_idle, within_s=SLOW_S, every_s=0.1, explain=log)
        until("all is decided", lambda: not self._shop.undecided(), within_s=SLOW_S)

    def stop(self) -> None:
        """End the worker when the tasks that run have ended."""
        worker = self._worker
        assert worker is not None
        worker.terminate()
        log = (self._shop.directory / "-m.out").read_text
        until("the worker ends", lambda: worker.poll() is not None, within_s=SLOW_S, explain=log)

    def rows(self) -> Counter[str]:
        """Return the orders as "NUMBER: ITEM"; none before the table is there."""
        with suppress(DBAPIError), self._engine.connect() as connection:
            found = connection.execute(text("SELECT id, item FROM celery_orders"))
            return Counter(f"{number}: {item}" for number, item in found)
        return Counter()

    def placed(self) -> Counter[str]:
        """Return the items of the orders."""
        return Counter(row.partition(": ")[2] for row in self.rows().elements())

    def messages(self) -> Counter[str]:
        """Return the messages in the form of `rows`."""
        records = read_all(self._shop.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"], [self._shop.topic])
        return Counter(f"{int(each.key or 0)}: {(each.value or b'').decode()}" for each in records)

    def _is_idle(self) -> bool:
        return not self._redis.llen("celery") and not self._redis.hlen("unacked")

    def _pool(self) -> list[int]:
        assert self._worker is not None
        pid = self._worker.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended since
        os.kill(pid, signal.SIGKILL)
