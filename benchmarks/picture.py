"""The picture of a suite: distributions of latency, and throughput. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarks import svg
from benchmarks.report import machine_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WIDTH, _HEIGHT = 960, 470
_LATENCY = svg.Panel(60, 50, 420, 260)
_THROUGHPUT = svg.Panel(560, 50, 300, 260)
_PERCENTS = (50, 90, 99, 99.9)
# A percentile's place: 99 lies as far from 99.9 as 90 from 99, so that a tail can be seen.
_PERCENT_MAX = 99.95
_DECADES_MAX = 8  # of milliseconds on the axis; more are a defect of the measurement


def picture(found: dict[str, Any]) -> str:
    """Return a suite's JSON as an SVG document."""
    rows: Mapping[str, dict[str, Any]] = {
        name: each for name, each in found["rows"].items() if "transactions_per_s" in each
    }
    parts = [
        *_latencies(_curves(rows)),
        *_throughputs(rows),
        svg.label(20, _HEIGHT - 34, machine_line(found["machine"]), kind="dim"),
        svg.label(
            20,
            _HEIGHT - 16,
            f"{found['began']}, load {found['load_before'][0]:g}: {found['command']}",
            kind="dim",
        ),
    ]
    return svg.document(_WIDTH, _HEIGHT, parts, title="Latency and throughput of halfbridge")


def place_of(percent: float) -> float:
    """Return where a percentile stands on the axis, from 0 to 1."""
    nines = -math.log10(1 - min(percent, _PERCENT_MAX) / 100)
    return nines / -math.log10(1 - _PERCENT_MAX / 100)


def _curves(rows: Mapping[str, dict[str, Any]]) -> dict[str, Mapping[str, float]]:
    curves: dict[str, Mapping[str, float]] = {}
    for found in rows.values():
        rate = found["config"]["rate"]
        if not rate:
            continue
        curves[f"halfbridge, {rate:,.0f}/s"] = found["latency_quantiles_ms"]
        if plain := found["plain_latency_quantiles_ms"]:
            curves[f"plain records, {rate:,.0f}/s"] = plain
    return {name: quantiles for name, quantiles in curves.items() if quantiles}


def _latencies(curves: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    panel = _LATENCY
    yield panel.title("Send to visible, ms by percentile")
    times = [max(ms, 0.01) for quantiles in curves.values() for ms in quantiles.values()]
    if not times:
        return
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = min(max(high, low + 1), low + _DECADES_MAX)

    def up(ms: float) -> float:
        return (math.log10(max(ms, 0.01)) - low) / (high - low)

    decades = range(low, high + 1)
    yield from panel.grid([(up(10.0**each), f"{10.0**each:g}") for each in decades])
    yield from panel.grid([(place_of(p), f"p{p:g}") for p in _PERCENTS], vertical=True)
    for number, quantiles in enumerate(curves.values()):
        shown = [
            (place_of(float(percent)), min(up(ms), 1.0))
            for percent, ms in quantiles.items()
            if float(percent) <= _PERCENT_MAX
        ]
        yield panel.curve(shown, _colour(number))
    yield from svg.legend(panel.x, panel.y + panel.height + 44, list(curves), _colour)


def _throughputs(rows: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    panel = _THROUGHPUT
    rates = {
        name: found["transactions_per_s"]
        for name, found in rows.items()
        if not found["config"]["rate"]
    }
    yield panel.title("Transactions a second, end to end")
    best = max(rates.values(), default=0) or 1
    for number, (name, rate) in enumerate(rates.items()):
        text = f"{rate:,.0f}"
        yield panel.bar(number, len(rates), rate / best, _colour(0), text, name=name)


def _colour(number: int) -> str:
    return svg.COLOURS[number % len(svg.COLOURS)]
