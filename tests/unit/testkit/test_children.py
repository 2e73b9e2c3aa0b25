"""No child outlives its parent's work, and an interrupt waits for a safe place."""

from __future__ import annotations

import os
import signal
import sys
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
from tests.kit.processes import is_running
from tests.kit.waiting import until

_GRANDPARENT = (
    "import signal, subprocess, sys;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(c.pid, flush=True); c.wait()"
)
_OBEDIENT = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Return interrupts in force."""
    with Interrupts() as noted:
        yield noted


@pytest.fixture
def children(tmp_path: Path, interrupts: Interrupts) -> Iterator[Children]:
    """Return a group of children."""
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
