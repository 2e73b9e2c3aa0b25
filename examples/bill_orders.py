"""Take an order from one topic, write its bill, and announce the bill in another topic, once each.

The mark of the order, the bill, the fence row and the message with the bill's number commit
together. An order that comes again finds its mark, and the block does nothing. An error ends the
process; the next one takes the order again, whatever became of the commit.
"""

import os
from contextlib import closing

from confluent_kafka import Consumer
from confluent_kafka import Message as Record
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence, Inbox

QUIET_S = 10.0
SERVERS = os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092")


engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///bills.db"))
bills = Table(
    "bill", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(99))
)
bills.metadata.create_all(engine)
inbox = Inbox(engine, group_id="billing-service")
inbox.create()
fence = Fence(engine, producer_group="billing-service")
fence.create()
consumer = Consumer(
    {
        "bootstrap.servers": SERVERS,
        "group.id": "billing-service",
        # A process that is started again has its partitions back at once; each has its own name.
        "group.instance.id": os.environ.get("SHOP_INSTANCE", "billing-1"),
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


def bill(order: Record, item: str) -> bool:
    """Bill an order and announce the bill, or neither; return whether the order is new."""
    with fence.transaction(producer) as (tx, connection):
        is_new = inbox.once(connection, order)
        if is_new:
            number = connection.scalar(insert(bills).values(item=item).returning(bills.c.id))
            text = f"bill {number} for {item}"
            tx.send(Message("bills", key=order.key(), value=text.encode()))
    return is_new


with closing(consumer), producer:
    consumer.subscribe(["orders"])
    while (order := consumer.poll(QUIET_S)) is not None:
        if order.error() is None:
            item = (order.value() or b"").decode()
            print("billed:" if bill(order, item) else "billed before:", item)
            consumer.store_offsets(order)
