"""The configuration of a bench run, which every process of the run receives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

HEAD_BYTES = 16  # send time and index, see payload
# Halves the broker's work, and nobody waits for a single acknowledgement.
_LINGER_MS_PIPELINED = 5.0


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
        linger_ms: How long the client collects records for a batch; None: the client's default.
        bootstrap_servers: The brokers.
        topic_prefix: Prefix of the internal topics.
        real_topic: Topic that the transactions deliver to.
        plain_topic: Topic that the plain producer writes to.
        daemon_arguments: Further words of `halfbridge checker run`.
        has_plain_rate: Whether the rate of a plain producer is measured in this run.
        has_plain_latency: Whether the latency of a plain producer is measured in this run.
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
    linger_ms: float | None
    bootstrap_servers: str = ""
    topic_prefix: str = ""
    real_topic: str = ""
    plain_topic: str = ""
    daemon_arguments: tuple[str, ...] = ()
    has_plain_rate: bool = True
    has_plain_latency: bool = True

    @property
    def is_pipelined(self) -> bool:
        """Tell whether one thread sends as fast as it can, without waiting."""
        return not self.rate and not self.threads

    @property
    def client_settings(self) -> dict[str, Any]:
        """Settings of the client that were given; it has defaults for the others."""
        return {} if self.linger_ms is None else {"linger_ms": self.linger_ms}

    def with_linger(self) -> BenchConfig:
        """Return the config with the linger of a pipelined client, where none was given."""
        if self.linger_ms is None and self.is_pipelined:
            return replace(self, linger_ms=_LINGER_MS_PIPELINED)
        return self

    def to_json(self) -> str:
        """Return the config as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BenchConfig:
        """Return the config in `text`."""
        fields = json.loads(text)
        return cls(**{**fields, "daemon_arguments": tuple(fields["daemon_arguments"])})
