"""docs/faults.md says what the runs say, and names every case."""

from __future__ import annotations

import re

from tests.faults.report import DOCUMENT, ROOT, RUNS, load, render

CASES = 60
WORDS = ("tested", "in part", "n/a", "open")


def rows() -> list[tuple[str, str, str]]:
    """Return (number, case, status) of each case."""
    return re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)


def test_the_table_of_runs_is_made_from_the_runs() -> None:
    """It is what `python -m tests.faults.report` writes."""
    document = DOCUMENT.read_text("utf-8")
    assert document == render(document, load(RUNS))


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
    sources = {path: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    there = {
        name
        for text in sources.values()
        for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    }
    named = {name for _, _, status in rows() for name in re.findall(r"`(test_\w+)`", status)}
    assert named - there == set()
    for number, _, status in rows():
        mine = {name for name in there if name.startswith(f"test_case_{int(number):02}_")}
        assert {name for name in mine if f"`{name}`" not in status} == set(), number
