"""Several measurements on the same brokers, one after the other.

    python -m benchmarks.suite           latency, throughput, checks, idle
    python -m benchmarks.suite --scale   workers, pairs, and a restart with a million undecided

Exit status 0 only if nothing was lost or duplicated.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.idle import measure_idle
from benchmarks.machine import load, now, this_machine
from benchmarks.rebuild import measure_rebuild
from benchmarks.report import report, row_lines
from benchmarks.rows import REBUILT, UNDECIDED, Kind, chosen, scale_rows, shared_config, suite_rows
from benchmarks.sizing import sizing
from benchmarks.undecided import measure_undecided
from halfbridge.bench.run import measure_in, open_brokers, open_scene
from halfbridge.testkit.children import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.rows import Row
    from halfbridge.bench.load import BenchConfig
    from halfbridge.bench.run import Scene

# Between rows of one suite: clients and workers are new, the brokers' JVM is warm.
_WARM_AGAIN_S = 5.0


_MEASURES: Mapping[Kind, Callable[[Scene], Mapping[str, object]]] = {
    Kind.RUN: lambda scene: measure_in(scene).to_json(),
    Kind.UNDECIDED: measure_undecided,
    Kind.IDLE: measure_idle,
    Kind.REBUILD: measure_rebuild,
}


def run_suite(
    rows: Sequence[Row], config: BenchConfig, *, command: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the figures of `rows`, measured one after the other on the same brokers, as JSON.

    The first row has the whole warm-up of `config`, which a broker needs that has just started.
    """
    began, before = now(), load()
    found: dict[str, dict[str, Any]] = {}
    with Interrupts() as interrupts, open_brokers(config.bootstrap_servers, say=say) as brokers:
        for number, row in enumerate(rows):
            warmup_s = config.warmup_s if not number else min(config.warmup_s, _WARM_AGAIN_S)
            own = row.config(replace(config, warmup_s=warmup_s))
            say_here = partial(_say_with, say, f"[{number + 1}/{len(rows)} {row.name}]")
            say_here(row.what)
            with open_scene(own, brokers, interrupts=interrupts, say=say_here) as scene:
                found[row.name] = dict(_MEASURES[row.kind](scene))
            # What has been measured is not lost if a later row fails.
            for what, figures in row_lines(row.name, found[row.name]):
                say_here(f"{what}: {figures}")
    return {
        "machine": this_machine(),
        "began": began,
        "command": command,
        "load_before": before,
        "load_after": load(),
        "rows": found,
        "sizing": sizing(found),
    }


def _say_with(say: Callable[[str], None], where: str, text: str) -> None:
    say(f"{where} {text}")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if options.scale:
        rows = scale_rows(options.undecided or REBUILT)
    else:
        rows = suite_rows(options.undecided or UNDECIDED)
    config = shared_config(
        bootstrap_servers=options.bootstrap_servers,
        warmup_s=options.warmup,
        daemon_arguments=tuple(shlex.split(options.daemon_arguments)),
    )
    command = shlex.join(["python", "-m", "benchmarks.suite", *arguments])
    found = run_suite(chosen(rows, options.row), config, command=command, say=_say)
    sys.stdout.write((json.dumps(found) if options.json else report(found)) + "\n")
    wrong = (row.get("lost") or row.get("duplicates") for row in found["rows"].values())
    return 1 if any(wrong) else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", action="store_true", help="workers, pairs and a restart")
    parser.add_argument("--row", action="append", default=[], help="only this row of the table")
    parser.add_argument("--undecided", type=int, help="undecided transactions of the row")
    parser.add_argument("--bootstrap-servers", default="", help="without it a broker is started")
    parser.add_argument("--warmup", type=float, default=25, help="of the first row, seconds")
    parser.add_argument("--daemon-arguments", default="", help="of `halfbridge checker run`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
