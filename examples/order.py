"""Place an order: a row in the database and a message in Kafka, both or neither."""

import os
import sys

from sqlalchemy import create_engine, text

from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS placed (customer INT, item TEXT)"))
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
        tx.send(Message("orders", key=b"customer-42", value=item.encode()))
        connection.execute(text("INSERT INTO placed VALUES (42, :item)"), {"item": item})
        if item == "nothing":
            raise SystemExit("nobody orders nothing: neither the row nor the message is there")
print("placed", item, "as", tx.id)
