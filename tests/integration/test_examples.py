"""The programs in examples/, each run unchanged, on a real broker with a real daemon."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from redis import Redis
from sqlalchemy.exc import IntegrityError

from halfbridge import Message, Resolution
from halfbridge.serde import DEAD_LETTER, DeadLetter, DeadReason, OpKind
from halfbridge.serde.headers import DEAD, DEAD_MARK
from tests.integration.celery_tasks import CeleryTasks
from tests.integration.producing import TIMEOUT_S, Cluster
from tests.integration.shop import EXAMPLES, WEB_SERVICES, Shop, WebService, WebShop, rows_of
from tests.kit.waiting import until
from tests.sql.servers import PostgresServer

pytestmark = pytest.mark.broker


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
    """crash.py: the row is committed, the message is delivered; the order is not repeated."""
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
@pytest.mark.parametrize("service", WEB_SERVICES.values(), ids=WEB_SERVICES)
def test_a_web_service_takes_orders(shop: Shop, service: WebService) -> None:
    """An order and its message, with the number that the database has made.

    An order that is refused has neither.
    """
    web = WebShop(shop, service)
    web.start()
    statuses = [web.order(each) for each in ("boots", "boots", "gloves")]
    assert statuses == [HTTPStatus.CREATED, HTTPStatus.CONFLICT, HTTPStatus.CREATED]
    rows = rows_of(shop.sqlite(), f"SELECT item || ' of ' || id FROM {service.table}")
    assert sorted(shop.read()) == sorted(rows.elements())
    assert sorted(row.partition(" ")[0] for row in rows) == ["boots", "gloves"]


@pytest.mark.feature
def test_a_task_of_celery_that_runs_again_is_one_order(shop: Shop, redis: Redis) -> None:
    """celery_shop.py: tasks that are given twice under their ids; each is a row and a message."""
    tasks = CeleryTasks(shop, redis, shop.sqlite(), "celery_shop")
    tasks.start()
    for _ in range(2):
        tasks.give(["boots", "gloves"])
        tasks.await_rows(2)
    tasks.finish()
    tasks.stop()
    assert tasks.placed() == Counter(["boots", "gloves"])
    assert shop.messages() == tasks.rows()


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


@pytest.mark.feature
def test_every_example_is_run_and_described() -> None:
    """A program that no test runs rots; one that the page does not name is not found."""
    page = (EXAMPLES / "README.md").read_text("utf-8")
    folders = (Path(__file__).parent, Path(__file__).parents[1] / "spark")
    tests = "".join(each.read_text("utf-8") for folder in folders for each in folder.glob("*.py"))
    for path in EXAMPLES.glob("*.py"):
        used = (f'"{path.name}"', f'WebService("{path.stem}"', f'"{path.stem}")')
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
