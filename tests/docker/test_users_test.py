"""The test that docs/how-to/test-on-kafka.md shows, on a Kafka in Docker.

Asked for with HALFBRIDGE_TEST_DOCKER=1 (`make test-docker`), which names the image too.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.testkit.jars import BOOTSTRAP_VARIABLE, DOCKER_VARIABLE
from tests.test_readme import users_test_on_kafka

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


@pytest.mark.parametrize("how", ["asked for", "no jars"])
def test_the_users_test_passes_with_containers(how: str, tmp_path: Path) -> None:
    """Not a word of it is changed; Testcontainers starts the broker.

    Whether it was asked to, or the embedded broker cannot be had.
    """
    if os.environ.get(DOCKER_VARIABLE) != "1":
        pytest.skip(f"asked for with {DOCKER_VARIABLE}=1")
    (tmp_path / "test_orders.py").write_text(users_test_on_kafka(), "utf-8")
    environ = {k: v for k, v in os.environ.items() if k != BOOTSTRAP_VARIABLE}
    if how == "no jars":
        del environ[DOCKER_VARIABLE]
        environ["HALFBRIDGE_CACHE_DIR"] = str(tmp_path)
        environ["HOME"] = str(tmp_path)
        environ["HALFBRIDGE_MAVEN_REPOSITORY"] = (tmp_path / "nowhere").as_uri()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_orders.py"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "kafka: docker" in done.stdout
