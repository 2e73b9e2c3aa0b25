"""The overview: rates, latency and health, from the daemon's metrics over the last minutes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from halfbridge.web.readings import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.web.readings import Reading

RATE_S = 60.0  # six readings: one that is missing changes little
QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Overview:
    """What the overview shows.

    Attributes:
        rates: Messages, checks or kafka_txns a second, by what the page calls them, over the last
            `RATE_S`; None: two readings are needed.
        history: The same for each step between two readings, oldest first.
        latency_s: Quantile to seconds from half message to delivery, at most; None: nothing was
            delivered. Infinite: longer than the longest bucket.
        now: The last reading.
        span_s: How long the history is, seconds.
    """

    rates: Mapping[str, float | None]
    history: Mapping[str, tuple[float, ...]]
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
    if not counts or min(counts) < 0:  # the daemon began anew
        counts = [last.buckets[each] for each in bounds]
    if not counts or counts[-1] <= 0:
        return None
    wanted = share * counts[-1]
    return next(bound for bound, count in zip(bounds, counts, strict=True) if count >= wanted)


def _rate(first: Reading, last: Reading, name: str) -> float:
    """Return what a counter grew by a second; a counter that fell began anew at 0."""
    before, now = first.counters.get(name, 0.0), last.counters.get(name, 0.0)
    grown = now - before if now >= before else now
    return grown / max(last.at_s - first.at_s, math.ulp(1.0))
