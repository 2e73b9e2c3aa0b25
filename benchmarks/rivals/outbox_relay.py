"""The relay of an outbox table, until SIGTERM.

`python -m benchmarks.rivals.outbox_relay URL BOOTSTRAP` runs one.
At least once, by polling: it locks rows (SKIP LOCKED, so that several relays may run), sends them,
waits for the acknowledgements, deletes the rows and commits. A death between sending and committing
sends them again.
"""

from __future__ import annotations

import sys
import time

import psycopg
from confluent_kafka import Producer

BATCH_ROWS = 500
# Ten times as often as relays usually look; less would gain little, and load the database.
PAUSE_S = 0.01
FLUSH_S_MAX = 30.0
TAKE = """
    SELECT id, topic, key, payload FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
"""
DELETE = "DELETE FROM outbox WHERE id = ANY(%s)"


def main(url: str, bootstrap: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
    )
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        while True:
            if not send_some(connection, producer):
                time.sleep(PAUSE_S)


def send_some(connection: psycopg.Connection, producer: Producer) -> int:
    """Send the oldest rows, and delete them; return how many."""
    with connection.transaction():
        rows = connection.execute(TAKE, [BATCH_ROWS]).fetchall()
        if not rows:
            return 0
        for _, topic, key, payload in rows:
            producer.produce(topic, payload, key)
            producer.poll(0)
        if producer.flush(FLUSH_S_MAX):
            raise RuntimeError("Kafka does not acknowledge")
        connection.execute(DELETE, [[row[0] for row in rows]])
    return len(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
