"""The suites on a real broker, with loads that are too small to say anything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.long]

_ROOT = Path(__file__).resolve().parents[2]
_S_MAX = 240
_SUITE = ("rate-200", "undecided", "idle")
_UNDECIDED = 300


def _bench(servers: str, *words: str) -> str:
    command = (sys.executable, "-m", "benchmarks.suite", "--bootstrap-servers", servers)
    done = subprocess.run(
        [*command, "--warmup", "1", *words],
        capture_output=True,
        check=True,
        text=True,
        timeout=_S_MAX,
        cwd=_ROOT,
    )
    return done.stdout


def test_a_suite_measures_rows(kafka_bootstrap_servers: str) -> None:
    """Each row that was asked for has its figures."""
    rows = [word for name in _SUITE for word in ("--row", name)]
    words = (*rows, "--undecided", str(_UNDECIDED), "--json")
    found = json.loads(_bench(kafka_bootstrap_servers, *words))["rows"]

    assert list(found) == list(_SUITE)
    assert found["rate-200"]["latency_ratio_to_plain"] > 0
    assert found["undecided"]["lost"] == found["undecided"]["duplicates"] == 0
    assert found["undecided"]["undecided"] == _UNDECIDED
    assert found["undecided"]["first_check_s"] >= 6
    assert found["undecided"]["checks_per_s"] > 0
    assert found["idle"]["worker_percent"] >= 0


def test_a_restart_is_measured(kafka_bootstrap_servers: str) -> None:
    """A killed worker's successor knows all undecided transactions again before it is ready."""
    words = ("--scale", "--row", "rebuild", "--undecided", str(_UNDECIDED))
    text = _bench(kafka_bootstrap_servers, *words)

    assert f"restart, {_UNDECIDED} undecided" in text
    assert "ready after" in text
