"""Commands whose standard streams are closed, or on a full disk."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from halfbridge.cli import COMMANDS

pytestmark = pytest.mark.more

_HALFBRIDGE = f"{shlex.quote(sys.executable)} -m halfbridge"
# The client connects to a port that nobody serves; the limit is for a loaded machine.
_RUN_S_MAX = 120.0


def run(words: str, redirections: str) -> subprocess.CompletedProcess[str]:
    """Run a command under a shell, with the redirections."""
    return subprocess.run(
        ["bash", "-c", f"exec {_HALFBRIDGE} {words} {redirections}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_runs_with_its_streams_closed(name: str) -> None:
    """All three closed, or output alone: the exit status is the usual one, and no traceback."""
    assert run(f"{name} --help", "<&- >&- 2>&-").returncode == 0
    done = run(f"{name} --help", ">&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_refusal_keeps_its_status_and_its_line() -> None:
    """The error is printed without standard output; the status is right without standard error."""
    done = run("no-such-command", ">&-")
    assert done.returncode == 2
    assert done.stderr.startswith("halfbridge: no such command")
    for redirections in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        assert run("no-such-command", redirections).returncode == 2


def test_a_command_that_meets_kafka_runs_with_standard_output_closed() -> None:
    """No socket of the Kafka client takes the closed stream's number."""
    done = run("doctor --bootstrap-servers 127.0.0.1:1", ">&-")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "--version", "tx list --help"])
def test_a_full_disk_is_named(words: str) -> None:
    """Output that cannot be written is an error of one line."""
    done = run(words, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr == ("halfbridge: cannot write to standard output: No space left on device\n")
