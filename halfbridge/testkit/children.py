"""Child processes that end with their parent's work, and signals handled at safe points.

Each child leads a session of its own, so that Ctrl-C at a terminal reaches the parent only, and
so that ending a child ends its own children too (a supervisor's workers). A watchdog ends them
all, and removes the directory, should the parent itself be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.testkit.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from typing_extensions import Self

POLL_S = 0.05  # how late a condition is seen; a check is cheap
STOP_S_MAX = 12.0  # the daemon drains within 10 s
_KILL_S_MAX = 5.0  # a killed process is gone at once, unless the kernel waits for a disk
_TAIL_LINES = 15  # a screen, with the last stack
_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedRunError(Exception):
    """SIGINT, SIGTERM or SIGHUP came: the run is to clean up and end."""


class ChildFailedError(Exception):
    """A child ended by itself; the end of its standard error is in the message."""


class NotInTimeError(ChildFailedError):
    """A wait timed out; the end of every child's standard error is in the message."""


class Interrupts:
    """Notes SIGINT, SIGTERM and SIGHUP while it is entered; `check` raises at a safe point.

    A KeyboardInterrupt between starting a process and recording its id would leave an orphan; this
    class rules that out. Use it in the main thread only.
    """

    def __init__(self) -> None:
        self._caught = 0
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        for number in _CAUGHT:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._caught = number

    def check(self) -> None:
        """Return if no signal came. InterruptedRunError: one came; the caller ends the run."""
        if self._caught:
            raise InterruptedRunError(signal.Signals(self._caught).name)


@dataclass(frozen=True, slots=True)
class Child:
    """A running process and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path

    def last_words(self) -> str:
        """Return the last lines of its standard error."""
        lines = self.errors.read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


class Children:
    """Starts processes; all of them have ended when the `with` block is left.

    `directory` has `<name>.out` and `<name>.err`, and is removed unless it is to be kept.
    """

    def __init__(
        self, directory: Path, *, interrupts: Interrupts, keep_directory: bool = False
    ) -> None:
        self.directory = directory
        self._interrupts = interrupts
        self._running: list[Child] = []
        self._watchdog = Watchdog(None if keep_directory else directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running:
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S_MAX
        for child in reversed(self._running):
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in list(self._running):
            self.kill(child)
        self._watchdog.close()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a process in a session of its own and return it; `environ` replaces ours."""
        self._interrupts.check()
        output, errors = (self.directory / f"{name}.{kind}" for kind in ("out", "err"))
        with output.open("wb") as out, errors.open("wb") as err:
            process = self._watchdog.start([list(command)], stdout=out, stderr=err, env=environ)
        child = Child(name, process, output, errors)
        self._running.append(child)
        return child

    def kill(self, child: Child) -> None:
        """SIGKILL a child and all that it started; return when it is gone."""
        self._running.remove(child)
        _signal(child, signal.SIGKILL)
        child.process.wait(_KILL_S_MAX)
        self._watchdog.forget(child.process.pid)

    def stop(self, child: Child, *, timeout_s: float = STOP_S_MAX) -> int:
        """SIGTERM a child and return its exit status; negative: the signal that ended it."""
        _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while child.process.poll() is None and time.monotonic() < deadline:
            self._interrupts.check()
            time.sleep(POLL_S)
        self.kill(child)
        return child.process.returncode

    def wait_until(self, ready: Callable[[], bool], *, what: str, timeout_s: float) -> None:
        """Return when `ready`.

        Raises:
            InterruptedRunError: a signal came; the caller ends the run.
            ChildFailedError: a child has ended with an error; the user acts on its output, which is
                in the text.
            NotInTimeError: `timeout_s` is over; the caller allows more, or ends the run.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            self._interrupts.check()
            for child in self._running:
                if child.process.poll():
                    status = child.process.returncode
                    words = child.last_words()
                    raise ChildFailedError(f"{child.name} ended with status {status}\n{words}")
            if time.monotonic() > deadline:
                words = "\n".join(f"{c.name}: {c.last_words()}" for c in self._running)
                raise NotInTimeError(f"{what}: not within {timeout_s:g} s\n{words}")
            time.sleep(POLL_S)


def _signal(child: Child, number: signal.Signals) -> None:
    # The leader may be gone while its children still run: the group outlives it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)
