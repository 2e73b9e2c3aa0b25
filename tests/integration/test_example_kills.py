"""The programs in examples/ under SIGKILLs: the rows of the database are the messages of the topic.

Each kind has a control: the same program without halfbridge, which loses or repeats under them.
Consumers on frameworks are killed in tests/sql/test_inbox_frameworks.py.
"""

import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import NamedTuple

import pytest
from redis import Redis

from tests.faults.stage import seed_of_run
from tests.integration.celery_tasks import PLAIN_TASKS, CeleryTasks
from tests.integration.shop import (
    RUN_S_MAX,
    WEB_SERVICES,
    Shop,
    WebService,
    WebShop,
    kill,
    rows_of,
)
from tests.kit.waiting import until
from tests.sql.servers import PostgresServer

pytestmark = [pytest.mark.broker, pytest.mark.long]
KILLS, CONTROL_KILLS = 50, 10
WEB_CLIENTS, ORDERS_A_LIFE_MAX = 4, 24
ORDERS_BILLED = 600


def address_on(server: PostgresServer, driver: str) -> str:
    """Return SQLAlchemy's URL of a new database."""
    url = server.url(server.create_database(), user=server.admin)
    return url.replace("postgresql+psycopg:", f"{driver}:")


# --- web services ---------------------------------------------------------------------------------

PLAIN_PRODUCER = """
import os
from confluent_kafka import Producer

producer = None

def send(item, number):
    global producer
    producer = producer or Producer(
        {"bootstrap.servers": os.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"]}
    )
    producer.produce(TOPIC, item, b"%d" % number)
"""
# The services without halfbridge, which commit first and send then.
PLAIN_SERVICES = {
    "async_shop": """
from fastapi import FastAPI
from async_shop import Base, Order, engine, sessions

app = FastAPI()

@app.get("/health")
async def health():
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

@app.post("/orders", status_code=201)
async def place(item: str):
    async with sessions.begin() as session:
        session.add(order := Order(item=item))
        await session.flush()
    send(item, order.id)
""",
    "web_shop": """
from fastapi import FastAPI
from web_shop import Base, Order, engine, session_factory

Base.metadata.create_all(engine)
app = FastAPI()

@app.post("/orders", status_code=201)
def place(item: str):
    with session_factory.begin() as session:
        session.add(order := Order(item=item))
        session.flush()
        number = order.id
    send(item, number)
""",
    "django_shop": """
from django_shop import JsonResponse, Order, application, csrf_exempt, path, settings

settings.ROOT_URLCONF = __name__

@csrf_exempt
def place(request):
    order = Order.objects.create(item=request.GET["item"])
    send(order.item, order.pk)
    return JsonResponse({}, status=201)

urlpatterns = [path("orders", place), path("health", lambda request: JsonResponse({}))]
""",
}


class Ordered(NamedTuple):
    """What killed web services have left."""

    rows: Counter[str]  # "NUMBER: ITEM"
    answers: Counter[int | None]


def order_under_kills(
    shop: Shop, server: PostgresServer, service: WebService, kills: int
) -> Ordered:
    """Order from several clients while all processes of a service are killed, again and again."""
    url = shop.sqlite()
    if service.driver:
        url = address_on(server, "postgresql+psycopg")
        shop.environ["SHOP_URL"] = url.replace("postgresql+psycopg", service.driver)
    web, numbers, answers = WebShop(shop, service), count(), Counter[int | None]()
    draw = random.Random(seed_of_run())
    with ThreadPoolExecutor(WEB_CLIENTS) as clients:
        for _ in range(kills):
            process = web.start()
            orders = draw.randint(WEB_CLIENTS, ORDERS_A_LIFE_MAX)
            given = [clients.submit(web.order, f"hat-{next(numbers)}") for _ in range(orders)]
            given[draw.randrange(orders)].result()
            kill(process)
            answers.update(each.result() for each in given)
    web.start()  # answers the checks
    until("all is decided", lambda: not shop.undecided())
    return Ordered(rows_of(url, f"SELECT id, item FROM {service.table}"), answers)


@pytest.mark.parametrize("service", WEB_SERVICES.values(), ids=WEB_SERVICES)
def test_orders_are_messages_though_a_web_service_is_killed_fifty_times(
    shop: Shop, postgresql: PostgresServer, service: WebService
) -> None:
    """Each row has its message once; what was answered is there."""
    rows, answers = order_under_kills(shop, postgresql, service, KILLS)
    print(f"{rows.total()} orders, answers {answers}")
    until("all messages are there", lambda: shop.messages().total() >= rows.total())
    assert shop.messages() == rows
    assert rows.total() >= answers[HTTPStatus.CREATED] > KILLS
    assert answers[None]  # else no request was under way at a kill


@pytest.mark.parametrize("name", PLAIN_SERVICES)
def test_without_a_fence_killed_web_services_lose_messages(
    shop: Shop, postgresql: PostgresServer, name: str
) -> None:
    """The control."""
    plain = PLAIN_PRODUCER.replace("TOPIC", repr(shop.topic)) + PLAIN_SERVICES[name]
    shop.write(f"plain_{name}.py", plain)
    service = WEB_SERVICES[name]._replace(app=f"plain_{name}")
    rows, _ = order_under_kills(shop, postgresql, service, CONTROL_KILLS)
    assert rows - shop.messages()


# --- programs that place an order and end ---------------------------------------------------------

PLAIN_ORDER = """
import os, sys
from confluent_kafka import Producer
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
placed = Table(
    "placed", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(99))
)
placed.metadata.create_all(engine)
producer = Producer({"bootstrap.servers": os.environ["HALFBRIDGE_BOOTSTRAP_SERVERS"]})
with engine.begin() as connection:
    number = connection.scalar(insert(placed).values(item=sys.argv[1]).returning(placed.c.id))
producer.produce(TOPIC, sys.argv[1], b"order-%d" % number)
producer.flush()
"""


ORDERS_PLACED = "SELECT 'order-' || id, item FROM placed"


def place_under_kills(shop: Shop, program: str, rows: Callable[[], Counter[str]]) -> None:
    """Start a program 50 times; kill it when its row is there, or at a random moment."""
    shop.run(program, "0")  # makes the table
    draw = random.Random(seed_of_run())
    for number in range(1, KILLS + 1):
        before = rows().total()
        child = shop.start(program, str(number))

        def is_placed(before: int = before, child: subprocess.Popen[bytes] = child) -> bool:
            return rows().total() > before or child.poll() is not None

        if number % 2:
            until(f"order {number} is placed", is_placed, within_s=RUN_S_MAX, every_s=0.001)
        else:
            with suppress(subprocess.TimeoutExpired):
                child.wait(draw.uniform(0.3, 1.5))
        kill(child)


def test_orders_are_messages_though_a_program_is_killed_fifty_times(shop: Shop) -> None:
    """order.py: each row has its message once; `fence respond` answers for what is dead."""
    rows = partial(rows_of, shop.sqlite(), ORDERS_PLACED)
    place_under_kills(shop, "order.py", rows)
    group = ("--producer-group", "order-service")
    shop.start("-m", "halfbridge", "fence", "respond", *group, "--url", shop.sqlite())
    until("all is decided", lambda: not shop.undecided())
    until("all messages are there", lambda: shop.messages().total() >= rows().total())
    assert shop.messages() == rows()
    assert rows().total() > KILLS // 2


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_without_a_fence_a_killed_program_loses_messages(
    shop: Shop, request: pytest.FixtureRequest, database: str
) -> None:
    """The control: rows that nothing tells of."""
    url = shop.sqlite()
    if database == "postgresql":
        url = address_on(request.getfixturevalue("postgresql"), "postgresql+psycopg")
    shop.environ["SHOP_URL"] = url
    rows = partial(rows_of, url, ORDERS_PLACED)
    shop.write("plain_order.py", PLAIN_ORDER.replace("TOPIC", repr(shop.topic)))
    place_under_kills(shop, "plain_order.py", rows)
    assert rows() - shop.messages()


def test_rows_are_messages_though_a_program_with_its_own_checker_is_killed(
    shop: Shop, postgresql: PostgresServer
) -> None:
    """postgresql.py: rows that are there prove COMMIT, whichever process is asked."""
    url = address_on(postgresql, "postgresql+psycopg")
    shop.environ["SHOP_URL"] = url.replace("+psycopg", "")

    def rows() -> Counter[str]:
        return rows_of(url, "SELECT number, 'order ' || number FROM orders")

    place_under_kills(shop, "postgresql.py", rows)
    numbers = count(KILLS + 1)

    def are_messages() -> bool:
        """Place more orders, because only a producer answers checks."""
        shop.run("postgresql.py", *(str(next(numbers)) for _ in range(100)))
        return shop.messages() == rows()

    until("rows are messages", are_messages, within_s=RUN_S_MAX)
    assert rows().total() > KILLS // 2


def test_rows_are_messages_though_a_program_dies_fifty_times_behind_its_commit(shop: Shop) -> None:
    """crash.py: those that come later are asked about each that died."""
    for _ in range(KILLS):
        shop.run("crash.py", "die", status=1)
    while shop.undecided():
        shop.run("crash.py", "recover")
    rows = rows_of(shop.sqlite(), "SELECT 'customer-7', item FROM placed")
    assert rows == {"customer-7: a hat": KILLS}
    until("all messages are there", lambda: shop.messages().total() >= KILLS)
    assert shop.messages() == rows


# --- consumers ------------------------------------------------------------------------------------


class Consumer(NamedTuple):
    """A consumer that ends when the topic is silent."""

    program: str
    new: str  # what it prints for an order that it had not seen
    again: str  # for others
    rows: str  # a query of its items
    database: str


CONSUMERS = {
    "bill_orders": Consumer(
        "bill_orders.py", "billed: ", "billed before: ", "SELECT item FROM bill", "bills.db"
    ),
    "idempotent": Consumer(
        "idempotent.py", "invoice for ", "seen before: ", "SELECT item FROM invoices", "billing.db"
    ),
}


class Taken(NamedTuple):
    """What a killed consumer has left."""

    items: Counter[str]
    repeats: int  # orders that came again


def take_under_kills(shop: Shop, consumer: Consumer, items: list[str], kills: int) -> Taken:
    """Kill a consumer while it works; let it work to the end then."""
    shop.place(items)
    draw = random.Random(seed_of_run())
    printed: list[str] = []
    for _ in range(kills):
        child = shop.start(consumer.program)
        goal = draw.randint(1, len(items) // (kills + 1))
        until(
            f"{goal} orders are taken",
            lambda goal=goal: shop.output(consumer.program).count(consumer.new) >= goal,
            within_s=RUN_S_MAX,
            explain=lambda: shop.output(consumer.program),
        )
        kill(child)
        printed += shop.output(consumer.program).splitlines()
    printed += shop.run(consumer.program)
    while shop.undecided():
        printed += shop.run(consumer.program)  # it answers checks as long as it runs
    repeats = sum(line.startswith(consumer.again) for line in printed)
    return Taken(rows_of(shop.sqlite(consumer.database), consumer.rows), repeats)


@pytest.fixture
def items() -> list[str]:
    """Orders, each of another item."""
    return [f"hat-{number}" for number in range(ORDERS_BILLED)]


@pytest.mark.parametrize("name", CONSUMERS)
def test_fifty_kills_take_each_order_once(shop: Shop, items: list[str], name: str) -> None:
    """Work is done once for each order, and announced once where the program announces it."""
    taken = take_under_kills(shop, CONSUMERS[name], items, KILLS)
    assert taken.items == Counter(items)
    assert taken.repeats  # else nothing was tried
    if name == "bill_orders":
        bills = rows_of(
            shop.sqlite("bills.db"), "SELECT item, 'bill ' || id || ' for ' || item FROM bill"
        )
        until("all bills are announced", lambda: shop.messages(shop.bills).total() >= len(items))
        assert shop.messages(shop.bills) == bills


@pytest.mark.parametrize("name", CONSUMERS)
def test_without_an_inbox_killed_consumers_repeat_work(
    shop: Shop, items: list[str], name: str
) -> None:
    """The control: the same program, to which each order is new."""
    consumer = CONSUMERS[name]
    text = shop.directory.joinpath(consumer.program).read_text("utf-8")
    blind, calls = re.subn(r"inbox\.once\(connection, \w+\)", "True", text)
    assert calls == 1
    shop.write(consumer.program, blind)
    taken = take_under_kills(shop, consumer, items, CONTROL_KILLS)
    assert set(taken.items) == set(items)
    assert taken.items.total() > len(items)


# --- Celery ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True], ids=["process", "worker"])
def test_tasks_are_done_once_though_celery_is_killed_fifty_times(
    shop: Shop, redis: Redis, postgresql: PostgresServer, *, whole: bool
) -> None:
    """Kill processes of the pool, or the whole worker: each task is one row and one message.

    A worker that dies in the moment in which it takes a task from Redis loses it. So after such
    deaths the caller gives all tasks again.
    """
    url = address_on(postgresql, "postgresql+psycopg")
    tasks = CeleryTasks(shop, redis, url, "celery_shop")
    tasks.place_under_kills(KILLS, tasks.kill_worker if whole else tasks.kill_process)
    if whole:
        tasks.give(tasks.items)
    tasks.finish()
    tasks.stop()
    rows = tasks.rows()
    assert tasks.placed() == Counter(tasks.items)
    until("the messages are there", lambda: shop.messages().total() >= rows.total())
    assert shop.messages() == rows


def test_by_default_celery_loses_tasks_and_messages_and_repeats_tasks(
    shop: Shop, redis: Redis, postgresql: PostgresServer
) -> None:
    """The control: without acks_late tasks are lost, without a fence messages.

    Without an inbox a task that comes again is a second order.
    """
    shop.write("plain_tasks.py", PLAIN_TASKS.replace("TOPIC", repr(shop.topic)))
    url = address_on(postgresql, "postgresql+psycopg")
    tasks = CeleryTasks(shop, redis, url, "plain_tasks")
    tasks.place_under_kills(CONTROL_KILLS, tasks.kill_pool)
    tasks.give(["boots", "boots"])
    tasks.finish()
    tasks.stop()
    placed = tasks.placed()
    assert placed["boots"] == 2
    assert Counter(tasks.items) - placed
    assert tasks.rows() - shop.messages()
