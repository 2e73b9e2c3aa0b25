"""The programs in examples/ with a topic of their own: started, run, killed, and what they left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.reader import read_all
from tests.integration.producing import TIMEOUT_S
from tests.kit.http import answer_of
from tests.kit.processes import children_of, kill_pid
from tests.kit.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S_MAX = 120.0
SEND_MS_MAX = 60_000  # for a broker on a machine that does other things too


class Shop:
    """Runs the examples with a topic of their own, and a quiet time that a test has."""

    def __init__(self, address: str, prefix: str, directory: Path) -> None:
        self.directory = directory
        self.topic, self.bills = f"{prefix}orders", f"{prefix}bills"
        self.environ = {
            **os.environ,
            "HALFBRIDGE_BOOTSTRAP_SERVERS": address,
            "HALFBRIDGE_TOPIC_PREFIX": prefix,
            "HALFBRIDGE_TRANSACTION_TIMEOUT_MS": "1000",
            "HALFBRIDGE_SEND_TIMEOUT_MS": str(SEND_MS_MAX),
            "PYTHONUNBUFFERED": "1",
        }
        self._children: list[subprocess.Popen[bytes]] = []
        for path in EXAMPLES.glob("*.py"):
            text = path.read_text("utf-8").replace('"bills"', repr(self.bills))
            # Not the path of a URL.
            text = re.sub(r'(?<!path\()"orders"', repr(self.topic), text)
            group = f"{prefix}\\g<1>"  # groups of consumers have no prefix of an installation
            text = re.sub(r'(?<=(?:group.id": |..group_id=)")(\w+)', group, text)
            self.write(path.name, text)

    def sqlite(self, name: str = "shop.db") -> str:
        """Return SQLAlchemy's URL of a database file that the examples make."""
        return f"sqlite:///{self.directory / name}"

    def write(self, name: str, text: str) -> None:
        """Put a program beside the examples."""
        self.directory.joinpath(name).write_text(text, "utf-8")

    def output(self, word: str) -> str:
        """Return what the program has printed that was last started with this first word."""
        return self.directory.joinpath(f"{Path(word).stem}.out").read_text("utf-8")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a Python program, both its outputs into `<its first word>.out`."""
        with (self.directory / f"{Path(words[0]).stem}.out").open("wb") as file:
            child = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.directory,
                env=self.environ,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._children.append(child)
        return child

    def run(self, *words: str, status: int = 0) -> list[str]:
        """Run a Python program to its end; return the lines that it printed."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout.splitlines()

    def read(self) -> list[str]:
        """Return what a new consumer group reads, without the transaction ids."""
        return [line.rpartition(" by ")[0] for line in self.run("read.py")]

    def messages(self, topic: str | None = None) -> Counter[str]:
        """Return the messages of a topic, by default of the orders', as "KEY: VALUE"."""
        servers = self.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"]
        records = read_all(servers, [topic or self.topic])
        return Counter(
            f"{(each.key or b'').decode()}: {(each.value or b'').decode()}" for each in records
        )

    def place(self, items: Sequence[str]) -> None:
        """Place orders, each in a transaction of its own, without a database."""
        with TransactionProducer(
            bootstrap_servers=self.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"],
            topic_prefix=self.environ["HALFBRIDGE_TOPIC_PREFIX"],
            producer_group="order-service",
            topics=[self.topic],
            checker=lambda _: Resolution.UNKNOWN,
            send_timeout_ms=SEND_MS_MAX,
        ) as producer:
            for item in items:
                with producer.begin() as tx:
                    tx.send(Message(self.topic, key=item.encode(), value=item.encode()))

    def deliver_again(self) -> None:
        """Write each message that was delivered once more, with its headers."""
        servers = self.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"]
        producer = Producer({"bootstrap.servers": servers})
        for each in read_all(servers, [self.topic]):
            producer.produce(self.topic, each.value, each.key, headers=list(each.headers))
        assert producer.flush(TIMEOUT_S) == 0

    def undecided(self) -> list[str]:
        """Return the transactions that are not decided yet."""
        (line,) = self.run("-m", "halfbridge", "tx", "list", "--json")
        return [each["id"] for each in json.loads(line)["transactions"]]

    def stop(self) -> None:
        """End what still runs."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait(RUN_S_MAX)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children by SIGKILL."""
    children = children_of(process.pid)
    process.kill()
    process.wait(RUN_S_MAX)
    for each in children:
        kill_pid(each)


def rows_of(url: str, query: str) -> Counter[str]:
    """Return a query's rows, the columns of each joined by ": "; none before its table is there."""
    engine = create_engine(url, poolclass=NullPool)
    with suppress(DBAPIError), engine.connect() as connection:
        return Counter(": ".join(map(str, row)) for row in connection.execute(text(query)))
    return Counter()


class WebService(NamedTuple):
    """A web service that takes orders by POST /orders?item=..., and how it is served."""

    app: str  # the program's name without .py
    healthy: str  # a path that answers 200 once it serves
    table: str  # of its orders
    driver: str | None  # of PostgreSQL; None: its database is the file shop.db

    def words(self, port: int) -> tuple[str, ...]:
        """Return what runs it, after `python`."""
        if self.driver is None:
            address = ("--bind", f"{HOST}:{port}")
            return ("-m", "gunicorn", "--workers", "2", *address, self.app)
        return ("-m", "uvicorn", "--port", str(port), f"{self.app}:app")


WEB_SERVICES = {
    each.app: each
    for each in (
        WebService("async_shop", "health", "async_orders", "postgresql+asyncpg"),
        WebService("web_shop", "openapi.json", "web_orders", "postgresql+psycopg"),
        WebService("django_shop", "health", "django_orders", None),
    )
}


class WebShop:
    """A web service on a port of its own."""

    def __init__(self, shop: Shop, service: WebService) -> None:
        self._shop, self._service = shop, service
        (self._port,) = free_ports(1)
        if service.driver is None:
            shop.run("django_shop.py")  # makes the tables

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, and return once it is healthy."""
        words = self._service.words(self._port)
        process = self._shop.start(*words)
        until(
            "it is healthy",
            lambda: self._answer(self._service.healthy, "GET") == HTTPStatus.OK,
            within_s=RUN_S_MAX,
            explain=lambda: self._shop.output(words[0]),
        )
        return process

    def order(self, item: str) -> int | None:
        """Order an item; return the status of the answer, None without one."""
        return self._answer(f"orders?item={item}", "POST")

    def _answer(self, path: str, method: str) -> int | None:
        url = f"http://{HOST}:{self._port}/{path}"
        status, _ = answer_of(url, within_s=RUN_S_MAX, method=method)
        return status or None
