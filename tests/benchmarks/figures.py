"""A suite's JSON, as `python -m benchmarks.suite --json` prints it."""

from typing import Any

from benchmarks.rows import chosen, suite_rows
from tests.unit.bench.test_bench import CONFIG, result_with

MACHINE = {
    "cpu": "a <processor>",
    "cores": 2,
    "memory_gib": 24.0,
    "system": "Linux 6",
    "python": "3.11",
}


def suite_json(*names: str) -> dict[str, Any]:
    """Return the figures of rows, all with the same ones; a quiet machine."""
    found: dict[str, Any] = {}
    for row in chosen(suite_rows(), names):
        found[row.name] = result_with(config=row.config(CONFIG)).to_json()
    found["undecided"] = {
        "undecided": 10_000,
        "first_check_s": 6.254,
        "delivered_s": 4.9,
        "checks_per_s": 2_000.0,
        "lost": 0,
        "duplicates": 1,
    }
    found["idle"] = {"worker_percent": 0.5, "broker_percent": None}
    found["rebuild"] = {
        "undecided": 1_000_000,
        "rebuild_s": 31.0,
        "rss_mb_max": 1_200.0,
        "cpu_s": 29.0,
    }
    return {
        "machine": MACHINE,
        "began": "2026-11-24 06:00 UTC",
        "command": "python -m benchmarks.suite",
        "load_before": [0.5, 1.0, 1.0],
        "load_after": [2.0, 1.0, 1.0],
        "rows": found,
    }
