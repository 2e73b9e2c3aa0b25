"""What the suites measure, row by row. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from halfbridge.bench.load import BenchConfig
from halfbridge.serde.topics import PAIRS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_WATCHED_S = 12  # of a row at a given rate: 2,400 messages at 200/s, so that p99 has 24 above it
SLOW_PAIRS = 64  # far more than a worker usually serves
WORKERS = (1, 2, 4)
SCALE_PAIRS = (4, 16, 64)
UNDECIDED = 10_000  # a service of 1,000 a second that stood still for 10 s
REBUILT = 1_000_000  # a service of 1,000 a second that stood still for 17 minutes


class Kind(Enum):
    """What a row measures."""

    RUN = "run"
    UNDECIDED = "undecided"
    IDLE = "idle"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement of a suite, with the `changes` in fields of its BenchConfig."""

    name: str
    what: str
    kind: Kind = Kind.RUN
    changes: Mapping[str, Any] = field(default_factory=dict)

    def config(self, shared: BenchConfig) -> BenchConfig:
        return replace(shared, **self.changes).with_linger()


def shared_config(
    *, bootstrap_servers: str = "", warmup_s: float, daemon_arguments: tuple[str, ...] = ()
) -> BenchConfig:
    """Return what all rows have in common: 1 KB values, 1,000 keys, 4 partitions, default pairs."""
    return BenchConfig(
        messages=0,
        size_bytes=1024,
        in_flight=5_000,
        workers=1,
        rate=0,
        threads=0,
        warmup_s=warmup_s,
        pairs=PAIRS,
        partitions=4,
        keys=1_000,
        linger_ms=None,
        bootstrap_servers=bootstrap_servers,
        daemon_arguments=daemon_arguments,
    )


def _as_many(pairs: int) -> dict[str, int]:
    """Return the changes for a number of pairs, and of partitions of the real topic."""
    return {"pairs": pairs, "partitions": pairs}


def _at_rate(rate: int) -> Row:
    return Row(
        name=f"rate-{rate}",
        what=f"{rate:,} transactions/s",
        changes={"rate": rate, "messages": rate * _WATCHED_S, "has_plain_rate": False},
    )


def _by_threads(threads: int, messages: int) -> Row:
    plural = "s" if threads > 1 else ""
    return Row(
        name=f"threads-{threads}",
        what=f"{threads} blocking thread{plural}",
        changes={"threads": threads, "messages": messages, "has_plain_rate": False},
    )


def suite_rows(undecided: int = UNDECIDED) -> tuple[Row, ...]:
    """Return what the suite measures.

    The densest loads come first: a broker's JVM compiles for minutes, and doubles latencies as long
    as it does.
    """
    return (
        Row(name="pipelined", what="pipelined", changes={"messages": 200_000}),
        _by_threads(32, 40_000),
        _by_threads(1, 4_000),
        _at_rate(2_000),
        _at_rate(200),
        Row(
            name="undecided",
            what=f"first check, and {undecided:,} undecided transactions",
            kind=Kind.UNDECIDED,
            changes={"messages": undecided},
        ),
        Row(name="idle", what="idle daemon", kind=Kind.IDLE),
    )


def scale_rows(undecided: int = REBUILT) -> tuple[Row, ...]:
    no_plain = {"has_plain_rate": False, "has_plain_latency": False}
    grid = [
        Row(
            name=f"pairs-{pairs}-workers-{workers}",
            what=f"{pairs} pairs, {workers} workers, pipelined",
            changes={**_as_many(pairs), "workers": workers, "messages": 60_000, **no_plain},
        )
        for pairs in SCALE_PAIRS
        for workers in WORKERS
    ]
    slow = Row(
        name="pairs-64-slow",
        what=f"{SLOW_PAIRS} pairs with 1 transaction/s each, 1 worker",
        changes={
            **_as_many(SLOW_PAIRS),
            "rate": SLOW_PAIRS,
            "messages": SLOW_PAIRS * _WATCHED_S,
            "has_plain_rate": False,
        },
    )
    rebuild = Row(
        name="rebuild",
        what=f"restart with {undecided:,} undecided transactions",
        kind=Kind.REBUILD,
        changes={"messages": undecided},
    )
    return (*grid, slow, rebuild)


def chosen(rows: tuple[Row, ...], names: Collection[str]) -> tuple[Row, ...]:
    """Return the rows of these names, in the order of `rows`; all without a name.

    Raises:
        ValueError: A name is not known; its text has the names that are.
    """
    known = [row.name for row in rows]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no row {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(row for row in rows if not names or row.name in names)
