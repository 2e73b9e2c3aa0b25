"""Celery tasks that place orders: `celery --workdir examples -A celery_shop worker`.

Each process of the pool makes its producer after the fork, and answers checks as long as it runs.
The task's id is the key of an inbox: Celery may run a task again, which then does nothing.
"""

import os

from celery import Celery
from celery.signals import worker_init, worker_process_init, worker_process_shutdown
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from halfbridge import BridgeError, Message, TransactionProducer
from halfbridge.sql import Fence, Inbox

app = Celery("celery_shop", broker=os.environ.get("SHOP_BROKER", "redis://127.0.0.1:6379/0"))
app.conf.update(
    task_acks_late=True,  # by default the broker forgets a task before it runs
    task_reject_on_worker_lost=True,  # by default a task fails whose process was killed
    task_ignore_result=True,
    # A process that takes longer to start is killed. The default is 4 s, and Kafka may be slow.
    worker_proc_alive_timeout=60.0,
    # Redis only: how long tasks wait whose whole worker has died. The default is an hour.
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("SHOP_VISIBILITY_S", "600"))
    },
)

# Without a pool no two processes share a connection.
engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"), poolclass=NullPool)
orders = Table(
    "celery_orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("item", String(99)),
)
fence = Fence(engine, producer_group="order-service")
inbox = Inbox(engine, group_id="order-tasks")
producer: TransactionProducer  # one a process of the pool


@worker_init.connect
def create(**_: object) -> None:
    """Create the tables before the pool forks its processes."""
    orders.metadata.create_all(engine)
    fence.create()
    inbox.create()


@worker_process_init.connect
def start(**_: object) -> None:
    """Make the producer of a process."""
    global producer  # noqa: PLW0603 (one a process)
    producer = TransactionProducer(
        bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        producer_group="order-service",
        topics=["orders"],
        checker=fence.check,
    )
    producer.start()


@worker_process_shutdown.connect
def stop(**_: object) -> None:
    """Send the last decisions: these processes end without Python's exit handlers."""
    producer.close()


@app.task(
    autoretry_for=(BridgeError, DBAPIError),
    retry_backoff=1,
    retry_backoff_max=60,
    max_retries=None,
)
def place(item: str) -> None:
    """Place an order: its row, the task's mark and the message, all or nothing."""
    producer.start()  # Kafka may have been away when the process began; else it does nothing
    with fence.transaction(producer) as (tx, connection):
        if inbox.once(connection, None, key=place.request.id):
            number = connection.scalar(insert(orders).values(item=item).returning(orders.c.id))
            tx.send(Message("orders", key=b"%d" % number, value=item.encode()))
