"""The overview: rates, latency and health, from the daemons' metrics of the last minutes.

`Watch` reads /metrics of each daemon every ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import deque
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from halfbridge.web.work import Work

# One answer costs a worker some milliseconds of its interpreter: 0.1 % of a second each.
SAMPLE_S = 10.0
READINGS_MAX = 90  # a quarter of an hour
FETCH_S = 2.0  # as FETCH_TIMEOUT_S of the daemon's own collection
ANSWER_BYTES_MAX = 8 * 1024 * 1024  # the answer of another program must not fill the memory
_log = logging.getLogger("halfbridge.web")


@dataclass(frozen=True, slots=True)
class DaemonHealth:
    """What one daemon reports about itself."""

    url: str
    healthy: bool | None  # nothing needs an operator; None: the daemon does not answer
    ready: bool
    reason: str  # why it is not healthy or not ready
    partition_errors: tuple[tuple[str, str], ...] = ()  # what stopped a partition, by partition


class Watch:
    """Keeps the readings of the last quarter of an hour, from metrics ports http://HOST:PORT."""

    def __init__(
        self, urls: tuple[str, ...], work: Work, *, monotonic: Callable[[], float]
    ) -> None:
        self._urls = urls
        self._work = work
        self._monotonic = monotonic
        self._readings: deque[Reading] = deque(maxlen=READINGS_MAX)
        self.health: tuple[DaemonHealth, ...] = ()  # at the last reading

    @property
    def has_daemons(self) -> bool:
        """Whether there is an address to ask."""
        return bool(self._urls)

    def overview(self) -> Overview | None:
        """Return the overview; None before the first reading."""
        return overview_of(tuple(self._readings)) if self._readings else None

    async def run(self) -> None:
        """Read every `SAMPLE_S` until this is cancelled."""
        while self._urls:
            try:
                await self.read()
            except Exception as error:  # noqa: BLE001 (the next reading may succeed)
                _log.warning(
                    "the page cannot read the daemons' /metrics: %s; asked again in %d s",
                    *(error, SAMPLE_S),
                )
            await asyncio.sleep(SAMPLE_S)

    async def read(self) -> None:
        """Read now."""
        reading, self.health = await self._work.run(self._read)
        self._readings.append(reading)

    def _read(self) -> tuple[Reading, tuple[DaemonHealth, ...]]:
        texts = [(url, fetch(url, "/metrics")) for url in self._urls]
        reading = reading_of(texts, at_s=self._monotonic())
        return reading, tuple(health_of(url, fetch(url, "/healthz")) for url in self._urls)


def health_of(url: str, text: str | None) -> DaemonHealth:
    """Return what the text of /healthz says."""
    if text is None:
        return DaemonHealth(url, healthy=None, ready=False, reason="does not answer")
    try:
        said = json.loads(text)
        errors = tuple((str(key), str(why)) for key, why in said["partition_errors"].items())
        return DaemonHealth(
            url, bool(said["healthy"]), bool(said["ready"]), str(said["reason"]), errors
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return DaemonHealth(url, healthy=None, ready=False, reason="is not a daemon of halfbridge")


def fetch(url: str, path: str) -> str | None:
    """Return what an address answers, whatever the status; None: nothing within `FETCH_S`."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=FETCH_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


RATE_S = 60.0  # six readings: one that is missing changes little
QUANTILES = (0.5, 0.99)  # what is usual, and what is slow


@dataclass(frozen=True, slots=True)
class Overview:
    """What the overview shows."""

    # Messages, checks or kafka_txns a second, by what the page calls them, over the last `RATE_S`;
    # None: two readings are needed.
    rates: Mapping[str, float | None]
    # The same for each step between two readings, oldest first.
    history: Mapping[str, tuple[float, ...]]
    # Quantile to seconds from half message to delivery, at most; None: nothing was delivered.
    # Infinite: longer than the longest bucket.
    latency_s: Mapping[float, float | None]
    now: Reading
    span_s: float


def overview_of(readings: Sequence[Reading]) -> Overview:
    """Return the overview of some readings, at least one, oldest first."""
    last = readings[-1]
    first = next((each for each in readings if last.at_s - each.at_s <= RATE_S), last)
    rates: dict[str, float | None] = {}
    history: dict[str, tuple[float, ...]] = {}
    for name in OUTCOMES.values():
        rates[name] = None if first is last else _rate(first, last, name)
        history[name] = tuple(_rate(before, after, name) for before, after in pairwise(readings))
    return Overview(
        rates=rates,
        history=history,
        latency_s={each: quantile(first, last, each) for each in QUANTILES},
        now=last,
        span_s=last.at_s - readings[0].at_s,
    )


def quantile(first: Reading, last: Reading, share: float) -> float | None:
    """Return the upper bound of the bucket that holds the quantile `share` of what lies between.

    Example: 90 of 100 took at most 0.01 s and all at most 0.02 s: the 0.99 quantile is 0.02 s.
    """
    bounds = sorted(last.buckets)
    counts = [last.buckets[each] - first.buckets.get(each, 0.0) for each in bounds]
    if not counts or min(counts) < 0:  # the daemon was restarted
        counts = [last.buckets[each] for each in bounds]
    if not counts or counts[-1] <= 0:
        return None
    wanted = share * counts[-1]
    return next(bound for bound, count in zip(bounds, counts, strict=True) if count >= wanted)


def _rate(first: Reading, last: Reading, name: str) -> float:
    """Return a counter's growth in a second; a counter that fell was reset to 0."""
    before, now = first.counters.get(name, 0.0), last.counters.get(name, 0.0)
    grown = now - before if now >= before else now
    return grown / max(last.at_s - first.at_s, math.ulp(1.0))


_LATENCY = "rocketmq_finish_message_latency_bucket"
# Counter -> what the page calls it.
OUTCOMES = {
    "rocketmq_commit_messages_total": "delivered",
    "rocketmq_rollback_messages_total": "rolled back",
    "halfbridge_dead_letters_total": "dead letters",
    "halfbridge_checks_sent_total": "checks sent",
    "halfbridge_kafka_txn_failures_total": "kafka_txns failed",
}
_TOTALS = {
    "rocketmq_half_messages": "undecided",
    "halfbridge_partitions_stopped": "stopped",
    "halfbridge_partitions_waiting": "waiting",
}


def _zeros(names: Mapping[str, str]) -> dict[str, float]:
    return dict.fromkeys(names.values(), 0.0)


@dataclass(slots=True)
class Reading:
    """The metrics of all daemons at one moment, in sum."""

    at_s: float
    # Sum of each counter of `OUTCOMES`.
    counters: dict[str, float] = field(default_factory=lambda: _zeros(OUTCOMES))
    # Upper bound of latency, seconds -> how many latencies were at most that.
    buckets: dict[float, float] = field(default_factory=dict)
    # Sum of each gauge of which sums make sense.
    totals: dict[str, float] = field(default_factory=lambda: _zeros(_TOTALS))
    oldest_s: float = 0.0  # age of the oldest undecided transaction; 0 where there is none
    # Least time until a needed record is deleted; infinite where nothing is.
    retention_s: float = float("inf")
    # (partition, offset's letter) to records.
    lags: dict[tuple[int, str], float] = field(default_factory=dict)
    workers: dict[str, bool] = field(default_factory=dict)  # name of a worker to whether it answers

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Add one sample of a daemon."""
        if name in OUTCOMES:
            self.counters[OUTCOMES[name]] += value
        elif name in _TOTALS:
            self.totals[_TOTALS[name]] += value
        elif name == _LATENCY:
            bound = float(labels["le"])
            self.buckets[bound] = self.buckets.get(bound, 0.0) + value
        elif name == "halfbridge_oldest_undecided_age_seconds":
            self.oldest_s = max(self.oldest_s, value)
        elif name == "halfbridge_retention_left_seconds":
            self.retention_s = min(self.retention_s, value)
        elif name == "halfbridge_lag":
            self.lags[int(labels["partition"]), labels["offset"]] = value
        elif name == "halfbridge_worker_up":
            self.workers[labels["worker"]] = value > 0


def reading_of(texts: Iterable[tuple[str, str | None]], *, at_s: float) -> Reading:
    """Return the metrics of several daemons in sum; a text of None is of a silent daemon.

    Raises:
        ValueError: a text is no metrics, so the address belongs to another program; the operator
            corrects the address.
    """
    reading = Reading(at_s)
    for url, text in texts:
        if text is None:
            continue
        before = len(reading.workers)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                reading.add(sample.name, sample.labels, sample.value)
        if len(reading.workers) == before:  # one worker in its own process names none
            reading.workers[url] = True
    return reading
