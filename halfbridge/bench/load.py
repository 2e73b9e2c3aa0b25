"""The load of a bench: its configuration, its values, and when each of them is due.

Every process of a run receives the configuration. A value holds its due time and its number. The
due time is monotonic and machine-wide (`time.monotonic_ns` on Linux), so that another process can
compute the message's age. Warm-up messages have negative numbers.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from halfbridge.serde.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD_BYTES = 16  # due time and number, 8 bytes each
# Halves the broker's work, and nobody waits for a single acknowledgement.
_LINGER_MS_PIPELINED = 5.0
_HEAD = struct.Struct(">qq")
_SEED = 1  # the same payloads in each run

unpack_head: Callable[[bytes], tuple[int, int]] = _HEAD.unpack_from
LEAD_S = 2.0  # the schedule runs this long before the measurement, so its start does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """The configuration of one run.

    Attributes:
        messages: Number of measured transactions, with one message each.
        in_flight: Most unacknowledged records of the pipelined client.
        rate: Transactions a second, sent on schedule (open loop); 0: as fast as possible.
        threads: Threads that each block on send and commit; 0: one pipelined thread.
        tasks: Tasks of an event loop that each await send and commit; 0: no event loop.
        warmup_s: Duration of the load before the measurement, in which the broker's JVM compiles.
        pairs: Partitions of half and op topic.
        partitions: Partitions of the real topic.
        keys: Number of distinct message keys; 0: null keys.
        linger_ms: How long the client collects records for a batch; None: the client's default.
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
    pairs: int
    partitions: int
    keys: int
    linger_ms: float | None
    tasks: int = 0
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
        return not (self.rate or self.threads or self.tasks)

    @property
    def client_settings(self) -> dict[str, Any]:
        """Settings of the client that were given; it has defaults for the others."""
        return {} if self.linger_ms is None else {"linger_ms": self.linger_ms}

    @property
    def producer_settings(self) -> dict[str, Any]:
        """Settings of the run's producer, but for its group and its checker."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.topic_prefix,
            "topics": [self.real_topic],
            "in_flight_max": self.in_flight,
            **self.client_settings,
        }

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


def make_packer(size_bytes: int) -> Callable[[int, int], bytes]:
    """Return a function of (due_ns, number) that returns a value of `size_bytes`.

    The filler is not compressible, so that compression does not improve the result.

    Raises:
        ValueError: `size_bytes` is too small for time and number; the caller gives more.
    """
    if size_bytes < HEAD_BYTES:
        raise ValueError(f"a measured message has at least {HEAD_BYTES} bytes")
    filler = random.Random(_SEED).randbytes(size_bytes - HEAD_BYTES)  # noqa: S311  # no secret
    pack = _HEAD.pack

    def make(due_ns: int, number: int) -> bytes:
        return pack(due_ns, number) + filler

    return make


def make_keys(count: int) -> list[bytes | None]:
    """Return the keys, which messages use in turn; one null key for a count of 0."""
    return [b"key-%d" % number for number in range(count)] or [None]


def lead_in(rate: float) -> int:
    """Return the number of messages in front of the measured ones."""
    return int(LEAD_S * rate)


def measured(config: BenchConfig, *, first_number: int) -> Iterator[int]:
    """Yield the numbers of the lead-in, from `first_number` down, and of the measured messages.

    The lead-in exists only at a given rate. Its numbers are below all numbers of the warm-up.
    """
    yield from range(first_number, first_number - lead_in(config.rate), -1)
    yield from range(config.messages)


def due_times(numbers: Iterator[int], rate: float) -> Iterator[tuple[int, int]]:
    """Yield each number with its due time, without a wait: the first one is due now."""
    interval_ns = NS_PER_S / rate
    start_ns = time.monotonic_ns()
    for place, number in enumerate(numbers):
        yield number, start_ns + int(place * interval_ns)


def scheduled(numbers: Iterator[int], rate: float) -> Iterator[tuple[int, int]]:
    """Yield each number with its due time, at that time, or at once if that has passed."""
    for number, due_ns in due_times(numbers, rate):
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / NS_PER_S)
        yield number, due_ns


def print_fact(fact: dict[str, Any]) -> None:
    """Print one JSON line for the process that runs the bench."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


class Turns:
    """Gives the items of a schedule to many threads, one item at a time."""

    def __init__(self, schedule: Iterator[tuple[int, int]]) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()

    def __call__(self) -> tuple[int, int] | None:
        """Return the next item, when it is due; None after the last one."""
        with self._lock:
            return next(self._schedule, None)
