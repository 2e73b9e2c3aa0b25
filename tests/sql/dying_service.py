"""A service with a fence that dies in its block: `dying_service.py SERVERS PREFIX GROUP URL TOPIC`.

With a further argument `committed` it dies between the database's COMMIT and the message's;
without it, before the database's COMMIT. Prints the transaction's id.
"""

import os
import signal
import sys

from sqlalchemy import create_engine, text

from halfbridge import Message, TransactionProducer
from halfbridge.sql import Fence

servers, prefix, group, url, topic, *words = sys.argv[1:]
engine = create_engine(url)
fence = Fence(engine, producer_group=group)
fence.create()
with TransactionProducer(
    bootstrap_servers=servers,
    topic_prefix=prefix,
    producer_group=group,
    transaction_timeout_ms=1_000,  # as the tests' daemons
    checker=fence.check,
) as producer:
    tx = producer.begin(context=fence.context())
    tx.send(Message(topic, key=b"k", value=group.encode()))
    with engine.connect() as connection:
        fence.enter(connection, tx)
        connection.execute(text("SELECT 1"))
        if "committed" in words:
            connection.commit()
        print(tx.id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
