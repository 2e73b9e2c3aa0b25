"""`halfbridge demo --spark`: Spark has the last word on a run with crashes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.spark_long]

RUN_S_MAX = 1500.0


@pytest.mark.timeout(1800)
def test_spark_reads_and_audits_the_run() -> None:
    """It reads, of every transaction, the rows that the demo's consumer read; no findings."""
    done = subprocess.run(
        [sys.executable, "-m", "halfbridge", "demo", "--orders", "200", "--spark", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    delivered = sum(kind["delivered"] for kind in found["kinds"].values())
    assert delivered > 0
    assert found["spark"]["rows"] == delivered
    assert (found["spark"]["ok"], found["spark"]["differing"]) == (True, 0)
    assert found["spark"]["transactions"]["all"] >= 200
