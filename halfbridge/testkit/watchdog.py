"""Ends the processes that a process started when that process ends, even if it is killed.

A small process of its own reads a pipe that only its owner holds open. A child writes its own
process id into it before it runs its command, so none is ever missed; at the end of the pipe (the
owner closed it, exited, or was killed) every process group named is killed and the temporary
directory removed. Linux's parent death signal would not suffice: it fires when the starting
*thread* ends, and macOS has none.

Run as a file, without site packages, it starts in 20 ms: keep its imports to the standard library.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CLEANUP_S_MAX = 30.0  # removing a directory of many segments on a busy disk
_GONE_S_MAX = 2.0  # a killed JVM gives its memory back in less; a zombie never goes
_POLL_S = 0.02  # how late an ended process is seen
_PARENT_POLL_S = 1.0  # how late a dead parent is seen whose forked children keep the pipe open
_READ_BYTES_MAX = 4096  # some hundred process ids at a time


class Watchdog:
    """The owner's side. Not thread-safe. `directory` is removed when the owner closes or ends."""

    def __init__(self, directory: Path | None) -> None:
        reading, self._pipe = os.pipe()
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(directory or "")]
        try:
            self._process = subprocess.Popen(  # noqa: S603  # this very file
                command, stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    def start(self, commands: Iterable[list[str]], **options: Any) -> subprocess.Popen[bytes]:
        """Start a watched process that runs `commands` in turn; `exec` runs the last.

        It leads a session of its own, so a Ctrl-C reaches only the owner. `options` go to Popen.
        """
        *first, last = (shlex.join(command) for command in commands)
        script = " && ".join(["echo +$$ >&0", "exec </dev/null", *first, f"exec {last}"])
        return subprocess.Popen(  # noqa: S603  # every word is quoted
            ["/bin/sh", "-c", script], stdin=self._pipe, start_new_session=True, **options
        )

    def forget(self, pid: int) -> None:
        """Report that a process was reaped, so its id may be reused."""
        os.write(self._pipe, b"-%d\n" % pid)

    def close(self) -> None:
        """Kill what is left and remove the directory; returns when that is done. Idempotent."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            self._process.wait(CLEANUP_S_MAX)


def _watch(owner: int) -> set[int]:
    """Return the process groups that are alive when the owner closes the pipe or ends."""
    alive: set[int] = set()
    rest = b""
    while True:
        if not select.select([0], [], [], _PARENT_POLL_S)[0]:
            if os.getppid() != owner:
                return alive  # forked children of the dead owner keep the pipe open
            continue
        data = os.read(0, _READ_BYTES_MAX)
        if not data:
            return alive
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            (alive.add if line[:1] == b"+" else alive.discard)(int(line[1:]))


def _end(groups: set[int]) -> None:
    deadline = time.monotonic() + _GONE_S_MAX
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for group in groups:
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(_POLL_S)


def main() -> None:
    """Watch, then clean up: the arguments are the owner's process id and the directory."""
    owner, directory = int(sys.argv[1]), sys.argv[2]
    _end(_watch(owner))
    if directory:
        shutil.rmtree(Path(directory), ignore_errors=True)


if __name__ == "__main__":
    main()
