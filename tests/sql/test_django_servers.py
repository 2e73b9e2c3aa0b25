"""The Django project under gunicorn and uvicorn, whose workers are killed."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from halfbridge.testkit.children import Child, Children, Interrupts
from halfbridge.testkit.ports import HOST, free_ports
from halfbridge.testkit.stack import HalfbridgeStack
from tests.faults.stage import seed_of_run
from tests.kit.http import answer_of
from tests.kit.processes import children_of, kill_pid
from tests.kit.waiting import until
from tests.sql.databases import Database

pytestmark = [pytest.mark.broker, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
KILLS = 50
ORDERS_BETWEEN_KILLS_MAX = 12
CLIENTS = 4
STARTED_S = 120.0  # on a busy machine
_GUNICORN = ("gunicorn", "--preload", "--bind", "{host}:{port}", "tests.sql.django_shop.wsgi")
_UVICORN = ("uvicorn", "--host", "{host}", "--port", "{port}", "tests.sql.django_shop.asgi:app")
# The parent of gunicorn's workers has a producer before it forks; uvicorn does not fork.
SERVERS = {
    "gunicorn_sync": ("sqlite", (*_GUNICORN, "-k", "sync")),
    "gunicorn_gthread": ("postgresql", (*_GUNICORN, "-k", "gthread", "--threads", "3")),
    "uvicorn": ("postgresql", _UVICORN),
}


class Shop:
    """The project's processes, on one database and topic."""

    def __init__(
        self, children: Children, database: Database, stack: HalfbridgeStack, topic: str
    ) -> None:
        self._children = children
        self._numbers = count()
        given = {
            "bootstrap_servers": stack.bootstrap_servers,
            "topic_prefix": stack.topic_prefix,
            "transaction_timeout_ms": stack.config.transaction_timeout_ms,
            "transaction_age_ms_max": stack.config.transaction_age_ms_max,
            "producer_group": "shop",
            "topics": [topic],
        }
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.sql.django_shop.settings",
            "SHOP_URL": database.url,
            "SHOP_TOPIC": topic,
            "SHOP_HALFBRIDGE": json.dumps({"default": given}),
        }
        (self._port,) = free_ports(1)

    def migrate(self) -> None:
        """Make the tables."""
        command = [sys.executable, "-m", "django", "migrate", "--run-syncdb"]
        subprocess.run(
            command, env=self._environ, check=True, capture_output=True, timeout=STARTED_S
        )

    def start(self, *words: str) -> Child:
        """Start a server with two workers; return once one of them has placed an order."""
        words = tuple(each.format(host=HOST, port=self._port) for each in words)
        command = [sys.executable, "-m", *words, "--workers", "2"]
        server = self._children.start("server", command, environ=self._environ)
        until(
            "the first order is placed",
            lambda: self.place() or server.process.poll() is not None,
            within_s=STARTED_S,
            explain=server.last_words,
        )
        assert server.process.poll() is None, server.last_words()
        return server

    def place(self) -> bool:
        """Place another order; return whether the worker answered 200."""
        url = f"http://{HOST}:{self._port}/place/{next(self._numbers)}"
        return answer_of(url, within_s=60.0)[0] == 200


def workers_of(parent: Child) -> list[int]:
    """Return the process ids of a server's workers."""
    children = children_of(parent.process.pid)
    # uvicorn's parent has a process of Python's multiprocessing besides.
    return [each for each in children if "resource_tracker" not in command_of(each)]


def command_of(pid: int) -> str:
    """Return the command line of a process; none, if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Processes that end with the test."""
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as made:
        yield made


@pytest.mark.parametrize(
    ("database", "words"), SERVERS.values(), ids=SERVERS, indirect=["database"]
)
def test_orders_are_messages_though_workers_are_killed(
    children: Children,
    database: Database,
    halfbridge_stack: HalfbridgeStack,
    topic: str,
    words: tuple[str, ...],
) -> None:
    """The messages are those of the committed orders, though workers are killed under load."""
    shop = Shop(children, database, halfbridge_stack, topic)
    shop.migrate()
    server = shop.start(*words)
    draw, answers = random.Random(seed_of_run()), []
    with ThreadPoolExecutor(CLIENTS) as clients:
        for _ in range(KILLS):
            orders = draw.randint(2, ORDERS_BETWEEN_KILLS_MAX)
            placed = [clients.submit(shop.place) for _ in range(orders)]
            placed[draw.randrange(orders)].result()
            workers = until("a worker lives", lambda: workers_of(server), within_s=STARTED_S)
            kill_pid(draw.choice(workers))
            answers += [each.result() for each in placed]
    until("an order after all kills", shop.place, within_s=STARTED_S)
    halfbridge_stack.wait_until_decided(timeout_s=STARTED_S)
    with database.engine().connect() as connection:
        rows: list[Any] = list(connection.execute(text("SELECT id FROM shop_order")).scalars())
    records = halfbridge_stack.read_committed(topic, count=len(rows))
    unanswered = answers.count(False)
    print(f"{words[0]}: {len(rows)} orders, {KILLS} kills, {unanswered} without an answer")
    assert sorted(int(record.value or b"0") for record in records) == sorted(rows)
    assert len(rows) >= answers.count(True)
