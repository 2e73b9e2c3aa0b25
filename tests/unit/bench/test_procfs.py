"""Usage is read from /proc, descendants included."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from halfbridge.bench.procfs import listening_pid, usage_of
from halfbridge.bench.result import Usage

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")

_ALLOCATE = "x = bytearray(80 << 20); print('up', flush=True); input()"


def test_own_usage_includes_children() -> None:
    """A child's memory counts when it is the greatest, and its processor time adds up."""
    with subprocess.Popen(
        [sys.executable, "-c", _ALLOCATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used = usage_of(os.getpid())
        alone = usage_of(child.pid)
        child.communicate(b"\n")

    assert alone.rss_mb_max > 80
    assert used.rss_mb_max >= alone.rss_mb_max
    assert used.cpu_s > 0


def test_process_that_is_gone() -> None:
    """A process that is gone used nothing that can be told."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()

    assert usage_of(child.pid) == Usage(0.0, 0.0)


def test_who_listens_on_a_port() -> None:
    """A server of somebody else is found by its port; a client's port is no server's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pid(port) == os.getpid()
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert listening_pid(client.getsockname()[1]) is None
    assert listening_pid(port) is None
