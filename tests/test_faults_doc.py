"""docs/faults.md says what the runs say, and names every case."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.faults.report import DOCUMENT, ROOT, render, table, whole_runs

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


RUN = {
    "test": "test_case_03_killed",
    "load": ["pipelined 80/s", "blocking 40/s"],
    "faults": {"worker killed": 3, "broker stopped, back after 5 s": 1, "proxy: hold:24": 50},
    "judged": {"transactions": 20, "messages": 1000, "violations": 0},
    "recovered_s": [1.5, 9.8],
    "seed": 7,
    "date": "2026-11-23",
    "passed": True,
}


def test_the_tables_are_as_the_command_writes_them() -> None:
    """Rows are whole, in order, their sum is right, and adding no run changes nothing."""
    document = DOCUMENT.read_text("utf-8")
    assert document == render(document, [])


def test_a_run_is_added_to_what_earlier_runs_left() -> None:
    """Counts add up, the slowest recovery stays, load, seed and date are of the last run."""
    later = {**RUN, "load": ["blocking 60/s"], "recovered_s": [2.0], "seed": 8, "passed": False}
    rows = table([], [RUN]).splitlines()[2:]
    assert table(rows, [later]) == table([], [RUN, later])
    _, _, row = table(rows, [later]).splitlines()
    assert row == (
        "| `test_case_03_killed` | blocking 60/s |"
        " worker killed: 6, broker stopped, back after 5 s: 2, proxy: hold:24: 100 |"
        " 2, 1 failed | 2,000 | 0 | 9.8 s | 8 | 2026-11-23 |"
    )


def test_a_test_of_the_table_of_runs_exists() -> None:
    """A row whose test is gone would be read as if the test still ran."""
    told = set(re.findall(r"^\| `(test_\w+)", DOCUMENT.read_text("utf-8"), re.MULTILINE))
    assert told
    assert told - names_below(ROOT / "tests") == set()


def test_whole_runs_are_summed_up() -> None:
    """By their names; runs without one are no part of it, nor are faults that hit no process."""
    failed = {**RUN, "faults": {}, "judged": {}, "passed": False, "run": "2nd"}
    rows = whole_runs([], [RUN, {**RUN, "run": "1st"}, {**RUN, "run": "2nd"}]).splitlines()[2:]
    assert whole_runs(rows, [failed]).splitlines()[2:] == [
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
