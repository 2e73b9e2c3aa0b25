"""The baseline of latency, a separate process: plain records with acks=all at a given rate.

`python -m halfbridge.bench.plain_latency <config>` sends to `real_topic`, where the consumer of
the bench reads, and prints one JSON line.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

from halfbridge.bench.config import BenchConfig
from halfbridge.bench.payload import make_keys, make_packer
from halfbridge.bench.plain_clients import make_plain_producer
from halfbridge.bench.schedule import lead_in, scheduled

_ACK_S_MAX = 60.0  # a run that takes longer has failed


def main(arguments: list[str]) -> int:
    """Send on schedule; return 1 if a record was not acknowledged."""
    config = BenchConfig.from_json(arguments[0])
    producer = make_plain_producer(config.bootstrap_servers, linger_ms=0)
    pack, keys = make_packer(config.size_bytes), make_keys(config.keys)
    failed: list[str] = []

    def on_delivery(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    numbers = itertools.chain(range(-lead_in(config.rate), 0), range(config.messages))
    for number, due_ns in scheduled(numbers, config.rate):
        key = keys[number % len(keys)]
        producer.produce(config.real_topic, pack(due_ns, number), key, on_delivery=on_delivery)
        producer.poll(0)
    if producer.flush(_ACK_S_MAX) or failed:
        sys.stderr.write(f"plain: not all records were acknowledged: {failed[:1]}\n")
        return 1
    sys.stdout.write(json.dumps({"acknowledged": config.messages}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
