"""The published result of the fault tests: figures of real runs, and the table made from them.

Each fault test that judges a history appends one line to the file that HALFBRIDGE_FAULTS_REPORT
names; lines of one whole run bear the name that HALFBRIDGE_FAULTS_RUN gives it. Run as a script
this renders docs/faults.jsonl into docs/faults.md; a test fails while the tables there are stale.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.faults.stage import Stage

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs" / "faults.jsonl"
DOCUMENT = ROOT / "docs" / "faults.md"
_WHOLE_HEAD = (
    (
        "| Run | Histories | Failed | Transactions | Messages judged |"
        " Processes killed, stopped or replaced | Violations |"
    ),
    "|---" * 7 + "|",
)
# What a fault's name says when processes of ours, of clients or of brokers were the target.
_OF_PROCESSES = re.compile(r"\b(killed|dies|stopped|restarted|upgraded)\b")
_HEAD = (
    (
        "| Test | Load | Faults injected, all runs | Runs | Messages judged | Violations |"
        " Slowest recovery | Seed of the last run | Last run | Command |"
    ),
    "|---" * 10 + "|",
)


def append(path: Path, test: str, stage: Stage, *, passed: bool, seconds: float) -> None:
    """Append what a test did and what came of it."""
    line = {
        "test": test,
        "load": stage.load,
        "faults": dict(stage.injected),
        "judged": stage.judged,
        "recovered_s": [round(each, 1) for each in stage.recovered_s],
        "seed": stage.seed,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "seconds": round(seconds),
        "passed": passed,
    }
    if name := os.environ.get("HALFBRIDGE_FAULTS_RUN"):
        line["run"] = name
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def load(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a report."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def table(runs: Iterable[dict[str, Any]]) -> str:
    """Return the table: one row a test, all its runs together."""
    by_test: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        by_test[run["test"]].append(run)
    return "\n".join((*_HEAD, *(_row(test, by_test[test]) for test in sorted(by_test, key=_order))))


def whole_runs(runs: Iterable[dict[str, Any]]) -> str:
    """Return the table of whole runs, one row each, and their sum."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if "run" in run:
            by_name[run["run"]].append(run)
    every = [run for each in by_name.values() for run in each]
    return "\n".join(
        (*_WHOLE_HEAD, *map(_whole_row, by_name, by_name.values()), _whole_row("all", every))
    )


def render(document: str, runs: Iterable[dict[str, Any]]) -> str:
    """Return `document` with the tables of `runs` between their marks."""
    runs = list(runs)
    return _between(_between(document, "runs", table(runs)), "whole", whole_runs(runs))


def _between(document: str, mark: str, text: str) -> str:
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = document.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _whole_row(name: str, runs: list[dict[str, Any]]) -> str:
    processes = sum(
        count
        for run in runs
        for fault, count in run["faults"].items()
        if _OF_PROCESSES.search(fault)
    )
    judged = [run["judged"] for run in runs]
    numbers = (
        len(runs),
        sum(not run["passed"] for run in runs),
        sum(each.get("transactions", 0) for each in judged),
        sum(each.get("messages", 0) for each in judged),
        processes,
        sum(each.get("violations", 0) for each in judged),
    )
    return f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |"


def _row(test: str, runs: list[dict[str, Any]]) -> str:
    last = runs[-1]
    failed = sum(not run["passed"] for run in runs)
    faults: dict[str, int] = defaultdict(int)
    for run in runs:
        for fault, count in run["faults"].items():
            faults[fault] += count
    recovered = [each for run in runs for each in run["recovered_s"]]
    cells = (
        f"`{test}`",
        "; ".join(last["load"]),
        ", ".join(f"{fault}: {count}" for fault, count in faults.items()) or "none",
        f"{len(runs)}, {failed} failed" if failed else str(len(runs)),
        f"{sum(run['judged'].get('messages', 0) for run in runs):,}",
        str(sum(run["judged"].get("violations", 0) for run in runs)),
        f"{max(recovered):.1f} s" if recovered else "",
        str(last["seed"]),
        last["date"],
        f"`pytest -m '' tests/faults -k '{_expression(test)}'`",
    )
    return f"| {' | '.join(cells)} |"


def _expression(test: str) -> str:
    """Return what `pytest -k` takes for a test, its parameters included."""
    return " and ".join(re.findall(r"[\w-]+", test))


def _order(test: str) -> tuple[int, str]:
    number = re.search(r"case_(\d+)", test)
    return (int(number[1]) if number else 1000, test)


def main() -> int:
    """Write the table into the document."""
    DOCUMENT.write_text(render(DOCUMENT.read_text("utf-8"), load(RUNS)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
