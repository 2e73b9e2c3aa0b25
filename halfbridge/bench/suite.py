"""Runs several measurements on the same brokers, one after the other, and keeps their figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from halfbridge.bench.brokers import open_brokers
from halfbridge.bench.idle import measure_idle
from halfbridge.bench.machine import load, now, this_machine
from halfbridge.bench.rebuild import measure_rebuild
from halfbridge.bench.report import row_lines
from halfbridge.bench.rows import Kind
from halfbridge.bench.run import measure
from halfbridge.bench.sizing import sizing
from halfbridge.bench.undecided import measure_undecided
from halfbridge.testkit.children import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfbridge.bench.brokers import Brokers
    from halfbridge.bench.config import BenchConfig
    from halfbridge.bench.machine import Machine
    from halfbridge.bench.rows import Row

# Between rows of one suite: clients and workers are new, the brokers' JVM is warm.
_WARM_AGAIN_S = 5.0


class Figures(Protocol):
    """What a measurement returns."""

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or duplicated."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures, with stable keys."""


class Measure(Protocol):
    """One kind of measurement."""

    def __call__(
        self,
        config: BenchConfig,
        brokers: Brokers,
        *,
        interrupts: Interrupts,
        say: Callable[[str], None],
    ) -> Figures:
        """Measure; raises as `halfbridge.bench.run.run_bench`."""


_MEASURES: Mapping[Kind, Measure] = {
    Kind.RUN: measure,
    Kind.UNDECIDED: measure_undecided,
    Kind.IDLE: measure_idle,
    Kind.REBUILD: measure_rebuild,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The figures of all rows, and where they come from.

    Attributes:
        machine: Where.
        began: When the first row began.
        command: The command.
        loads: Load averages before the first row and after the last one.
        rows: Figures by the name of the row, in the order in which they were measured.
    """

    machine: Machine
    began: str
    command: str
    loads: tuple[tuple[float, float, float], tuple[float, float, float]]
    rows: Mapping[str, Figures]

    @property
    def ok(self) -> bool:
        """Tell whether nothing was lost or duplicated in any row."""
        return all(each.ok for each in self.rows.values())

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints; its keys are stable."""
        rows = {name: figures.to_json() for name, figures in self.rows.items()}
        return {
            "machine": self.machine.to_json(),
            "began": self.began,
            "command": self.command,
            "load_before": list(self.loads[0]),
            "load_after": list(self.loads[1]),
            "rows": rows,
            "sizing": sizing(rows),
        }


def run_suite(
    rows: Sequence[Row], config: BenchConfig, *, command: str, say: Callable[[str], None]
) -> SuiteResult:
    """Return the figures of `rows`, measured one after the other on the same brokers.

    The first row has the whole warm-up of `config`, which a broker needs that has just started.

    Args:
        rows: What to measure.
        config: What all rows have in common.
        command: As the user typed it; a part of the result.
        say: Called with lines about the progress.

    Raises:
        ChildFailedError, InterruptedRunError, BridgeError: As `run_bench`.
    """
    began, before = now(), load()
    found: dict[str, Figures] = {}
    with Interrupts() as interrupts, open_brokers(config.bootstrap_servers, say=say) as brokers:
        for number, row in enumerate(rows):
            warmup_s = config.warmup_s if not number else min(config.warmup_s, _WARM_AGAIN_S)
            shared = replace(config, warmup_s=warmup_s)
            tell = partial(_tell, say, f"[{number + 1}/{len(rows)} {row.name}]")
            tell(row.what)
            found[row.name] = _MEASURES[row.kind](
                row.config(shared), brokers, interrupts=interrupts, say=tell
            )
            # What has been measured is not lost if a later row fails.
            for what, figures in row_lines(row.name, found[row.name].to_json()):
                tell(f"{what}: {figures}")
    return SuiteResult(
        machine=this_machine(), began=began, command=command, loads=(before, load()), rows=found
    )


def _tell(say: Callable[[str], None], where: str, text: str) -> None:
    say(f"{where} {text}")
