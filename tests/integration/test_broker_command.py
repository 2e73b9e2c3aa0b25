"""`halfbridge broker start` as a user runs it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.java.locked_jars import read_lock
from halfbridge.testkit.jars import KAFKA_VERSION, lock_of

pytestmark = pytest.mark.broker


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "halfbridge", "broker", "start", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.feature
def test_broker_serves_a_first_command_and_ends_at_ctrl_c() -> None:
    """It prints its address; `topics create` works at once, on a coordinator that is still cold."""
    broker = _start("--port", "0")
    try:
        assert broker.stdout is not None
        address = broker.stdout.readline().strip()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "halfbridge",
                "topics",
                "create",
                "--bootstrap-servers",
                address,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("all well\n")

        broker.send_signal(signal.SIGINT)
        broker.communicate(timeout=60)
        assert broker.returncode == 0
    finally:
        broker.kill()
        broker.communicate()


def test_taken_port_is_one_clear_line() -> None:
    """It never mistakes another broker on that port for its own."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = _start("--port", str(port))
        _, stderr = broker.communicate(timeout=60)

    assert broker.returncode == 1
    assert stderr.count("\n") == 1
    assert f"port {port}" in stderr
    assert "--port" in stderr


@pytest.mark.long
def test_a_first_start_needs_no_pyspark(tmp_path: Path) -> None:
    """From an empty cache, as a user of the extra `embedded` starts it: all jars are fetched."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from halfbridge.cli import main; sys.argv[1:] = ['broker', 'start', '--port', '0']; main()"
    )
    broker = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "HALFBRIDGE_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        host, _, port = broker.stdout.readline().strip().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30):
            pass
        broker.send_signal(signal.SIGINT)
        _, reported = broker.communicate(timeout=60)
        assert broker.returncode == 0, reported
    finally:
        broker.kill()
        broker.communicate()
    lock = lock_of(KAFKA_VERSION)
    assert lock is not None
    assert len(list(tmp_path.rglob("*.jar"))) == len(read_lock(lock))
