"""docs/faults.md says what the runs say, and names every case."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.faults.report import DOCUMENT, ROOT, RUNS, load, render, whole_runs

if TYPE_CHECKING:
    from pathlib import Path

CASES = 60
WORDS = ("tested", "in part", "n/a", "open")


def rows() -> list[tuple[str, str, str]]:
    """Return (number, case, status) of each case."""
    return re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)


def names_below(folder: Path) -> set[str]:
    """Return the names of the test functions in a folder."""
    return {
        name
        for path in folder.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }


def test_the_table_of_runs_is_made_from_the_runs() -> None:
    """It is what `python -m tests.faults.report` writes."""
    document = DOCUMENT.read_text("utf-8")
    assert document == render(document, load(RUNS))


def test_whole_runs_are_summed_up() -> None:
    """By their names; runs without one are no part of it, nor are faults that hit no process."""
    judged = {"transactions": 20, "messages": 1000, "violations": 0}
    faults = {"worker killed": 3, "broker stopped for 5 s": 1, "proxy: cut": 50}
    run = {"faults": faults, "judged": judged, "passed": True}
    failed = {"faults": {}, "judged": {}, "passed": False, "run": "2nd"}
    rows = whole_runs([run, {**run, "run": "1st"}, {**run, "run": "2nd"}, failed]).splitlines()
    assert rows[2:] == [
        "| 1st | 1 | 0 | 20 | 1,000 | 4 | 0 |",
        "| 2nd | 2 | 1 | 20 | 1,000 | 4 | 0 |",
        "| all | 3 | 1 | 40 | 2,000 | 8 | 0 |",
    ]


def test_every_case_has_a_line() -> None:
    """1 to 60, each once, in order, with a status, and the sentence at the top counts them."""
    found = rows()
    assert [int(number) for number, _, _ in found] == list(range(1, CASES + 1))
    for number, _, status in found:
        assert status.startswith(WORDS), f"case {number}: {status}"
    counts = [sum(status.startswith(word) for _, _, status in found) for word in WORDS]
    told = re.search(
        r"Of 60: (\d+) tested, (\d+) in part, (\d+) do not apply, (\d+) open",
        DOCUMENT.read_text("utf-8"),
    )
    assert told is not None
    assert [int(number) for number in told.groups()] == counts


def test_tests_that_are_named_exist_and_numbered_ones_are_named() -> None:
    """Nobody reads of a test that is gone, and no test of a case goes without its line."""
    there = names_below(ROOT / "tests")
    named = {name for _, _, status in rows() for name in re.findall(r"`(test_\w+)`", status)}
    assert named - there == set()
    for number, _, status in rows():
        mine = re.compile(rf"test_case_0*{number}_")
        for name in filter(mine.match, names_below(ROOT / "tests" / "faults")):
            assert f"`{name}`" in status, number
