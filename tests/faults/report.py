"""The published result of the fault tests: the tables of docs/evidence/faults.md.

Each fault test that judges a history appends one line to the file that HALFBRIDGE_FAULTS_REPORT
names; lines of one whole run bear the name that HALFBRIDGE_FAULTS_RUN gives it. `make faults`
names .faults/runs.jsonl, which git ignores. `python -m tests.faults.report` adds these lines to
the tables and renames the file, so that each run counts once. The tables are all that is kept of
earlier runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.faults.stage import Stage

ROOT = Path(__file__).parents[2]
RUNS = ROOT / ".faults" / "runs.jsonl"
DOCUMENT = ROOT / "docs" / "evidence" / "faults.md"
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
        " Slowest recovery | Seed of the last run | Last run |"
    ),
    "|---" * 9 + "|",
)
_ALL = "all"  # the last row of whole runs: their sum


@dataclass
class Summary:
    """A row of the table of tests: all runs of one test together.

    Attributes:
        load, seed, date: Of the last run.
        recovered_s: The slowest recovery of all runs; None where none was measured.
    """

    test: str
    load: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    failed: int = 0
    messages: int = 0
    violations: int = 0
    recovered_s: float | None = None
    seed: str = ""
    date: str = ""

    @classmethod
    def parse(cls, row: str) -> Summary:
        test, load, faults, runs, messages, violations, recovered, seed, date = _cells(row)
        counted = Counter({name: int(n) for name, n in re.findall(r"(.+?): (\d+)(?:, |$)", faults)})
        total, _, failed = runs.partition(", ")
        return cls(
            test.strip("`"),
            load,
            counted,
            int(total),
            int(failed.removesuffix(" failed") or 0),
            int(messages.replace(",", "")),
            int(violations),
            float(recovered.removesuffix(" s")) if recovered else None,
            seed,
            date,
        )

    def add(self, run: dict[str, Any]) -> None:
        """Count a run, which is later than all before."""
        judged = run["judged"]
        self.load, self.seed, self.date = "; ".join(run["load"]), str(run["seed"]), run["date"]
        self.faults.update(run["faults"])
        self.runs += 1
        self.failed += not run["passed"]
        self.messages += judged.get("messages", 0)
        self.violations += judged.get("violations", 0)
        recovered = [each for each in (self.recovered_s, *run["recovered_s"]) if each is not None]
        self.recovered_s = max(recovered, default=None)

    def __str__(self) -> str:
        cells = (
            f"`{self.test}`",
            self.load,
            ", ".join(f"{fault}: {count}" for fault, count in self.faults.items()) or "none",
            f"{self.runs}, {self.failed} failed" if self.failed else str(self.runs),
            f"{self.messages:,}",
            str(self.violations),
            "" if self.recovered_s is None else f"{self.recovered_s:.1f} s",
            self.seed,
            self.date,
        )
        return f"| {' | '.join(cells)} |"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def load(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a report."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def render(document: str, runs: Iterable[dict[str, Any]]) -> str:
    """Return `document` with `runs` added to its tables."""
    runs = list(runs)
    tests = table(_rows(document, "runs"), runs)
    whole = whole_runs(_rows(document, "whole"), runs)
    return _between(_between(document, "runs", tests), "whole", whole)


def table(rows: Iterable[str], runs: Iterable[dict[str, Any]]) -> str:
    """Return the table: one row a test, all its runs together."""
    found = {each.test: each for each in map(Summary.parse, rows)}
    for run in runs:
        found.setdefault(run["test"], Summary(run["test"])).add(run)
    return "\n".join((*_HEAD, *(str(found[test]) for test in sorted(found, key=_order))))


def whole_runs(rows: Iterable[str], runs: Iterable[dict[str, Any]]) -> str:
    """Return the table of whole runs, one row each, and their sum."""
    by_name: dict[str, list[int]] = {}
    for row in rows:
        name, *numbers = _cells(row)
        by_name[name] = [int(number.replace(",", "")) for number in numbers]
    by_name.pop(_ALL, None)
    for run in runs:
        if "run" in run:
            known = by_name.get(run["run"], [0] * len(_figures(run)))
            by_name[run["run"]] = [sum(pair) for pair in zip(known, _figures(run), strict=True)]
    every = [sum(column) for column in zip(*by_name.values(), strict=True)]
    lines = (
        f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} |"
        for name, numbers in (*by_name.items(), (_ALL, every))
    )
    return "\n".join((*_WHOLE_HEAD, *lines))


def _figures(run: dict[str, Any]) -> tuple[int, ...]:
    processes = (n for fault, n in run["faults"].items() if _OF_PROCESSES.search(fault))
    judged = run["judged"]
    return (
        1,
        not run["passed"],
        judged.get("transactions", 0),
        judged.get("messages", 0),
        sum(processes),
        judged.get("violations", 0),
    )


def _cells(row: str) -> list[str]:
    return row.removeprefix("| ").removesuffix(" |").split(" | ")


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def _rows(document: str, name: str) -> list[str]:
    begin, end = _marks(name)
    _, _, rest = document.partition(begin)
    return rest.partition(end)[0].strip().splitlines()[2:]


def _between(document: str, name: str, text: str) -> str:
    begin, end = _marks(name)
    before, rest = document.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _order(test: str) -> tuple[int, str]:
    number = re.search(r"case_(\d+)", test)
    return (int(number[1]) if number else 1000, test)


def main() -> int:
    """Add the runs to the document, and put their file aside."""
    runs = load(RUNS)
    DOCUMENT.write_text(render(DOCUMENT.read_text("utf-8"), runs), encoding="utf-8")
    RUNS.rename(RUNS.with_name(f"added-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.jsonl"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
