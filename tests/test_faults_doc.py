"""The tables of docs/evidence/faults.md are as the command that writes them leaves them."""

from __future__ import annotations

from tests.faults.report import DOCUMENT, render, table, whole_runs

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


def test_whole_runs_are_summed_up() -> None:
    """By their names; runs without one are no part of it, nor are faults that hit no process."""
    failed = {**RUN, "faults": {}, "judged": {}, "passed": False, "run": "2nd"}
    rows = whole_runs([], [RUN, {**RUN, "run": "1st"}, {**RUN, "run": "2nd"}]).splitlines()[2:]
    assert whole_runs(rows, [failed]).splitlines()[2:] == [
        "| 1st | 1 | 0 | 20 | 1,000 | 4 | 0 |",
        "| 2nd | 2 | 1 | 20 | 1,000 | 4 | 0 |",
        "| all | 3 | 1 | 40 | 2,000 | 8 | 0 |",
    ]
