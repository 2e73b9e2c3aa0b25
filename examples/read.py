"""Read the real topic as any consumer does; only isolation.level is not the default."""

import os
from contextlib import closing

from confluent_kafka import Consumer

QUIET_S = 10.0

consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        "group.id": "billing",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
)
with closing(consumer):
    consumer.subscribe(["orders"])
    while (message := consumer.poll(QUIET_S)) is not None:
        if message.error() is None:
            transaction_id = dict(message.headers() or [])["__transactionId__"].decode()
            print(message.value().decode(), "of", message.key().decode(), "by", transaction_id)
