"""Celery with a Redis of its own: tasks are given, and their workers killed."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from celery import Celery
from redis import Redis
from redis.exceptions import ConnectionError as NotThereError

from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.watchdog import Watchdog
from tests.faults.stage import seed_of_run
from tests.integration.shop import Shop, kill, rows_of
from tests.kit.processes import children_of, kill_pid
from tests.kit.waiting import until
from tests.sql.processes import as_unprivileged, new_directory
from tests.tools import tool

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

@worker_process_shutdown.connect
def flush_plain(**_):
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
        self._url = url
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

    def place_under_kills(self, kills: int, end: Callable[[random.Random], None]) -> None:
        """Call `end`, which kills, again and again while there are tasks to do."""
        draw = random.Random(seed_of_run())
        self.start()
        for life in range(kills):
            batch = [f"hat-{life}-{number}" for number in range(TASKS_A_LIFE)]
            self.items += batch
            goal = self.rows().total() + draw.randint(1, TASKS_A_LIFE // 2)
            self.give(batch)
            self.await_rows(goal)
            end(draw)

    def kill_process(self, draw: random.Random) -> None:
        """Kill a process of the pool; the worker starts another one."""
        kill_pid(draw.choice(until("a process", self._pool)))

    def kill_pool(self, _draw: random.Random) -> None:
        """Kill all processes of the pool; the worker starts others."""
        for each in self._pool():
            kill_pid(each)

    def kill_worker(self, _draw: random.Random) -> None:
        """Kill the worker with its pool, and start another one."""
        assert self._worker is not None
        kill(self._worker)
        self._redis.delete("unacked_mutex")  # which it may have held, for five minutes
        self.start()

    def await_rows(self, count: int) -> None:
        """Return once there are so many orders."""
        until(
            f"{count} rows",
            lambda: self.rows().total() >= count,
            within_s=SLOW_S,
            every_s=0.05,
            explain=self._log,
        )

    def finish(self) -> None:
        """Return once no task is left and all transactions are decided."""
        until("no task is left", self._is_idle, within_s=SLOW_S, every_s=0.1, explain=self._log)
        until("all is decided", lambda: not self._shop.undecided(), within_s=SLOW_S)

    def stop(self) -> None:
        """End the worker when the tasks that run have ended."""
        worker = self._worker
        assert worker is not None
        worker.terminate()
        until(
            "the worker ends", lambda: worker.poll() is not None, within_s=SLOW_S, explain=self._log
        )

    def rows(self) -> Counter[str]:
        """Return the orders as "NUMBER: ITEM"; none before the table is there."""
        return rows_of(self._url, "SELECT id, item FROM celery_orders")

    def placed(self) -> Counter[str]:
        """Return the items of the orders."""
        return Counter(row.partition(": ")[2] for row in self.rows().elements())

    def _log(self) -> str:
        return self._shop.output("-m")

    def _is_idle(self) -> bool:
        return not self._redis.llen("celery") and not self._redis.hlen("unacked")

    def _pool(self) -> list[int]:
        assert self._worker is not None
        return children_of(self._worker.pid)
