"""The figures of a run: how they are computed, and their table. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.serde.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfbridge.bench.load import BenchConfig

# Percentiles of a distribution: the tail has as many steps as the body.
PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 100)
_US_PER_S = 1e6  # the processor's time for one transaction has some hundred of them
_NAME_CHARS = 26  # the column of names: above the longest one
# The configuration that the table shows; the JSON has all of it.
_SHOWN = (
    *("messages", "size_bytes", "workers", "rate", "threads", "tasks", "warmup_s"),
    *("pairs", "partitions"),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from send (or due time) to visible, milliseconds; `quantiles` has each of PERCENTS."""

    p50: float
    p99: float
    max: float
    quantiles: Mapping[str, float]

    def to_json(self) -> dict[str, float]:
        """Return the three figures that are printed."""
        return {"p50": round(self.p50, 2), "p99": round(self.p99, 2), "max": round(self.max, 2)}


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time of a process and its descendants, and most memory of any one of them, MiB."""

    cpu_s: float
    rss_mb_max: float

    def since(self, before: Usage) -> Usage:
        """Return the time used since `before`, and the maximum of the memory."""
        return Usage(self.cpu_s - before.cpu_s, self.rss_mb_max)

    def us_each(self, count: int) -> float:
        """Return the microseconds of processor time for each of `count` things; 0 for none."""
        return self.cpu_s * _US_PER_S / count if count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run's figures.

    Attributes:
        transactions_per_s: Messages seen, divided by the time from the first send to the last
            message seen.
        lost: Number of committed messages that were not seen.
        duplicates: Number of messages that were seen again.
        plain_produce_per_s: Rate of a plain idempotent producer on this machine in this run; None
            if not measured.
        plain_latency: Latency of its records, from send to read; None if not measured.
        transactions: Transactions that ended while usage was measured, with the lead-in.
        checker: Usage of the daemon, all workers together.
        broker: Usage of the broker's process; None if the broker is not on this machine.
    """

    transactions_per_s: float
    latency: Latency
    lost: int
    duplicates: int
    plain_produce_per_s: float | None
    plain_latency: Latency | None
    transactions: int
    client: Usage
    checker: Usage
    broker: Usage | None
    config: BenchConfig

    @property
    def ok(self) -> bool:
        """Tell whether every message arrived exactly once."""
        return not self.lost and not self.duplicates

    def to_json(self) -> dict[str, Any]:
        """Return the object that `halfbridge bench --json` prints; its keys are stable.

        `latency_ratio_to_plain` compares medians, where both were sent at the same rate.
        """
        plain = self.plain_latency
        is_comparable = plain is not None and self.config.rate > 0
        return {
            "transactions_per_s": round(self.transactions_per_s, 1),
            "latency_ms": self.latency.to_json(),
            "latency_quantiles_ms": dict(self.latency.quantiles),
            "lost": self.lost,
            "duplicates": self.duplicates,
            "plain_produce_per_s": _rounded(self.plain_produce_per_s, 1),
            "ratio_to_plain": _ratio(self.transactions_per_s, self.plain_produce_per_s),
            "plain_latency_ms": None if plain is None else plain.to_json(),
            "plain_latency_quantiles_ms": None if plain is None else dict(plain.quantiles),
            "latency_ratio_to_plain": (
                _ratio(self.latency.p50, plain.p50) if plain is not None and is_comparable else None
            ),
            "cpu_us_per_tx": {
                "client": round(self.client.us_each(self.transactions), 1),
                "worker": round(self.checker.us_each(self.transactions), 1),
                "broker": self.broker and round(self.broker.us_each(self.transactions), 1),
            },
            "client": _usage_json(self.client),
            "checker": _usage_json(self.checker),
            "broker": self.broker and _usage_json(self.broker),
            "config": asdict(self.config),
        }


def latency_of(ages_ns: Sequence[int]) -> Latency:
    """Return the percentiles of ages; zeros without ages."""
    if not ages_ns:
        return Latency(0.0, 0.0, 0.0, {})
    ordered = sorted(ages_ns)
    quantiles = {
        f"{percent:g}": round(percentile(ordered, percent) / NS_PER_MS, 3) for percent in PERCENTS
    }
    return Latency(
        percentile(ordered, 50) / NS_PER_MS,
        percentile(ordered, 99) / NS_PER_MS,
        ordered[-1] / NS_PER_MS,
        quantiles,
    )


def percentile(ordered: Sequence[int], percent: float) -> int:
    """Return the smallest element that `percent` of all do not exceed (nearest rank)."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(0, rank - 1)]


def per_second(count: int, first_ns: int, last_ns: int) -> float:
    """Return the rate a second; 0 without items or without elapsed time."""
    return count * NS_PER_S / (last_ns - first_ns) if last_ns > first_ns else 0.0


def run_report(found: Mapping[str, object]) -> str:
    """Return the table of one run's JSON."""
    return "\n".join(f"{name:<{_NAME_CHARS}}{figures}" for name, figures in _run_lines(found))


def _run_lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    config = found["config"]
    yield "transactions/s", f"{found['transactions_per_s']:,.0f}"
    yield "latency", latency_text(found["latency_ms"])
    if found["plain_produce_per_s"]:
        plain = f"{found['plain_produce_per_s']:,.0f}, ratio {found['ratio_to_plain']:.3f}"
        yield "plain produce/s", plain
    if found["plain_latency_ms"]:
        yield "plain produce to read", latency_text(found["plain_latency_ms"])
    if found["latency_ratio_to_plain"]:
        yield "p50 to plain p50", f"{found['latency_ratio_to_plain']:.1f}"
    yield "processor time", cpu_text(found["cpu_us_per_tx"])
    for name in ("client", "checker", "broker"):
        if used := found[name]:
            peak = f"{used['rss_mb_max']:.0f} MiB at most"
            yield name, f"{used['cpu_s']:g} s of processor time, {peak}"
    yield "lost, duplicates", f"{found['lost']}, {found['duplicates']}"
    yield "config", " ".join(f"{k}={v}" for k, v in config.items() if k in _SHOWN)


def latency_text(found: Mapping[str, float]) -> str:
    """Return median and p99 of a latency's JSON."""
    return f"p50 {found['p50']:.1f}, p99 {found['p99']:.1f} ms"


def cpu_text(found: Mapping[str, float | None]) -> str:
    """Return the processor time of a transaction, process by process."""
    said = ", ".join(f"{name} {us:.0f}" for name, us in found.items() if us is not None)
    return f"{said} us a transaction"


def _usage_json(usage: Usage) -> dict[str, float]:
    return {"cpu_s": round(usage.cpu_s, 2), "rss_mb_max": round(usage.rss_mb_max, 2)}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _ratio(value: float, plain: float | None) -> float | None:
    return round(value / plain, 4) if plain else None
