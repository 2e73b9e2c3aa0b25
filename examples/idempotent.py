"""Do the work of each message once, whatever is delivered again: an inbox in the database."""

import os
from contextlib import closing

from confluent_kafka import Consumer
from sqlalchemy import create_engine, text

from halfbridge.sql import Inbox

QUIET_S = 10.0

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///billing.db"))
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS invoices (item TEXT)"))
inbox = Inbox(engine, group_id="invoices")
inbox.create()
consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        "group.id": "invoices",
        # A process that is started again has its partitions back at once; each has its own name.
        "group.instance.id": os.environ.get("SHOP_INSTANCE", "invoices-1"),
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,  # worse than it has to be: each run reads all of it again
    }
)
with closing(consumer):
    consumer.subscribe(["orders"])
    while (message := consumer.poll(QUIET_S)) is not None:
        if message.error() is None:
            item = (message.value() or b"").decode()
            with engine.begin() as connection:  # mark and work commit together, or neither
                is_new = inbox.once(connection, message)
                if is_new:
                    connection.execute(text("INSERT INTO invoices VALUES (:item)"), {"item": item})
            print("invoice for" if is_new else "seen before:", item)
