"""Rates and latencies between readings."""

from __future__ import annotations

import math

from halfbridge.web.watch import RATE_S, Reading, overview_of, quantile


def _reading(at_s: float, delivered: float, **more: object) -> Reading:
    return Reading(at_s=at_s, counters={"delivered": delivered}, **more)  # type: ignore[arg-type]


def test_one_reading_has_no_rate() -> None:
    """A daemon's total since its start is no rate."""
    found = overview_of([_reading(0, 5000)])
    assert found.rates["delivered"] is None
    assert found.history["delivered"] == ()


def test_a_rate_is_taken_over_the_last_minute() -> None:
    """Readings older than `RATE_S` are in the picture, and not in the number."""
    readings = [_reading(0, 0), _reading(10, 1000), _reading(RATE_S + 10, 1600)]
    found = overview_of(readings)
    assert found.rates["delivered"] == 10.0
    assert found.history["delivered"] == (100.0, 10.0)
    assert found.span_s == RATE_S + 10


def test_a_counter_that_fell_began_anew() -> None:
    """After a restart of the daemon no rate is negative."""
    found = overview_of([_reading(0, 1_000_000), _reading(10, 50)])
    assert found.rates["delivered"] == 5.0


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    """90 of 100 at most 10 ms, all at most 20 ms."""
    first = Reading(at_s=0, buckets={0.01: 10.0, 0.02: 10.0, math.inf: 10.0})
    last = Reading(at_s=1, buckets={0.01: 100.0, 0.02: 110.0, math.inf: 110.0})
    assert quantile(first, last, 0.5) == 0.01
    assert quantile(first, last, 0.99) == 0.02
    assert quantile(last, last, 0.5) is None
    assert quantile(last, first, 0.5) == 0.01  # the daemon began anew
    beyond = Reading(at_s=1, buckets={0.01: 10.0, math.inf: 20.0})
    assert quantile(Reading(at_s=0), beyond, 0.99) == math.inf
    assert quantile(Reading(at_s=0), Reading(at_s=1), 0.99) is None
