"""Die at the worst moment, and recover: `crash.py die`, then `crash.py recover`.

The database has committed the order, and its message is not committed yet. Whoever runs next in
the producer group is asked how the order ended, and answers by the fence's row.
"""

import os
import sys
import time

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, insert

from halfbridge import Answer, Message, MessageView, TransactionProducer
from halfbridge.sql import Fence

RECOVERED_S = 60.0

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
placed = Table(
    "placed", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(99))
)
placed.metadata.create_all(engine)
fence = Fence(engine, producer_group="order-service")
fence.create()


def check(view: MessageView) -> Answer:
    """Answer by the fence, and say so."""
    answer = fence.check(view)
    print("asked about", view.transaction_id, "answered", answer.resolution.value, flush=True)
    return answer


producer = TransactionProducer(
    bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    producer_group="order-service",
    topics=["orders"],
    checker=check,
)
with producer:
    if sys.argv[1] == "die":
        with fence.transaction(producer) as (tx, connection):
            tx.send(Message("orders", key=b"customer-7", value=b"a hat"))
            connection.execute(insert(placed).values(item="a hat"))
            print("dies behind the COMMIT of", tx.id, flush=True)
            # SQLAlchemy returns a connection to its pool once the database has committed.
            event.listen(engine, "reset", lambda *_: os._exit(1))
    deadline = time.monotonic() + RECOVERED_S
    while producer.check_counts().answered == 0 and time.monotonic() < deadline:
        time.sleep(0.2)
