"""The bench's arithmetic, and its JSON."""

from __future__ import annotations

import pytest

from halfbridge.bench.config import BenchConfig
from halfbridge.bench.result import BenchResult, Latency, Usage, latency_of, per_second, percentile

CONFIG = BenchConfig(
    messages=10,
    size_bytes=100,
    in_flight=5,
    workers=1,
    rate=0,
    threads=0,
    warmup_s=0,
    partitions=4,
    linger_ms=0.5,
    keys=1,
)


def result_with(**figures: int) -> BenchResult:
    """Return a result that differs from a good one by `figures`."""
    return BenchResult(
        transactions_per_s=25_000.0,
        latency=Latency(1.0, 2.0, 3.0),
        plain_produce_per_s=100_000.0,
        client=Usage(1.0, 50.0),
        checker=Usage(2.0, 60.0),
        config=CONFIG,
        **{"lost": 0, "duplicates": 0, **figures},
    )


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_percentile_is_nearest_rank(percent: float, expected: int) -> None:
    """A percentile is an element, the smallest that so many do not exceed."""
    assert percentile(range(1, 101), percent) == expected


def test_latency_is_in_milliseconds() -> None:
    """Ages in nanoseconds become milliseconds; no ages, zeros."""
    assert latency_of([3_000_000, 1_000_000, 2_000_000]) == Latency(2.0, 3.0, 3.0)
    assert latency_of([]) == Latency(0.0, 0.0, 0.0)


def test_per_second() -> None:
    """A rate is a count over a span; without a span there is none."""
    assert per_second(10, 0, 2_000_000_000) == 5.0
    assert per_second(10, 5, 0) == 0.0


def test_json_has_the_promised_keys() -> None:
    """The JSON holds every promised key, and the ratio of the two rates."""
    found = result_with().to_json()

    assert list(found) == [
        "transactions_per_s",
        "latency_ms",
        "lost",
        "duplicates",
        "plain_produce_per_s",
        "ratio_to_plain",
        "client",
        "checker",
        "config",
    ]
    assert found["latency_ms"] == {"p50": 1.0, "p99": 2.0, "max": 3.0}
    assert found["client"] == {"cpu_s": 1.0, "rss_mb_max": 50.0}
    assert found["ratio_to_plain"] == 0.25


@pytest.mark.parametrize(("figures", "ok"), [({}, True), ({"lost": 1}, False)])
def test_ok(figures: dict[str, int], ok: bool) -> None:
    """A run is good only if nothing was lost or duplicated."""
    assert result_with(**figures).ok is ok
    assert not result_with(duplicates=1).ok


def test_config_round_trip() -> None:
    """A process gets its config whole."""
    assert BenchConfig.from_json(CONFIG.to_json()) == CONFIG
