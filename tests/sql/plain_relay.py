"""A yardstick and a control: a plain outbox relay, which sends and then marks.

`python -m tests.sql.plain_relay URL BOOTSTRAP`, until SIGTERM, on PostgreSQL. It selects rows
with SKIP LOCKED, and notifications wake it, as in most outbox relays. Killed between its two steps
it sends rows twice, and two of them divide the rows of a key. With `--once` it ends when no rows
are left, on any database; with `--die-when-sent` it kills itself between its two steps.
"""

import argparse
import os
import signal
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from confluent_kafka import Producer
from sqlalchemy import create_engine, false, select, true, update

from halfbridge.sql.local_messages.rows import headers_of
from halfbridge.sql.local_messages.service import Listener, Wakeups
from halfbridge.sql.local_messages.writer import LocalMessages

BATCH_ROWS = 500
FLUSH_S = 30.0
WAIT_MS = 500


def main() -> None:
    """Relay rows, for ever or as the options say."""
    parser = argparse.ArgumentParser(prog="plain_relay")
    parser.add_argument("url")
    parser.add_argument("bootstrap")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--die-when-sent", action="store_true")
    options = parser.parse_args()
    messages = LocalMessages(create_engine(options.url))
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2",
        }
    )
    if options.once or options.die_when_sent:
        when_sent = _die if options.die_when_sent else _go_on
        while send_some(messages, producer, when_sent):
            pass
    else:
        relay(messages, producer)


def relay(messages: LocalMessages, producer: Any) -> None:
    """Relay rows for ever."""
    wakeups = Wakeups(WAIT_MS, WAIT_MS)
    listener = Listener(messages, wakeups.wake, Event())
    Thread(target=listener.run, daemon=True).start()
    while True:
        wakeups.begin()
        if not send_some(messages, producer):
            wakeups.wait()


def _go_on() -> None:
    pass


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def send_some(
    messages: LocalMessages, producer: Any, when_sent: Callable[[], None] = _go_on
) -> int:
    """Send rows, then mark them; return how many."""
    table = messages.tables.messages
    columns = table.c
    is_todo = [columns.decision_acknowledged == false(), columns.state == "LOCAL_COMMIT"]
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
        when_sent()
        if rows:
            marked = update(table).where(columns.id.in_([row.id for row in rows]))
            connection.execute(marked.values(state="GLOBAL_COMMIT", decision_acknowledged=true()))
    return len(rows)


if __name__ == "__main__":
    main()
