"""The measuring consumer, a separate process: `python -m halfbridge.bench.consumer <config>`.

The consumer prints how much it has seen, in JSON lines. After SIGTERM it reads until no more
messages come, and prints its figures in a last line.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from array import array
from dataclasses import asdict
from typing import Any

from halfbridge.bench.config import BenchConfig
from halfbridge.bench.payload import unpack_head
from halfbridge.bench.plain_clients import consume, make_consumer
from halfbridge.bench.result import latency_of

_BATCH_MAX = 5_000  # records of a call: all that was fetched, so that calls do not limit the rate
_POLL_S = 0.1  # how late a stop is seen
_REPORT_S = 0.2  # how late the driver knows a count
_SILENCE_S = 1.0  # a duplicate would follow within this time: a kafka_txn takes milliseconds
_LIVELY_RATE = 5_000  # above this rate the broker's CPU is the limit


class Sight:
    """Counts arrivals. The first arrival of a number counts; each further one is a duplicate."""

    def __init__(self, messages: int) -> None:
        self._seen = bytearray(messages)
        self._ages_ns = array("q")
        self.warm = 0
        self.measured = 0
        self.duplicates = 0
        self.last_ns = 0

    def take(self, values: list[bytes], now_ns: int) -> None:
        """Count one batch of values that were visible at `now_ns`."""
        measured = self.measured
        seen, ages = self._seen, self._ages_ns.append
        for value in values:
            due_ns, number = unpack_head(value)
            if number < 0:
                self.warm += 1
            elif seen[number]:
                self.duplicates += 1
            else:
                seen[number] = 1
                measured += 1
                ages(now_ns - due_ns)
        if measured != self.measured:
            self.measured, self.last_ns = measured, now_ns

    def report(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "measured": self.measured,
            "duplicates": self.duplicates,
            "last_ns": self.last_ns,
            "latency": asdict(latency_of(self._ages_ns)),
        }


def main(arguments: list[str]) -> int:
    """Read until SIGTERM and a silence of _SILENCE_S; print the figures in the last line."""
    config = BenchConfig.from_json(arguments[0])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    consumer = make_consumer(
        config.bootstrap_servers,
        config.real_topic,
        partitions=config.partitions,
        lively=0 < config.rate <= _LIVELY_RATE,
    )
    sight = Sight(config.messages)
    reported = last = time.monotonic()
    while not stopping or time.monotonic() - last < _SILENCE_S:
        batch = consume(consumer, _BATCH_MAX, _POLL_S)
        now_ns = time.monotonic_ns()
        if batch:
            sight.take([message.value() for message in batch], now_ns)
            last = time.monotonic()
        if now_ns / 1e9 - reported > _REPORT_S:
            reported = now_ns / 1e9
            _say({"warm": sight.warm, "measured": sight.measured})
    consumer.close()
    _say(sight.report())
    return 0


def _say(fact: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
