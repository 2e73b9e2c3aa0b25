"""Processes with a wrong clock."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halfbridge.testkit.pytest_plugin import leave_out

_SOURCE = Path(__file__).with_name("wrong_clock.c")
_LONG = struct.Struct("l")


def clock_library(directory: Path) -> Path:
    """Compile the shim that moves a process's wall clock; leave the test out where it cannot be."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        leave_out("needs a C compiler on Linux, to give a process a wrong clock")
    built = directory / "wrong_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, _SOURCE], check=True)
    return built


class MovingClock:
    """A clock that a test moves while processes live by it.

    Args:
        directory: Keeps the shim, and the file that says how wrong the clock is.
    """

    def __init__(self, directory: Path) -> None:
        self._library = clock_library(directory)
        self._file = directory / "wrong_clock_s"
        self.move(0)

    @property
    def environ(self) -> dict[str, str]:
        """What a process that lives by it is started with."""
        return {"LD_PRELOAD": str(self._library), "WRONG_CLOCK_FILE": str(self._file)}

    @contextmanager
    def lived_by(self) -> Iterator[None]:
        """Have processes that are started here live by it."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environ.items():
                patch.setenv(name, value)
            yield

    def move(self, shift_s: int) -> None:
        """Have it be so many seconds ahead of the true one from now on."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as out:
            out.write(_LONG.pack(shift_s))
