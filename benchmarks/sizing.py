"""From measured processor time to numbers of workers, brokers and pairs. Pure.

The arithmetic of docs/evidence/scale.md: a rate times the time of one transaction is how many
processors are busy; what is provided is busy for BUSY of the time, so that a worker's death and a
bad minute fit.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.checker.admin.shape import pairs_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RATES = (10_000, 100_000, 1_000_000)
BUSY = 0.6  # of a core; above it queues grow fast
REPLICAS = 3  # what production has
# A leader's work is measured. A follower writes the same bytes and answers nobody: it has no more.
BROKER_CORES = 16
# One broker's disk and network, with replication, sustained: 10 Gbit/s, half used.
BROKER_MB_PER_S = 600.0
# Half record, op and real record of a value of 1 KB: 1024 + 80, 200, 1024 + 70 bytes.
TX_BYTES = 2_400
WORKERS_MIN = 2  # one may die
BROKERS_MIN = 3
_US_PER_S = 1e6
_BYTES_PER_MB = 1e6
_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a rate of transactions of one message of 1 KB needs.

    Cores are of all clients together, and of all brokers together; each worker needs one. Pairs are
    half partitions; the real topic has as many partitions. `written_mb_per_s` has the replicas.
    """

    rate: int
    client_cores: int
    workers: int
    pairs: int
    broker_cores: int
    written_mb_per_s: int
    brokers: int


def size_for(rate: int, *, client_us: float, worker_us: float, broker_us: float) -> Size:
    """Return what a rate needs, at a processor time of one transaction in microseconds.

    The broker's is that of a single one without replicas.
    """
    workers = max(WORKERS_MIN, _cores(rate, worker_us))
    broker_cores = _cores(rate, broker_us * REPLICAS)
    written = rate * TX_BYTES * REPLICAS / _BYTES_PER_MB
    loads = (broker_cores / BROKER_CORES, written / BROKER_MB_PER_S)
    return Size(
        rate=rate,
        client_cores=_cores(rate, client_us),
        workers=workers,
        pairs=pairs_for(workers),
        broker_cores=broker_cores,
        written_mb_per_s=math.ceil(written),
        brokers=max(BROKERS_MIN, *map(math.ceil, loads)),
    )


def sizing(rows: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the JSON of what rates need, and how the worker's time grows; None without a grid.

    The dearest cell of the grid counts, for each of client, worker and broker.
    """
    grid = [found["cpu_us_per_tx"] for name, found in rows.items() if "-workers-" in name]
    if not grid or any(each["broker"] is None for each in grid):
        return None
    dearest = {name: max(each[name] for each in grid) for name in ("client", "worker", "broker")}
    totals = [each["client"] + each["worker"] + each["broker"] for each in grid]
    needed = {f"{name}_us": us for name, us in dearest.items()}
    return {
        "cpu_us_per_tx": dearest,
        "growth_percent": round(_PERCENT * (max(totals) / totals[0] - 1), 1),
        "sizes": [asdict(size_for(rate, **needed)) for rate in RATES],
    }


def sizing_lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "processor time",
        f"{found['growth_percent']:g} % more at most than with the fewest pairs and workers",
    )
    for size in found["sizes"]:
        brokers = f"{size['broker_cores']} processors, {size['written_mb_per_s']:,} MB/s written"
        needed = f"{size['workers']} workers, {size['pairs']} pairs, {size['brokers']} brokers"
        clients = f"{size['client_cores']} processors of clients"
        yield f"{size['rate']:,} transactions/s", f"{needed} ({brokers}), {clients}"


def _cores(rate: int, us: float) -> int:
    return math.ceil(rate * us / _US_PER_S / BUSY)
