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
            item, key = ((each or b"").decode() for each in (message.value(), message.key()))
            headers = dict(message.headers() or [])
            print(item, "of", key, "by", headers["__transactionId__"])
