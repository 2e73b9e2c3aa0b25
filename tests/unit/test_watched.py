"""Unit tests start no process and open no socket: the check itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import socket, subprocess, sys, threading
import pytest

def start(): subprocess.run([sys.executable, "-c", ""], check=True)

def test_process(): start()

def test_caught():
    with pytest.raises(RuntimeError, match=r"socket\\.bind"):
        socket.create_server(("127.0.0.1", 0))

def test_thread_of_another_test():
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

@pytest.mark.process
def test_marked(): start()

def test_plain(): pass
"""


@pytest.mark.process
def test_what_starts_a_process_or_opens_a_socket_fails(tmp_path: Path) -> None:
    """Also where the error is caught; not in another thread, nor where a mark allows it."""
    conftest = Path(__file__).with_name("conftest.py")
    (tmp_path / "conftest.py").write_bytes(conftest.read_bytes())
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ("-q", "-rA", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    run = subprocess.run(
        (sys.executable, "-m", "pytest", *options, "test_it.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"1 failed, 4 passed, .*2 errors", run.stdout), run.stdout
    for name in ("process", "caught"):
        assert f"ERROR test_it.py::test_{name} " in run.stdout, run.stdout
