"""A service with a fence: `python -m benchmarks.rivals.fence_writer URL <config>`.

Each thread inserts one row a transaction, and sends one message in the same block. Prints one JSON
line, and waits for SIGTERM, so that the bench can read what the process has used.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text

from benchmarks.rivals.outbox_writer import run_turns, threads_of
from halfbridge import Message, TransactionProducer
from halfbridge.bench.load import BenchConfig, make_keys, make_packer
from halfbridge.bench.roles import PRODUCER_GROUP
from halfbridge.sql import Fence

if TYPE_CHECKING:
    from halfbridge.bench.load import Turns

INSERT = text("INSERT INTO work (number) VALUES (:number)")


def main(url: str, given: str) -> None:
    config = BenchConfig.from_json(given)
    engine = create_engine(url, pool_size=threads_of(config))
    fence = Fence(engine, producer_group=PRODUCER_GROUP)
    with TransactionProducer(
        producer_group=PRODUCER_GROUP, checker=fence.check, **config.producer_settings
    ) as producer:
        run_turns(config, partial(write, fence, producer, config))


def write(
    fence: Fence,
    producer: TransactionProducer,
    config: BenchConfig,
    turns: Turns,
) -> int:
    """Run blocks while there are turns; return when the first measured one was due, ns."""
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    first_ns = sys.maxsize
    while (turn := turns()) is not None:
        number, due_ns = turn
        if number >= 0:
            first_ns = min(first_ns, due_ns)
        key = keys[number % len(keys)]
        message = Message(config.real_topic, key=key, value=pack(due_ns, number))
        with fence.transaction(producer) as (tx, connection):
            tx.send(message)
            connection.execute(INSERT, {"number": number})
    return first_ns


if __name__ == "__main__":
    main(*sys.argv[1:])
