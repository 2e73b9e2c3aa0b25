"""What a process started ends with it, however it ends."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from halfbridge.testkit.children import (
    Child,
    ChildFailedError,
    Children,
    InterruptedRunError,
    Interrupts,
    NotInTimeError,
)
from halfbridge.testkit.watchdog import Watchdog
from tests.kit.processes import is_running
from tests.kit.waiting import until

pytestmark = pytest.mark.process

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


# --- no child outlives its parent's work, and an interrupt waits for a safe place ----------

_GRANDPARENT = (
    "import signal, subprocess, sys;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(c.pid, flush=True); c.wait()"
)
_OBEDIENT = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as noted:
        yield noted


@pytest.fixture
def children(tmp_path: Path, interrupts: Interrupts) -> Iterator[Children]:
    with Children(tmp_path, interrupts=interrupts) as group:
        yield group


def start(children: Children, code: str) -> Child:
    """Start Python on `code` and wait for its first line."""
    child = children.start("child", (sys.executable, "-c", code))
    children.wait_until(
        lambda: child.output.read_bytes().endswith(b"\n"), what="line", timeout_s=20
    )
    return child


def test_kill_ends_grandchildren(children: Children) -> None:
    """Killing a child that ignores SIGTERM ends what it started too."""
    child = start(children, _GRANDPARENT)
    grandchild = int(child.output.read_text())
    children.kill(child)

    until("the grandchild has ended", lambda: not is_running(grandchild), within_s=10.0)
    assert child.process.returncode == -signal.SIGKILL


def test_stop_returns_the_status(children: Children) -> None:
    """A child that ends on SIGTERM is stopped with its own status."""
    assert children.stop(start(children, _OBEDIENT)) == -signal.SIGTERM


def test_leaving_ends_everything(tmp_path: Path, interrupts: Interrupts) -> None:
    """Whatever leaves the block, no child is left."""
    directory = tmp_path / "run"
    directory.mkdir()
    with suppress(RuntimeError), Children(directory, interrupts=interrupts) as group:
        child = start(group, _OBEDIENT)
        raise RuntimeError

    assert child.process.returncode is not None
    assert not directory.exists()


def test_interrupt_is_raised_where_it_is_safe(children: Children, interrupts: Interrupts) -> None:
    """A signal is only noted; the next wait raises it, and no child can be started any more."""
    os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="SIGINT"):
        children.wait_until(lambda: False, what="never", timeout_s=5)
    with pytest.raises(InterruptedRunError):
        children.start("late", ("true",))


def test_child_does_not_get_our_interrupts(children: Children) -> None:
    """A child leads a session of its own."""
    child = start(children, _OBEDIENT)

    assert os.getsid(child.process.pid) == child.process.pid


def test_failed_child_has_last_words(children: Children) -> None:
    """Waiting ends at once when a child fails, and shows what it wrote last."""
    children.start("broken", (sys.executable, "-c", "raise SystemExit('no such thing')"))

    with pytest.raises(ChildFailedError, match="broken ended with status 1\nno such thing"):
        children.wait_until(lambda: False, what="never", timeout_s=20)


def test_not_in_time(children: Children) -> None:
    """What does not happen in time is named."""
    with pytest.raises(NotInTimeError, match="the moon: not within 0 s"):
        children.wait_until(lambda: False, what="the moon", timeout_s=0)
