"""How a worker process ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from halfbridge.checker.errors import EXIT_ERROR, EXIT_OK
from halfbridge.checker.process.worker_process import Stop

PATIENCE_S = 60.0
# PyDLL keeps the interpreter's lock during a call, as some calls of the Kafka client do.
_HUNG = """
import ctypes
from halfbridge.checker.process import worker_process
worker_process.DRAIN_S = 0.1
worker_process.HUNG_S = 0.3
with worker_process._stopped_by(()) as stop:
    stop.request("test")
    ctypes.PyDLL(None).sleep(600)
"""


class _ExitedError(Exception):
    pass


def _exit(status: int) -> None:
    raise _ExitedError(status)


def test_first_signal_asks_and_the_second_insists() -> None:
    """One SIGTERM drains; another one ends at once."""
    stop = Stop(_exit)

    stop.on_signal(signal.SIGTERM)
    assert stop.event.is_set()

    with pytest.raises(_ExitedError, match=str(EXIT_ERROR)):
        stop.on_signal(signal.SIGTERM)
    stop.cancel()


def test_under_a_supervisor_a_second_signal_changes_nothing() -> None:
    """SIGTERM to a whole service reaches a worker twice: directly and from its supervisor."""
    stop = Stop(_exit, second_insists=False)

    stop.on_signal(signal.SIGTERM)
    stop.on_signal(signal.SIGTERM)

    assert stop.event.is_set()
    stop.cancel()


def test_a_drain_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes in time and with status 0: cutting off loses nothing."""
    ended: list[int] = []
    monkeypatch.setattr("halfbridge.checker.process.worker_process.DRAIN_S", 0.0)
    stop = Stop(ended.append)

    stop.request("test")
    assert stop._timer is not None
    stop._timer.join()

    assert ended == [EXIT_OK]


def test_a_process_in_which_no_python_code_runs_is_cut_off_too() -> None:
    """A call that never returns and keeps the interpreter's lock: the process ends and says where.

    An orphan has no supervisor that would kill it.
    """
    hung = subprocess.run(
        (sys.executable, "-c", _HUNG),
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
        text=True,
    )

    assert hung.returncode == EXIT_ERROR
    assert 'File "<string>", line 8 in <module>' in hung.stderr


def test_supervisor_and_signal_together_drain_once() -> None:
    """A lost supervisor during a drain does not shorten it."""
    stop = Stop(_exit)

    stop.on_signal(signal.SIGTERM)
    stop.request("the supervisor is gone")

    assert stop.event.is_set()
    stop.cancel()


def test_cancelled_stop_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has drained by itself is not cut off later."""
    ended: list[int] = []
    stop = Stop(ended.append)

    stop.request("test")
    stop.cancel()
    assert stop._timer is not None
    stop._timer.join()

    assert ended == []
