"""The yardstick and the control: a plain outbox relay, which sends and then marks.

`python -m tests.sql.plain_relay URL BOOTSTRAP`, until SIGTERM, on PostgreSQL. Rows by SKIP LOCKED,
woken by notifications: what most outbox relays do. Killed between its two steps it sends rows
twice, and two of them part the rows of a key.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Producer
from sqlalchemy import create_engine, false, select, true, update

from halfbridge.sql.local_messages.rows import headers_of
from halfbridge.sql.local_messages.wakeups import Listener, Wakeups
from halfbridge.sql.local_messages.writer import LocalMessages

BATCH_ROWS = 500
FLUSH_S = 30.0
WAIT_MS = 500


def relay(url: str, bootstrap: str) -> None:
    """Relay rows for ever."""
    messages = LocalMessages(create_engine(url))
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2"}
    )
    wakeups = Wakeups(WAIT_MS, WAIT_MS)
    Listener(messages, wakeups.wake).start()
    while True:
        wakeups.begin()
        if not send_some(messages, producer):
            wakeups.wait()


def send_some(messages: LocalMessages, producer: Any) -> int:
    """Send rows, then mark them; return how many."""
    table = messages.tables.messages
    columns = table.c
    is_todo = [
        columns.decision_acknowledged == false(),
        columns.state == "LOCAL_COMMIT",
    ]
    query = (
        select(columns.id, columns.topic, columns.key, columns.value, columns.headers)
        .where(*is_todo, columns.has_key == true())
        .order_by(columns.id)
        .limit(BATCH_ROWS)
        .with_for_update(skip_locked=True)
    )
    with messages.engine.begin() as connection:
        rows = connection.execute(query).all()
        for row in rows:
            producer.produce(row.topic, row.value, row.key, headers=list(headers_of(row.headers)))
            producer.poll(0)
        if producer.flush(FLUSH_S):
            raise RuntimeError("Kafka does not acknowledge")
        if rows:
            marked = update(table).where(columns.id.in_([row.id for row in rows]))
            connection.execute(marked.values(state="GLOBAL_COMMIT", decision_acknowledged=true()))
    return len(rows)


if __name__ == "__main__":
    relay(*sys.argv[1:])
