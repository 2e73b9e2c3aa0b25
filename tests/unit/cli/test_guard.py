"""A command that reads logs has a guard: signals and exit statuses pass through it."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

_SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
from halfbridge.cli.guard import guard
guard(sys.argv[2:])
print(os.getpid(), flush=True)
exec(sys.argv[1])
"""
# A signal that comes just before time.sleep() is noticed at its end.
_WAIT = "while True: time.sleep(0.1)"
_END_S_MAX = 60.0


def _command(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_guard_ends_the_command(number: signal.Signals) -> None:
    """The guard ends as the command did, so a shell sees the signal."""
    command = _command(_WAIT, "tx", "list")
    assert command.stdout is not None
    assert int(command.stdout.readline()) != command.pid
    command.send_signal(number)
    command.communicate(timeout=_END_S_MAX)
    assert command.returncode == -number


@pytest.mark.parametrize("words", [["dead", "list"], ["--debug", "audit-log"], ["checker", "run"]])
def test_an_exit_status_passes(words: list[str]) -> None:
    """The daemon has no guard: it has a supervisor."""
    command = _command("os._exit(7)", *words)
    printed, _ = command.communicate(timeout=_END_S_MAX)
    assert command.returncode == 7
    assert (int(printed) == command.pid) == (words[0] == "checker")


def test_an_abort_is_one_line() -> None:
    """Also where no record is to blame."""
    command = _command("os.abort()", "tx", "list")
    _, said = command.communicate(timeout=_END_S_MAX)
    assert command.returncode == 1
    *_, line = said.splitlines()
    assert line.startswith("halfbridge: the process was ended by SIGABRT")
