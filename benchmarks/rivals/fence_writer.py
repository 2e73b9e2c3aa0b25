"""A service with a fence: `python -m benchmarks.rivals.fence_writer URL <config>`.

Each thread inserts one row a transaction, and sends one message in the same block. Prints one JSON
line, and waits for SIGTERM, so that the bench can read what the process has used.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text

from benchmarks.rivals.outbox_writer import RATE_THREADS
from halfbridge import Message, TransactionProducer
from halfbridge.bench.load import (
    BenchConfig,
    Turns,
    lead_in,
    make_keys,
    make_packer,
    print_fact,
    scheduled,
)
from halfbridge.bench.roles import PRODUCER_GROUP
from halfbridge.sql import Fence

if TYPE_CHECKING:
    from collections.abc import Callable

INSERT = text("INSERT INTO work (number) VALUES (:number)")


def main(url: str, given: str) -> None:
    config = BenchConfig.from_json(given)
    threads = config.threads or RATE_THREADS
    fence = Fence(create_engine(url, pool_size=threads), producer_group=PRODUCER_GROUP)
    with TransactionProducer(
        producer_group=PRODUCER_GROUP, checker=fence.check, **config.producer_settings
    ) as producer:
        # The schedule begins when the producer has started.
        numbers = itertools.chain(range(-lead_in(config.rate), 0), range(config.messages))
        turns = Turns(
            scheduled(numbers, config.rate)
            if config.rate
            else ((number, time.monotonic_ns()) for number in numbers)
        )
        with ThreadPoolExecutor(threads) as pool:
            work = [pool.submit(write, fence, producer, config, turns) for _ in range(threads)]
            first_ns = min(each.result() for each in work)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print_fact({"committed": config.messages, "first_ns": first_ns})
        while True:
            signal.pause()


def write(
    fence: Fence,
    producer: TransactionProducer,
    config: BenchConfig,
    turns: Callable[[], tuple[int, int] | None],
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
