"""What is measured, as one frozen object that every process of a run gets whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

HEAD_BYTES = 16  # send time and index, see payload


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """One run.

    Attributes:
        messages: Transactions measured, one message each.
        size_bytes: Of each value.
        in_flight: Unacknowledged records that the pipelined client allows itself.
        workers: Worker processes of the daemon.
        rate: Transactions a second, sent on schedule (open loop); 0: as fast as they go.
        threads: Threads that each block on send and commit; 0: one pipelined thread.
        warmup_s: Load before anything is measured, for the broker's compiler, seconds.
        partitions: Of half, op and real topic.
        keys: Distinct message keys; 0: null keys.
        linger_ms: How long the client lets records pile up.
        bootstrap_servers: Where the broker is.
        topic_prefix: Of the internal topics.
        real_topic: Where the transactions deliver to.
        plain_topic: Where the plain producer writes to.
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
        """Return what `from_json` takes back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BenchConfig:
        """Return the config in `text`."""
        return cls(**json.loads(text))
