"""The figures of a run, and how they are computed. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.bench.config import BenchConfig

_NS_PER_MS = 1e6
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from send (or due time) to visible, milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time and memory of a process and its descendants.

    Attributes:
        cpu_s: User and system seconds during the measurement, sum over all processes.
        rss_mb_max: Maximum of the resident memory of any one process, MiB.
    """

    cpu_s: float
    rss_mb_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run's figures.

    Attributes:
        transactions_per_s: Messages seen, divided by the time from the first send to the last
            message seen.
        latency: Latency of all measured messages.
        lost: Number of committed messages that were not seen.
        duplicates: Number of messages that were seen again.
        plain_produce_per_s: Rate of a plain idempotent producer on this machine in this run.
        client: Usage of the client process.
        checker: Usage of the daemon.
        config: Configuration of the run.
    """

    transactions_per_s: float
    latency: Latency
    lost: int
    duplicates: int
    plain_produce_per_s: float
    client: Usage
    checker: Usage
    config: BenchConfig

    @property
    def ok(self) -> bool:
        """Tell whether every message arrived exactly once."""
        return not self.lost and not self.duplicates

    def to_json(self) -> dict[str, Any]:
        """Return the object that `halfbridge bench --json` prints."""
        return {
            "transactions_per_s": round(self.transactions_per_s, 1),
            "latency_ms": {k: round(v, 2) for k, v in asdict(self.latency).items()},
            "lost": self.lost,
            "duplicates": self.duplicates,
            "plain_produce_per_s": round(self.plain_produce_per_s, 1),
            "ratio_to_plain": round(self.transactions_per_s / self.plain_produce_per_s, 4),
            "client": {k: round(v, 2) for k, v in asdict(self.client).items()},
            "checker": {k: round(v, 2) for k, v in asdict(self.checker).items()},
            "config": asdict(self.config),
        }


def latency_of(ages_ns: Sequence[int]) -> Latency:
    """Return the percentiles of ages; zeros without ages."""
    if not ages_ns:
        return Latency(0.0, 0.0, 0.0)
    ordered = sorted(ages_ns)
    return Latency(
        percentile(ordered, 50) / _NS_PER_MS,
        percentile(ordered, 99) / _NS_PER_MS,
        ordered[-1] / _NS_PER_MS,
    )


def percentile(ordered: Sequence[int], percent: float) -> int:
    """Return the smallest element that `percent` of all do not exceed (nearest rank)."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(0, rank - 1)]


def per_second(count: int, first_ns: int, last_ns: int) -> float:
    """Return the rate a second; 0 without items or without elapsed time."""
    return count * _NS_PER_S / (last_ns - first_ns) if last_ns > first_ns else 0.0
