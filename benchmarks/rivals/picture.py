"""A picture of a comparison: for each figure a bar of each system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from benchmarks.rivals.comparison import figure_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.rivals.workload import Outcome

# Panels: workload, figure, title.
_PANELS = (
    ("rate-200", "p50", "200/s: p50 until visible, ms"),
    ("rate-2000", "p50", "2,000/s: p50 until visible, ms"),
    ("threads-32", "transactions_per_s", "32 blocking threads: transactions/s"),
    ("threads-32", "cpu_us_per_tx", "the same: processor time a transaction, us"),
)
_OURS, _OTHERS = "tab:blue", "silver"
_COLUMNS = 2
_INCHES = (11.0, 5.5)
_DPI = 110


def draw(found: Mapping[str, Mapping[str, Outcome | None]], path: Path) -> None:
    """Write the picture of the medians; the file's suffix says which format."""
    picture(found).savefig(path, dpi=_DPI)


def picture(found: Mapping[str, Mapping[str, Outcome | None]]) -> Figure:
    """Return the picture; a system that lacks a workload, or falls behind it, has no bar there."""
    rows = -(-len(_PANELS) // _COLUMNS)
    figure = Figure(figsize=_INCHES, layout="constrained")
    for number, (workload, name, title) in enumerate(_PANELS, start=1):
        values = {
            system: value
            for system, outcomes in found.items()
            if (value := figure_of(outcomes, workload, name)) is not None
        }
        axes = figure.add_subplot(rows, _COLUMNS, number)
        axes.set_title(title, fontsize="medium")
        colors = [_OURS if system.startswith("halfbridge") else _OTHERS for system in values]
        bars = axes.barh([*values], [*values.values()], color=colors)
        axes.bar_label(bars, [shown(each) for each in values.values()], padding=3)
        axes.invert_yaxis()  # the first system on top
        axes.margins(x=0.2)  # room for the numbers
        axes.xaxis.set_visible(False)  # each bar has its number
    return figure
