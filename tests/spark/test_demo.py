"""`halfbridge demo --spark`: Spark audits a run with crashes."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.spark_long]

RUN_S_MAX = 1500.0


@pytest.mark.timeout(1800)
def test_spark_audits_the_run() -> None:
    """Its audit of every transaction finds nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "halfbridge", "demo", "--orders", "200", "--spark", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(kind["delivered"] for kind in found["kinds"].values()) > 0
    assert found["spark"]["clean"] is True
    assert found["spark"]["transactions"]["all"] >= 200
