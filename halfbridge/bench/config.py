"""The configuration of a bench run, which every process of the run receives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

HEAD_BYTES = 16  # send time and index, see payload


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """The configuration of one run.

    Attributes:
        messages: Number of measured transactions, with one message each.
        size_bytes: Size of each value.
        in_flight: Most unacknowledged records of the pipelined client.
        workers: Number of the daemon's worker processes.
        rate: Transactions a second, sent on schedule (open loop); 0: as fast as possible.
        threads: Threads that each block on send and commit; 0: one pipelined thread.
        warmup_s: Duration of the load before the measurement, seconds. It covers the time in which
            the broker's JVM compiles its code.
        partitions: Partitions of half topic, op topic and real topic.
        keys: Number of distinct message keys; 0: null keys.
        linger_ms: How long the client collects records for a batch.
        bootstrap_servers: The brokers.
        topic_prefix: Prefix of the internal topics.
        real_topic: Topic that the transactions deliver to.
        plain_topic: Topic that the plain producer writes to.
    """

    messages: int
    size_bytes: int
    in_flight: int
    workers: int
    rate: float
    threads: int
    warmup_s: float
    partitions: int
    keys: int
    linger_ms: float
    bootstrap_servers: str = ""
    topic_prefix: str = ""
    real_topic: str = ""
    plain_topic: str = ""

    def to_json(self) -> str:
        """Return the config as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BenchConfig:
        """Return the config in `text`."""
        return cls(**json.loads(text))
