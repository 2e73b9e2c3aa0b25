"""The suites on a real broker, with loads that are too small to say anything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.idle_requests import measure

pytestmark = [pytest.mark.broker, pytest.mark.long]

_ROOT = Path(__file__).resolve().parents[2]
_S_MAX = 240
_REQUESTS_MAX = 8.0  # a second: five fetches, a heartbeat, and questions about topics
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


def test_an_idle_worker_sends_few_requests(kafka_bootstrap_servers: str) -> None:
    """It fetches and stays in its group, and no other client of its own sends more than that."""
    found = measure(kafka_bootstrap_servers, {}, 10.0)

    (member,) = (rates for name, rates in found["clients"].items() if name.startswith("member"))
    assert member["Fetch"] > member["Heartbeat"] > 0
    assert found["all"] < _REQUESTS_MAX
