"""A checker of your own on PostgreSQL, without a fence: what it can prove, and what it cannot.

The order's row holds the transaction id. A row proves COMMIT. No row proves nothing while the
local transaction may still run, so the checker answers UNKNOWN then; an order that was refused by
the database is rolled back at once by `rollback_on`.
"""

import os
import sys

import psycopg

from halfbridge import Message, MessageView, Resolution, TransactionProducer

URL = os.environ.get("SHOP_URL", "postgresql://postgres@127.0.0.1:5432/postgres")


def connect() -> psycopg.Connection:
    """Connect. Lost connections, locks and slow queries end as errors before check_timeout_ms."""
    options = "-c statement_timeout=5000 -c lock_timeout=5000"
    return psycopg.connect(URL, connect_timeout=5, tcp_user_timeout=5_000, options=options)


def check(view: MessageView) -> Resolution:
    """Return COMMIT for an order that is there."""
    with connect() as connection:
        query = "SELECT 1 FROM orders WHERE transaction_id = %s"
        row = connection.execute(query, [view.transaction_id]).fetchone()
    return Resolution.COMMIT if row else Resolution.UNKNOWN


with connect() as connection:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS orders (number INT PRIMARY KEY, transaction_id TEXT UNIQUE)"
    )
producer = TransactionProducer(
    bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    producer_group="order-service",
    topics=["orders"],
    checker=check,
)
with producer:
    for number in map(int, sys.argv[1:]):
        try:
            with producer.begin(rollback_on=psycopg.IntegrityError) as tx:
                tx.send(Message("orders", key=b"%d" % number, value=b"order %d" % number))
                with connect() as connection:  # commits at its end
                    connection.execute("INSERT INTO orders VALUES (%s, %s)", [number, tx.id])
        except psycopg.IntegrityError:
            print("order", number, "is there already; its message is rolled back")
        else:
            print("order", number, "is placed")
