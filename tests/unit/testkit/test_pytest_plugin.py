"""The fixtures as a user's own test suite meets them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.ports import HOST, free_ports

if TYPE_CHECKING:
    from pathlib import Path

USES_KAFKA = "def test_it(kafka_bootstrap_servers): assert kafka_bootstrap_servers"
PREFIXES = """
seen = set()
def test_one(topic_prefix): seen.add(topic_prefix)
def test_two(topic_prefix): seen.add(topic_prefix)
def test_fresh():
    assert len(seen) == 2
    assert all(len(prefix) == 10 and prefix[0] == 't' and prefix[-1] == '-' for prefix in seen)
"""


def run(directory: Path, test: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on `test` in a project of its own that does not name the plugin."""
    (directory / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_it.py"],
        cwd=directory,
        env={"PATH": "", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def nowhere() -> str:
    """An address on which nothing listens."""
    return f"{HOST}:{free_ports(1)[0]}"


def test_prefix_is_fresh_for_each_test(tmp_path: Path) -> None:
    """Every test gets a prefix of its own: t, eight hex digits, a hyphen."""
    result = run(tmp_path, PREFIXES)
    assert result.returncode == 0, result.stdout


def test_missing_kafka_skips_on_a_laptop(tmp_path: Path, nowhere: str) -> None:
    """Somebody without the service can still run the rest, and reads why."""
    result = run(tmp_path, USES_KAFKA, HALFBRIDGE_TEST_BOOTSTRAP=nowhere)
    assert result.returncode == 0, result.stdout
    assert "1 skipped" in result.stdout
    assert f"nothing listens on {nowhere}" in result.stdout


def test_missing_kafka_fails_in_ci(tmp_path: Path, nowhere: str) -> None:
    """CI must not be green because its broker was away."""
    result = run(tmp_path, USES_KAFKA, HALFBRIDGE_TEST_BOOTSTRAP=nowhere, CI="true")
    assert result.returncode == 1, result.stdout
    assert f"nothing listens on {nowhere}" in result.stdout


def test_loading_the_plugin_is_cheap() -> None:
    """Pytest loads it everywhere: no Kafka client, no Testcontainers until a fixture is used."""
    heavy = "{'confluent_kafka', 'testcontainers', 'fastavro', 'pyspark'}"
    script = f"import halfbridge.testkit.pytest_plugin, sys; print({heavy} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"
