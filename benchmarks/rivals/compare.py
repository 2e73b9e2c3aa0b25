"""Compares halfbridge with its rivals, on one machine, one after the other.

    python -m benchmarks.rivals.compare --rounds 3

Rivals: a real RocketMQ 5, and an outbox table in PostgreSQL with a polling relay or with Debezium;
also halfbridge once more, with a fence in PostgreSQL. Each has the same workloads: 1 KB values, a
consumer that waits for all. The local transactions of RocketMQ and of the first halfbridge are
empty; an outbox's is its row, and a fence's is one small row in addition to its own. In each round
one system ends before the next one starts. Prints one table with the medians of the rounds and with
ratios; figures of different runs are not comparable. It needs a JDK 17, and Debian's package
postgresql.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.machine import load, now, this_machine
from benchmarks.report import machine_line
from benchmarks.rivals.comparison import comparison
from benchmarks.rivals.itself import Halfbridge
from benchmarks.rivals.on_postgresql import Debezium, Fenced, OnPostgresql, Outbox
from benchmarks.rivals.picture import draw
from benchmarks.rivals.rocketmq import RocketMq
from benchmarks.rivals.workload import Outcome, median_of, rows
from benchmarks.rows import shared_config
from halfbridge.testkit.children import Children, Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.rows import Row
    from halfbridge.bench.load import BenchConfig

_MODULE = "benchmarks.rivals.compare"
_RIVALS: dict[str, type[RocketMq | OnPostgresql]] = {
    "rocketmq": RocketMq,
    "outbox": Outbox,
    "fence": Fenced,
    "debezium": Debezium,
}
SYSTEMS = ("halfbridge", *_RIVALS)


class System(Protocol):
    """A system that is measured."""

    name: str

    def start(self, config: BenchConfig) -> None:
        """Start what it consists of, and run until a JVM has compiled what matters."""

    def run(self, name: str, config: BenchConfig) -> Outcome | None:
        """Return the figures of a workload, or None where it has no such mode."""

    def close(self) -> None:
        """End what the children's owner does not end."""


def main() -> int:
    options = _options()
    began, before, command = now(), load(), shlex.join(["python", "-m", _MODULE, *sys.argv[1:]])
    config = shared_config(
        warmup_s=options.warmup, daemon_arguments=tuple(shlex.split(options.daemon_arguments))
    )
    chosen = [row for row in rows() if not options.row or row.name in options.row]
    found: dict[str, dict[str, list[Outcome | None]]] = {}
    with Interrupts() as interrupts:
        for number in range(options.rounds):
            for system in options.only or SYSTEMS:
                say = partial(_say, f"[{number + 1}/{options.rounds} {system}]")
                name, outcomes = _measure(system, chosen, config, interrupts, say)
                say(json.dumps(_reported(outcomes)))  # kept if a later system fails
                for workload, outcome in outcomes.items():
                    found.setdefault(name, {}).setdefault(workload, []).append(outcome)
    medians = {
        name: {workload: _median(each) for workload, each in outcomes.items()}
        for name, outcomes in found.items()
    }
    facts: dict[str, Any] = {
        "machine": this_machine(),
        "began": began,
        "command": command,
        "load_before": before,
        "load_after": load(),
    }
    if options.picture:
        draw(medians, options.picture)
    if options.json:
        reported = {name: _reported(outcomes) for name, outcomes in medians.items()}
        text = json.dumps({**facts, "systems": reported})
    else:
        text = "\n".join(
            [
                *comparison(medians),
                "",
                f"machine  {machine_line(facts['machine'])}",
                f"began    {began}, load averages {before} then {load()}",
                f"command  {command}",
            ]
        )
    sys.stdout.write(f"{text}\n")
    return int(any(each and each.lost for all_ in medians.values() for each in all_.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", action="append", choices=SYSTEMS)
    parser.add_argument("--row", action="append", help="only this workload")
    parser.add_argument("--warmup", type=float, default=20, help="halfbridge's first one, seconds")
    parser.add_argument("--daemon-arguments", default="", help="of `halfbridge checker run`")
    parser.add_argument("--picture", type=Path, help="file for bars of the medians (PNG or SVG)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _measure(
    system: str,
    chosen: Sequence[Row],
    config: BenchConfig,
    interrupts: Interrupts,
    say: Callable[[str], None],
) -> tuple[str, dict[str, Outcome | None]]:
    """Return a system's full name, and its figures; it has ended when this returns."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="halfbridge-rivals-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        children = stack.enter_context(Children(directory, interrupts=interrupts))
        rival: System
        if system == "halfbridge":
            rival = Halfbridge(interrupts, say)
        else:
            rival = _RIVALS[system](children, directory, say)
        stack.enter_context(closing(rival))
        rival.start(config)
        outcomes = {}
        for row in chosen:
            say(row.what)
            outcomes[row.name] = rival.run(row.name, row.config(config))
        return rival.name, outcomes


def _reported(outcomes: Mapping[str, Outcome | None]) -> dict[str, Any]:
    return {workload: each and asdict(each) for workload, each in outcomes.items()}


def _median(outcomes: Sequence[Outcome | None]) -> Outcome | None:
    known = [each for each in outcomes if each is not None]
    return median_of(known) if known else None


def _say(where: str, text: str) -> None:
    sys.stderr.write(f"{where} {text}\n")


if __name__ == "__main__":
    sys.exit(main())
