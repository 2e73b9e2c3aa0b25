"""What a process started ends with it, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from halfbridge.testkit.watchdog import Watchdog

LIMIT_S = 20.0
# Its child holds the witness pipe for as long as it lives: the end of that pipe is its death.
OWNER = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    from halfbridge.testkit.watchdog import Watchdog
    directory, witness, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    watchdog = Watchdog(directory)
    watchdog.start([["sleep", "600"]], pass_fds=(witness,))
    os.close(witness)
    print("ready", flush=True)
    if how == "forked" and os.fork() == 0:
        os.read(0, 1)  # outlives its parent, and holds the watchdog's pipe open
        os._exit(0)
    sys.stdin.read()
    if how == "raise":
        raise KeyboardInterrupt
""")


def wait_closed(descriptor: int) -> None:
    """Return when no process holds the pipe's other end any more."""
    readable, _, _ = select.select([descriptor], [], [], LIMIT_S)
    assert readable, "the child is still alive"
    assert os.read(descriptor, 1) == b""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """A directory with content, to be removed."""
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "segment").write_text("x")
    return directory


def test_close_kills_and_removes(temporary: Path) -> None:
    """After close() the child is gone and so is the directory; a second close() does nothing."""
    watchdog = Watchdog(temporary)
    child = watchdog.start([["sleep", "600"]])
    watchdog.close()
    assert child.wait(LIMIT_S) == -signal.SIGKILL
    assert not temporary.exists()
    watchdog.close()


def test_without_directory_nothing_is_removed(temporary: Path) -> None:
    """Data that was meant to stay stays."""
    watchdog = Watchdog(None)
    watchdog.close()
    assert (temporary / "segment").exists()


def test_commands_run_in_turn_and_stop_at_a_failure(tmp_path: Path) -> None:
    """The last command takes over the process only if the ones before it succeeded."""
    watchdog = Watchdog(None)
    try:
        mark = tmp_path / "mark with space"
        assert watchdog.start([["touch", str(mark)], ["test", "-e", str(mark)]]).wait(LIMIT_S) == 0
        assert watchdog.start([["false"], ["touch", str(tmp_path / "no")]]).wait(LIMIT_S) == 1
        assert not (tmp_path / "no").exists()
    finally:
        watchdog.close()


def test_forgotten_process_is_left_alone() -> None:
    """A reaped process's id may be somebody else's by now, so it is not killed."""
    watchdog = Watchdog(None)
    child = watchdog.start([["sh", "-c", "echo started; exec sleep 600"]], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"started\n"  # so it has announced itself
        watchdog.forget(child.pid)
        watchdog.close()
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(LIMIT_S)
        child.stdout.close()


@pytest.mark.parametrize("how", ["raise", "kill", "forked"])
def test_death_of_the_owner_ends_everything(temporary: Path, how: str) -> None:
    """An exception, a SIGKILL, and a SIGKILL with forked children alive: all clean up."""
    reading, writing = os.pipe()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(temporary), str(writing), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(writing,),
    )
    os.close(writing)
    assert owner.stdin is not None
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    if how == "raise":
        owner.stdin.close()
    else:
        owner.kill()
    owner.wait(LIMIT_S)
    wait_closed(reading)
    os.close(reading)
    owner.stdin.close()
    owner.stdout.close()
