"""Take an order from one topic, write its bill, and announce the bill in another topic, once each.

The mark of the order, the bill, the fence row and the message commit together. An order that comes
again finds its mark: the block is left by an exception, which rolls back what it has sent. Any
other error ends the process; the next one takes the order again, whatever became of the commit.
"""

import os
from contextlib import closing

from confluent_kafka import Consumer
from sqlalchemy import create_engine, text

from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence, Inbox

QUIET_S = 10.0
SERVERS = os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092")


class BilledBeforeError(Exception):
    """A committed transaction has billed the order."""


engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///bills.db"))
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS bills (item TEXT)"))
inbox = Inbox(engine, group_id="billing-service")
inbox.create()
fence = Fence(engine, producer_group="billing-service")
fence.create()
consumer = Consumer(
    {
        "bootstrap.servers": SERVERS,
        "group.id": "billing-service",
        # A process that is started again has its partitions back at once; each has its own name.
        "group.instance.id": os.environ.get("BILLING_INSTANCE", "billing-1"),
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.offset.store": False,
    }
)
producer = TransactionProducer(
    bootstrap_servers=SERVERS,
    producer_group="billing-service",
    topics=["bills"],
    checker=fence.check,
)


def bill(order):
    """Bill an order and announce the bill, or neither."""
    item = order.value().decode()
    with fence.transaction(producer) as (tx, connection):
        tx.send(Message("bills", key=order.key(), value=f"bill for {item}".encode()))
        if not inbox.once(connection, order):
            raise BilledBeforeError
        connection.execute(text("INSERT INTO bills VALUES (:item)"), {"item": item})


with closing(consumer), producer:
    consumer.subscribe(["orders"])
    while (order := consumer.poll(QUIET_S)) is not None:
        if order.error() is None:
            try:
                bill(order)
                print("billed:", order.value().decode())
            except BilledBeforeError:
                print("billed before:", order.value().decode())
            consumer.store_offsets(order)
