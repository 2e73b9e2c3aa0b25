"""The programs in examples/, each run as it stands, on a real broker with a real daemon."""

import json
import os
import random
import re
import secrets
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from confluent_kafka import Producer
from redis import Redis
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from halfbridge import Message, Resolution, TransactionProducer
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde import DEAD_LETTER, DeadLetter, DeadReason, OpKind
from halfbridge.serde.headers import DEAD, DEAD_MARK
from halfbridge.testkit.reader import read_all
from tests.integration.celery_tasks import PLAIN_TASKS, CeleryTasks, redis_server
from tests.integration.producing import TIMEOUT_S, Cluster
from tests.kit.waiting import until
from tests.sql.servers import PostgresServer, Template

pytestmark = pytest.mark.broker
EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S_MAX = 120.0
WEB_KILLS, WEB_CLIENTS, ORDERS_A_LIFE_MAX = 50, 4, 24
CELERY_KILLS, CELERY_LONG_KILLS = 10, 50
# The service of async_shop.py without halfbridge.
PLAIN_SHOP = """
import os
from confluent_kafka import Producer
from fastapi import FastAPI
from async_shop import Base, Order, engine, sessions

app = FastAPI()
producer = Producer({"bootstrap.servers": os.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"]})

@app.get("/health")
async def health():
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

@app.post("/orders", status_code=201)
async def place(item: str):
    async with sessions.begin() as session:
        session.add(order := Order(item=item))
        await session.flush()
    producer.produce(TOPIC, item.encode(), b"%d" % order.id)
"""
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
            text = path.read_text("utf-8").replace('"orders"', repr(self.topic))
            text = text.replace('"bills"', repr(self.bills))
            group = f"{prefix}\\g<1>"  # groups of consumers have no prefix of an installation
            text = re.sub(r'(?<=(?:group.id": |..group_id=)")(\w+)', group, text)
            (directory / path.name).write_text(text, "utf-8")

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

    def bills_written(self) -> list[tuple[int, str]]:
        """Return number and item of each bill in the database."""
        with closing(sqlite3.connect(self.directory / "bills.db", timeout=RUN_S_MAX)) as connection:
            return connection.execute("SELECT id, item FROM bill").fetchall()

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


@pytest.fixture
def shop(kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Iterator[Shop]:
    """Yield the examples, with the topics made and the daemon running."""
    made = Shop(kafka_bootstrap_servers, topic_prefix, tmp_path)
    server = ("--bootstrap-servers", kafka_bootstrap_servers)
    group = ("--producer-group", "order-service", "--producer-group", "billing-service")
    try:
        made.run("-m", "halfbridge", "topics", "create", *server, *group)
        made.run("make_topic.py")
        made.start("-m", "halfbridge", "checker", "run", *server)
        yield made
    finally:
        made.stop()
        admin = AdminClient({"bootstrap.servers": kafka_bootstrap_servers})
        for future in admin.delete_topics([made.topic, made.bills]).values():
            future.exception()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server."""
    with closing(Template(PostgresServer)) as made, PostgresServer(made, durable=False) as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    """Yield a Redis server."""
    with redis_server() as made:
        yield made


@pytest.mark.feature
def test_an_order_is_placed_and_read_and_billed_once(shop: Shop) -> None:
    """order.py, read.py and idempotent.py; an order that ends by an exception is in neither."""
    (placed,) = shop.run("order.py")
    assert re.fullmatch(r"placed two shirts as [0-9a-f]{32}", placed)
    shop.run("order.py", "nothing", status=1)
    shop.run("order.py", "a hat")
    wanted = ["two shirts of order-1", "a hat of order-2"]
    assert sorted(shop.read()) == sorted(wanted)  # each order is in the partition of its key
    assert sorted(shop.run("idempotent.py")) == ["invoice for a hat", "invoice for two shirts"]
    assert sorted(shop.run("idempotent.py")) == ["seen before: a hat", "seen before: two shirts"]
    shop.run("make_topic.py")  # again, which changes nothing


def test_a_service_that_died_is_asked_when_it_is_back(shop: Shop) -> None:
    """crash.py: the row stands, the message comes; nobody repeats the order."""
    (died,) = shop.run("crash.py", "die", status=1)
    transaction_id = died.split()[-1]
    (asked,) = shop.run("crash.py", "recover")
    assert asked == f"asked about {transaction_id} answered COMMIT"
    assert shop.read() == ["a hat of customer-7"]


def test_an_order_that_is_there_already_is_rolled_back_at_once(
    shop: Shop, postgresql: PostgresServer
) -> None:
    """postgresql.py: the unique key refuses it, and nobody is asked."""
    url = postgresql.url(postgresql.create_database(), user=postgresql.admin)
    shop.environ["SHOP_URL"] = url.replace("postgresql+psycopg://", "postgresql://")
    assert shop.run("postgresql.py", "1", "2", "1") == [
        "order 1 is placed",
        "order 2 is placed",
        "order 1 is there already; its message is rolled back",
    ]
    assert sorted(shop.read()) == ["order 1 of 1", "order 2 of 2"]


@pytest.mark.feature
def test_a_web_service_takes_orders(shop: Shop) -> None:
    """web_shop.py under uvicorn: each POST is an order and a message."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shop.start("-m", "uvicorn", "--port", str(port), "web_shop:app")
    log = (shop.directory / "-m.out").read_text

    def posts(item: str) -> bool:
        url = f"http://127.0.0.1:{port}/orders?item={item}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
                return answer.status == 201
        except ConnectionError as error:
            raise error from None
        except OSError:
            return False

    until("the first order is taken", lambda: posts("boots"), explain=log)
    assert posts("gloves")
    assert sorted(shop.read()) == ["boots of boots", "gloves of gloves"]


class AsyncShop:
    """async_shop.py, or another app with its routes, under uvicorn; SIGKILL ends it."""

    def __init__(self, shop: Shop, app: str = "async_shop:app") -> None:
        self._shop, self._app = shop, app
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def start(self) -> subprocess.Popen[bytes]:
        """Start a process, and return once it is healthy."""
        words = ("-m", "uvicorn", "--port", str(self._port), self._app)
        process = self._shop.start(*words)
        log = (self._shop.directory / "-m.out").read_text
        until("it is healthy", lambda: self._answer("health", "GET") == HTTPStatus.OK, explain=log)
        return process

    def order(self, item: str) -> int | None:
        """Order an item; return the status of the answer, None without one."""
        return self._answer(f"orders?item={item}", "POST")

    def _answer(self, path: str, method: str) -> int | None:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=RUN_S_MAX) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except (OSError, HTTPException):
            return None


@pytest.mark.feature
def test_an_async_web_service_takes_orders(shop: Shop) -> None:
    """async_shop.py: an order and its message, with the number that the database has made.

    An order that is refused has neither.
    """
    web = AsyncShop(shop)
    web.start()
    statuses = [web.order(each) for each in ("boots", "boots", "gloves")]
    assert statuses == [HTTPStatus.CREATED, HTTPStatus.CONFLICT, HTTPStatus.CREATED]
    with closing(sqlite3.connect(shop.directory / "shop.db")) as connection:
        rows = connection.execute("SELECT id, item FROM async_orders").fetchall()
    assert sorted(item for _, item in rows) == ["boots", "gloves"]
    assert sorted(shop.read()) == sorted(f"{item} of {number}" for number, item in rows)


def order_under_kills(
    shop: Shop, server: PostgresServer, app: str
) -> tuple[Counter[str], Callable[[], Counter[str]], Counter[int | None]]:
    """Order from several clients while uvicorn is killed 50 times.

    Return the rows as "NUMBER: ITEM", what reads the messages in the same form, and the statuses
    of the answers.
    """
    url = server.url(server.create_database(), user=server.admin)
    shop.environ["SHOP_URL"] = url.replace("postgresql+psycopg:", "postgresql+asyncpg:")
    web, numbers, answers = AsyncShop(shop, app), count(), Counter[int | None]()
    draw = random.Random(seed := secrets.randbits(32))
    print(f"seed {seed}")
    with ThreadPoolExecutor(WEB_CLIENTS) as clients:
        for _ in range(WEB_KILLS):
            process = web.start()
            orders = draw.randint(WEB_CLIENTS, ORDERS_A_LIFE_MAX)
            given = [clients.submit(web.order, f"hat-{next(numbers)}") for _ in range(orders)]
            given[draw.randrange(orders)].result()
            process.kill()
            process.wait(RUN_S_MAX)
            answers.update(each.result() for each in given)
    web.start()  # answers the checks
    until("all is decided", lambda: not shop.undecided())
    with create_engine(url, poolclass=NullPool).connect() as connection:
        found = connection.execute(text("SELECT id, item FROM async_orders"))
        rows = Counter(f"{number}: {item}" for number, item in found)

    def messages() -> Counter[str]:
        records = read_all(shop.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"], [shop.topic])
        return Counter(f"{int(each.key or 0)}: {(each.value or b'').decode()}" for each in records)

    return rows, messages, answers


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_orders_are_messages_though_an_async_service_is_killed_fifty_times(
    shop: Shop, postgresql: PostgresServer
) -> None:
    """Each row of PostgreSQL has its message once; what was answered is there."""
    rows, messages, answers = order_under_kills(shop, postgresql, "async_shop:app")
    print(f"{rows.total()} orders, answers {answers}")
    until("all messages are there", lambda: messages().total() >= rows.total())
    assert messages() == rows
    assert rows.total() >= answers[HTTPStatus.CREATED] > WEB_KILLS
    assert answers[None]  # else no request was under way at a kill


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_without_a_fence_killed_services_lose_messages(
    shop: Shop, postgresql: PostgresServer
) -> None:
    """The control: the same service that commits first and sends then."""
    path = shop.directory / "plain_shop.py"
    path.write_text(PLAIN_SHOP.replace("TOPIC", repr(shop.topic)), "utf-8")
    rows, messages, _ = order_under_kills(shop, postgresql, "plain_shop:app")
    assert rows - messages()


@pytest.mark.feature
def test_a_task_of_celery_that_runs_again_is_one_order(shop: Shop, redis: Redis) -> None:
    """celery_shop.py: tasks that are given twice under their ids; each is a row and a message."""
    url = f"sqlite:///{shop.directory / 'shop.db'}"
    tasks = CeleryTasks(shop, redis, url, "celery_shop")
    tasks.start()
    for _ in range(2):
        tasks.give(["boots", "gloves"])
        tasks.await_rows(2)
    tasks.finish()
    tasks.stop()
    assert tasks.placed() == Counter(["boots", "gloves"])
    assert tasks.messages() == tasks.rows()


def tasks_under_kills(
    shop: Shop, redis: Redis, server: PostgresServer, kills: int, *, whole: bool
) -> None:
    """Kill processes of the pool, or the whole worker: each task is one row and one message.

    A worker that dies in the moment in which it takes a task from Redis loses it. So after such
    deaths the caller gives all tasks again.
    """
    url = server.url(server.create_database(), user=server.admin)
    tasks = CeleryTasks(shop, redis, url, "celery_shop")
    kill = tasks.kill_worker if whole else tasks.kill_process
    tasks.place_under_kills(kills, kill)
    if whole:
        tasks.give(tasks.items)
    tasks.finish()
    tasks.stop()
    rows = tasks.rows()
    assert tasks.placed() == Counter(tasks.items)
    until("the messages are there", lambda: tasks.messages().total() >= rows.total())
    assert tasks.messages() == rows


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("whole", [False, True], ids=["process", "worker"])
def test_tasks_of_killed_processes_are_done_once(
    shop: Shop, redis: Redis, postgresql: PostgresServer, *, whole: bool
) -> None:
    """The example as it stands."""
    tasks_under_kills(shop, redis, postgresql, CELERY_KILLS, whole=whole)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("whole", [False, True], ids=["process", "worker"])
def test_tasks_are_done_once_though_celery_is_killed_fifty_times(
    shop: Shop, redis: Redis, postgresql: PostgresServer, *, whole: bool
) -> None:
    """The same, for long."""
    tasks_under_kills(shop, redis, postgresql, CELERY_LONG_KILLS, whole=whole)


@pytest.mark.timeout(3_600)
def test_by_default_celery_loses_tasks_and_messages_and_repeats_tasks(
    shop: Shop, redis: Redis, postgresql: PostgresServer
) -> None:
    """The control: without acks_late tasks are lost, without a fence messages.

    Without an inbox a task that comes again is a second order.
    """
    path = shop.directory / "plain_tasks.py"
    path.write_text(PLAIN_TASKS.replace("TOPIC", repr(shop.topic)), "utf-8")
    url = postgresql.url(postgresql.create_database(), user=postgresql.admin)
    tasks = CeleryTasks(shop, redis, url, "plain_tasks")
    tasks.place_under_kills(CELERY_KILLS, tasks.kill_pool)
    tasks.give(["boots", "boots"])
    tasks.finish()
    tasks.stop()
    placed = tasks.placed()
    assert placed["boots"] == 2
    assert Counter(tasks.items) - placed
    assert tasks.rows() - tasks.messages()


# Examples on a framework, with the names of their databases and tables.
CONSUMERS = {"aiokafka_parcels.py": "parcels", "faststream_labels.py": "labels"}


@pytest.mark.feature
@pytest.mark.parametrize("program", CONSUMERS)
def test_a_consumer_on_a_framework_takes_each_order_once(shop: Shop, program: str) -> None:
    """Its work is a row for each order, and nothing for a message that is delivered again."""
    shop.place(["boots", "gloves"])
    shop.start(program)
    output = (shop.directory / program).with_suffix(".out").read_text
    new = re.compile(r"^\w+: (?:boots|gloves)$", re.MULTILINE)
    until("both are taken", lambda: len(new.findall(output())) == 2, explain=output)
    shop.deliver_again()
    until("both came again", lambda: output().count(" before: ") == 2, explain=output)
    table = CONSUMERS[program]
    with closing(sqlite3.connect(shop.directory / f"{table}.db")) as connection:
        rows = connection.execute(f"SELECT item FROM {table}").fetchall()
    assert sorted(rows) == [("boots",), ("gloves",)]


def bill_under_kills(shop: Shop, *, orders: int, kills: int) -> None:
    """Kill bill_orders.py by SIGKILL while it works; compare orders, bills and announced bills."""
    items = [f"hat-{number}" for number in range(orders)]
    shop.place(items)
    draw = random.Random(seed := secrets.randbits(32))
    print(f"seed {seed}")
    output = shop.directory / "bill_orders.out"
    reported: list[str] = []
    for _ in range(kills):
        child = shop.start("bill_orders.py")
        goal = draw.randint(1, orders // (kills + 1))
        until(
            f"{goal} orders are billed",
            lambda goal=goal: output.read_text().count("billed:") >= goal,
            explain=output.read_text,
        )
        child.kill()
        child.wait(RUN_S_MAX)
        reported += output.read_text().splitlines()
    reported += shop.run("bill_orders.py")
    while shop.undecided():
        reported += shop.run("bill_orders.py")  # it answers checks as long as it runs
    written = shop.bills_written()
    assert Counter(item for _, item in written) == Counter(items)

    def announced() -> Counter[str]:
        records = read_all(shop.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"], [shop.bills])
        return Counter((each.value or b"").decode() for each in records)

    until("all bills are announced", lambda: announced().total() >= orders)
    assert announced() == Counter(f"bill {number} for {item}" for number, item in written)
    # A run in which no order came again proves nothing.
    assert any(line.startswith("billed before:") for line in reported)


def test_a_killed_consumer_bills_each_order_once_and_announces_it_once(shop: Shop) -> None:
    """Bills are those of the orders, and so are the messages about bills."""
    bill_under_kills(shop, orders=40, kills=4)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_fifty_kills_bill_each_order_once_and_announce_it_once(shop: Shop) -> None:
    """The same, for long."""
    bill_under_kills(shop, orders=600, kills=50)


@pytest.mark.feature
def test_every_example_is_run_and_described() -> None:
    """A program that no test runs rots; one that the page does not name is not found."""
    page = (EXAMPLES / "README.md").read_text("utf-8")
    folders = (Path(__file__).parent, Path(__file__).parents[1] / "spark")
    tests = "".join(each.read_text("utf-8") for folder in folders for each in folder.glob("test_*"))
    for path in EXAMPLES.glob("*.py"):
        used = (f'"{path.name}"', f"{path.stem}:app", f'"{path.stem}")')
        assert any(each in tests for each in used), path.name
        assert path.name in page


# --- the Python of docs/how-to/send.md, own-checker.md and docs/incidents/dead-letters.md --

MANY = 100


def blocks(page: str) -> list[str]:
    """Return the Python of a page in docs/how-to/."""
    text = Path(__file__).parents[2].joinpath("docs", "how-to", page).read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def twice(_number: object, _id: object) -> None:
    """Refuse an order, as a unique key does."""
    raise IntegrityError("INSERT", {}, ValueError())


def test_the_clients_examples_work_as_they_stand(cluster: Cluster) -> None:
    """A block, a function and a hundred futures commit; a constraint that is violated does not."""
    stock = cluster.names.prefix + "stock"
    cluster.create((stock, 1))
    saved: list[Any] = []
    with cluster.producer(topics=[]) as producer:
        known: dict[str, Any] = {
            "producer": producer,
            "save": lambda number, _: saved.append(number),
            "Message": Message,
            "Resolution": Resolution,
        }
        for block in (*blocks("send.md"), *blocks("own-checker.md")):
            text = block.replace('"orders"', repr(cluster.orders)).replace('"stock"', repr(stock))
            exec(text, known)
        known["place"]("first")
        known["save"] = twice
        with pytest.raises(IntegrityError):
            known["place_once"]("first")
    ops = cluster.ops()  # of several partitions, in no common order
    assert Counter(op.kind for _, op in ops) == {OpKind.COMMIT: MANY + 2, OpKind.ROLLBACK: 1}
    (place,) = [record.partition() for record, op in ops if op.kind is OpKind.ROLLBACK]
    assert [op.kind for record, op in ops if record.partition() == place][-1] is OpKind.ROLLBACK
    assert saved == [7, *[0] * MANY, "first"]
    assert len(cluster.read(cluster.names.half)) == MANY + 4


def test_dead_letters_are_printed_as_operators_read_them(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that are there, with the reason, each time that it runs; marks are passed over."""
    dead = cluster.names.dead
    cluster.create((dead, 1))
    letter = DeadLetter(DeadReason.CHECK_TIMES, "", 15, 1, 2, cluster.names.half, 0, 7)
    producer = Producer({"bootstrap.servers": cluster.servers})
    for key in (b"first", b"second"):
        producer.produce(dead, b"v", key, headers=[(DEAD, DEAD_LETTER.encode(letter))])
        producer.produce(dead, None, key, headers=[(DEAD_MARK, b"any")])
    assert producer.flush(TIMEOUT_S) == 0

    (block,) = blocks("../incidents/dead-letters.md")
    own = block.replace("127.0.0.1:9092", cluster.servers).replace('"dead-letters"', repr(dead))
    for _ in range(2):
        exec(own.replace('"TRANS_CHECK_MAX_TIME_TOPIC"', repr(dead)), {})

        first, second = capsys.readouterr().out.splitlines()
        assert "CHECK_TIMES" in first
        assert [first.endswith("b'first' b'v'"), second.endswith("b'second' b'v'")] == [True, True]
