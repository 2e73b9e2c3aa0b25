"""`halfbridge bench` as a user runs it, with loads that are too small to say anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.bench.brokers import open_brokers
from tests.kit.reading import reader_of

pytestmark = [pytest.mark.broker, pytest.mark.long]

_S_MAX = 240
_SUITE = ("rate-200", "undecided", "idle")
_UNDECIDED = 300


def _bench(servers: str, *words: str) -> str:
    command = (sys.executable, "-m", "halfbridge", "bench", "--bootstrap-servers", servers)
    warmup = ("--warmup", "1")
    done = subprocess.run(
        [*command, *warmup, *words], capture_output=True, check=True, text=True, timeout=_S_MAX
    )
    return done.stdout


def _topics(servers: str) -> set[str]:
    reader = reader_of(servers, [], partitions=0)
    names = {name for name in reader.list_topics().topics if "bench" in name}
    reader.close()
    return names


def test_a_run_measures_itself_and_what_is_plain(kafka_bootstrap_servers: str) -> None:
    """Threads that block: all arrives, baselines and processor time are told, topics are gone."""
    servers = kafka_bootstrap_servers
    before = _topics(servers)
    words = ("--messages", "300", "--threads", "4", "--daemon-arguments", "--slot bench", "--json")
    found = json.loads(_bench(servers, *words))

    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert found["transactions_per_s"] > 0
    assert found["plain_latency_ms"]["p50"] > 0
    assert 0 < found["ratio_to_plain"] < 1
    assert found["cpu_us_per_tx"]["client"] > 0
    assert found["cpu_us_per_tx"]["worker"] > 0
    assert found["config"]["daemon_arguments"] == ["--slot", "bench"]
    with open_brokers(servers, say=str) as brokers:
        assert (found["broker"] is None) is (brokers.pid is None)
    assert _topics(servers) == before


def test_a_suite_measures_rows_and_draws_them(kafka_bootstrap_servers: str, tmp_path: Path) -> None:
    """Each row that was asked for has its figures; the picture is written; progress is told."""
    picture = tmp_path / "suite.svg"
    rows = [word for name in _SUITE for word in ("--row", name)]
    words = ("--suite", *rows, "--undecided", str(_UNDECIDED), "--picture", str(picture), "--json")
    found = json.loads(_bench(kafka_bootstrap_servers, *words))["rows"]

    assert list(found) == list(_SUITE)
    assert found["rate-200"]["latency_ratio_to_plain"] > 0
    assert found["undecided"]["lost"] == found["undecided"]["duplicates"] == 0
    assert found["undecided"]["undecided"] == _UNDECIDED
    assert found["undecided"]["first_check_s"] >= 6
    assert found["undecided"]["checks_per_s"] > 0
    assert found["idle"]["worker_percent"] >= 0
    assert picture.read_text("utf-8").startswith("<svg")


def test_a_restart_is_measured(kafka_bootstrap_servers: str) -> None:
    """A killed worker's successor knows all undecided transactions again before it is ready."""
    words = ("--scale", "--row", "rebuild", "--undecided", str(_UNDECIDED))
    text = _bench(kafka_bootstrap_servers, *words)

    assert f"restart, {_UNDECIDED} undecided" in text
    assert "ready after" in text
