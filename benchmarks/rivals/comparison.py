"""The table of a comparison, with ratios. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.rivals.workload import rows
from halfbridge.cli.table import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.rivals.workload import Outcome

_NOTHING = "-"
# A system that does less than this share of a rate falls behind: its latency grows as long as the
# load lasts.
_KEPT_UP_SHARE_MIN = 0.95
_RATES = {each.name: each.changes.get("rate", 0) for each in rows()}
# What is shown: workload, figure, name of the line.
_LINES = (
    ("rate-200", "p50", "200/s: p50 ms"),
    ("rate-200", "p99", "200/s: p99 ms"),
    ("rate-2000", "p50", "2,000/s: p50 ms"),
    ("rate-2000", "p99", "2,000/s: p99 ms"),
    ("rate-2000", "cpu_us_per_tx", "2,000/s: processor us a transaction"),
    ("threads-32", "transactions_per_s", "32 blocking threads: transactions/s"),
    ("threads-32", "p50", "32 blocking threads: p50 ms until visible"),
    ("threads-32", "cpu_us_per_tx", "32 blocking threads: processor us a transaction"),
    ("threads-1", "transactions_per_s", "1 blocking thread: transactions/s"),
    ("pipelined", "transactions_per_s", "pipelined: transactions/s"),
)


def comparison(found: Mapping[str, Mapping[str, Outcome | None]]) -> Iterator[str]:
    """Yield the lines of the table: a column for each system, then ours divided by each other."""
    ours, *others = found
    headings = ["", *found, *(f"{ours} / {other}" for other in others)]
    cells = []
    for workload, figure, name in _LINES:
        values = {system: figure_of(each, workload, figure) for system, each in found.items()}
        if all(value is None for value in values.values()):
            continue
        ratios = [_ratio(values[ours], values[other]) for other in others]
        cells.append([name, *map(shown, values.values()), *ratios])
    for figure in ("lost", "duplicates"):
        sums = [
            str(sum(getattr(each, figure) for each in outcomes.values() if each is not None))
            for outcomes in found.values()
        ]
        cells.append([figure, *sums, *(_NOTHING for _ in others)])
    yield from table(headings, cells)


def figure_of(outcomes: Mapping[str, Outcome | None], workload: str, figure: str) -> float | None:
    """Return a figure of a workload.

    None: the system has no such workload or figure, or does not keep up with the workload's rate.
    """
    outcome = outcomes.get(workload)
    if outcome is None or outcome.transactions_per_s < _KEPT_UP_SHARE_MIN * _RATES[workload]:
        return None
    value: float | None = getattr(outcome, figure)
    return value


def shown(value: float | None) -> str:
    """Return a figure as people read it; a dash for none."""
    if value is None:
        return _NOTHING
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _ratio(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value is not None and other else _NOTHING
