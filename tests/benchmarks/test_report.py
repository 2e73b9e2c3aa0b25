"""The tables of figures."""

import re

from benchmarks.report import report
from tests.benchmarks.figures import suite_json


def test_a_suite_is_a_table_with_its_origin() -> None:
    """Each row has a line; the last lines say machine, date, load and command."""
    lines = report(suite_json("rate-200", "threads-32", "pipelined")).splitlines()
    figures = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in lines if line)

    assert figures["rate-200"] == (
        "p50 1.0, p99 2.0 ms; plain p50 0.5, p99 1.5 ms; ratio of p50 2.0;"
        " client 100, worker 200, broker 50 us a transaction"
    )
    assert figures["threads-32"].startswith("25,000/s; visible after p50 1.0, p99 2.0 ms;")
    assert figures["pipelined"].startswith("25,000/s; plain 100,000/s: ratio 0.250;")
    assert figures["worker's peak memory"] == "60 MiB"
    assert figures["first check"] == "6.25 s"
    assert figures["10,000 undecided"] == (
        "all delivered 4.90 s after the last fell due; 2,000 checks/s"
    )
    assert figures["idle worker"] == "0.5 % of a core"
    assert any(line.endswith("29.0 s of processor time, 1200 MiB at most") for line in lines)
    assert figures["lost, duplicates"] == "0, 1"
    assert lines[-3].endswith("2 cores of a <processor>, 24 GiB, Linux 6, Python 3.11")
    assert lines[-2].endswith("2026-11-24 06:00 UTC, load averages 0.5/1/1 then 2/1/1")
    assert lines[-1].endswith("python -m benchmarks.suite")


def test_a_busy_machine_is_named() -> None:
    """Figures from a machine that others used are marked, so that nobody compares them."""
    found = suite_json("rate-200")
    assert "NOT QUIET" not in report(found)
    found["load_before"] = [1.5, 1.0, 1.0]
    assert "NOT QUIET" in report(found)
