"""Place an order: a row that the database numbers and a message in Kafka, both or neither."""

import os
import sys

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert

from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
placed = Table(
    "placed", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(99))
)
placed.metadata.create_all(engine)
fence = Fence(engine, producer_group="order-service")
fence.create()  # does nothing if it is there

producer = TransactionProducer(
    bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    producer_group="order-service",
    topics=["orders"],
    checker=fence.check,
)
item = sys.argv[1] if len(sys.argv) > 1 else "two shirts"
with producer:
    with fence.transaction(producer) as (tx, connection):
        order = connection.scalar(insert(placed).values(item=item).returning(placed.c.id))
        tx.send(Message("orders", key=b"order-%d" % order, value=item.encode()))
        if item == "nothing":
            raise SystemExit("nobody orders nothing: neither the row nor the message is there")
print("placed", item, "as", tx.id)
