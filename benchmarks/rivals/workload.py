"""The workloads that every rival has, and their results."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.rows import Row, suite_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# What rivals have too; a pipelined client is halfbridge's alone.
COMPARED = ("rate-200", "rate-2000", "threads-32", "threads-1", "pipelined")
PIPELINED = "pipelined"
# Rivals warm up in rounds of WARM_MESSAGES, by WARM_THREADS threads, for at least WARM_S seconds.
WARM_MESSAGES, WARM_THREADS, WARM_S = 5_000, 32, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of one workload.

    Latencies are from send, or from when a send was due, to the consumer, ms. The processor time is
    of everything that took part, consumer left out; None if it was not measured.
    """

    transactions_per_s: float
    p50: float
    p99: float
    lost: int
    duplicates: int
    cpu_us_per_tx: float | None


def rows() -> tuple[Row, ...]:
    """Return the compared rows of the suite, without its baselines."""
    bare = {"has_plain_rate": False, "has_plain_latency": False}
    return tuple(
        Row(name=each.name, what=each.what, kind=each.kind, changes={**each.changes, **bare})
        for each in suite_rows()
        if each.name in COMPARED
    )


def warm_up(run: Callable[[], object]) -> None:
    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        run()


def outcome_of(found: Mapping[str, Any]) -> Outcome:
    """Return the figures of a run's JSON, as `halfbridge bench --json` prints it."""
    used = [each for each in found["cpu_us_per_tx"].values() if each is not None]
    return Outcome(
        transactions_per_s=found["transactions_per_s"],
        p50=found["latency_ms"]["p50"],
        p99=found["latency_ms"]["p99"],
        lost=found["lost"],
        duplicates=found["duplicates"],
        cpu_us_per_tx=sum(used) if len(used) == len(found["cpu_us_per_tx"]) else None,
    )


def median_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the median of each figure, and the sum of what was lost or came again."""
    used = [each.cpu_us_per_tx for each in outcomes if each.cpu_us_per_tx is not None]
    return Outcome(
        transactions_per_s=median(each.transactions_per_s for each in outcomes),
        p50=median(each.p50 for each in outcomes),
        p99=median(each.p99 for each in outcomes),
        lost=sum(each.lost for each in outcomes),
        duplicates=sum(each.duplicates for each in outcomes),
        cpu_us_per_tx=median(used) if used else None,
    )
