"""The baseline, a separate process: a plain idempotent producer with acks=all.

`python -m halfbridge.bench.plain <config>` prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time

from halfbridge.bench.config import BenchConfig
from halfbridge.bench.payload import make_keys, make_packer
from halfbridge.bench.plain_clients import make_plain_producer
from halfbridge.bench.result import per_second

WARM_MESSAGES = 50_000  # a new broker compiles meanwhile
MEASURED_MESSAGES = 300_000  # some seconds
_POLL_EVERY = 200  # messages: a poll costs more than a send
_FLUSH_S_MAX = 60.0  # a run that takes longer has failed


def main(arguments: list[str]) -> int:
    """Warm up, then produce; return 1 if a record was not acknowledged."""
    config = BenchConfig.from_json(arguments[0])
    producer = make_plain_producer(config.bootstrap_servers)
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    rate = 0.0
    for count in (WARM_MESSAGES, MEASURED_MESSAGES):
        first_ns = time.monotonic_ns()
        for number in range(count):
            value = pack(first_ns, number)
            while True:
                try:
                    producer.produce(config.plain_topic, value, keys[number % len(keys)])
                    break
                except BufferError:
                    producer.poll(0.01)
            if number % _POLL_EVERY == 0:
                producer.poll(0)
        if producer.flush(_FLUSH_S_MAX):
            sys.stderr.write("plain: not all records were acknowledged\n")
            return 1
        rate = per_second(count, first_ns, time.monotonic_ns())
    sys.stdout.write(json.dumps({"per_s": rate}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
