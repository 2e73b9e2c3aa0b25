"""A producer in a process whose threads are greenlets: refused, in place of a frozen process."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

TIMEOUT_S = 120  # a frozen process would never end

PROGRAM = """
{patch}
from halfbridge import TransactionProducer
from halfbridge.kafka.errors import BridgeError
producer = TransactionProducer(
    bootstrap_servers="127.0.0.1:1", producer_group="g", checker=print, send_timeout_ms=1000
)
try:
    producer.start()
except BridgeError as error:
    print(type(error).__name__, error)
"""


def output_of(patch: str) -> str:
    """Return what a program prints that patches first, and then starts a producer."""
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(patch=patch)]
    return subprocess.run(
        program, capture_output=True, check=True, text=True, timeout=TIMEOUT_S
    ).stdout


def skip_without(package: str) -> None:
    """Skip a test whose package is not installed.

    It is not imported here: eventlet makes every later fork of the process warn.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize(
    ("package", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_patched_threads_are_refused(package: str, patch: str) -> None:
    """By an error that names the package and the remedy."""
    skip_without(package)
    told = output_of(patch)
    assert told.startswith("ConfigError")
    assert package in told
    assert "gthread" in told
    assert "prefork" in told


@pytest.mark.parametrize(
    ("package", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all(thread=False)"),
        ("eventlet", "import eventlet; eventlet.monkey_patch(thread=False)"),
        ("gevent", "import gevent.monkey"),
    ],
)
def test_native_threads_are_not_refused(package: str, patch: str) -> None:
    """The package may be there, and may patch other modules: the brokers are asked then."""
    skip_without(package)
    told = output_of(patch)
    assert "greenlets" not in told
    assert told.startswith(("BridgeError", "TopicSetupError", "RetriableError"))
