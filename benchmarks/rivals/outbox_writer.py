"""The service of an outbox: `python -m benchmarks.rivals.outbox_writer URL <config>`.

Each thread has a connection of its own, and commits one row a transaction: the row is the whole
local transaction, as halfbridge's and RocketMQ's are empty. Prints one JSON line, and waits for
SIGTERM, so that the bench can read what the process has used.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from halfbridge.bench.load import (
    BenchConfig,
    Turns,
    lead_in,
    make_keys,
    make_packer,
    print_fact,
    scheduled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

RATE_THREADS = 16  # each commit waits for the disk: this many keep a schedule of 2,000/s
INSERT = "INSERT INTO outbox (topic, key, payload) VALUES (%s, %s, %s)"


def main(url: str, text: str) -> None:
    config = BenchConfig.from_json(text)
    run_turns(config, partial(write, url, config))


def run_turns(config: BenchConfig, write: Callable[[Turns], int]) -> None:
    """Have threads `write` the load, print when its first measured turn was due; until SIGTERM.

    The schedule begins with this call.
    """
    numbers = itertools.chain(range(-lead_in(config.rate), 0), range(config.messages))
    turns = Turns(
        scheduled(numbers, config.rate)
        if config.rate
        else ((number, time.monotonic_ns()) for number in numbers)
    )
    threads = threads_of(config)
    with ThreadPoolExecutor(threads) as pool:
        work = [pool.submit(write, turns) for _ in range(threads)]
        first_ns = min(each.result() for each in work)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print_fact({"committed": config.messages, "first_ns": first_ns})
    while True:
        signal.pause()


def threads_of(config: BenchConfig) -> int:
    return config.threads or RATE_THREADS


def write(url: str, config: BenchConfig, turns: Turns) -> int:
    """Commit rows while there are turns; return when the first measured one was due, ns."""
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    first_ns = sys.maxsize
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        while (turn := turns()) is not None:
            number, due_ns = turn
            if number >= 0:
                first_ns = min(first_ns, due_ns)
            key = keys[number % len(keys)]
            connection.execute(INSERT, [config.real_topic, key, pack(due_ns, number)])
    return first_ns


if __name__ == "__main__":
    main(*sys.argv[1:])
