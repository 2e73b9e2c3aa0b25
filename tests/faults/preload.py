"""Shims that are preloaded into processes, to change what their C library does."""

import shutil
import subprocess
import sys
from pathlib import Path

from halfbridge.testkit.pytest_plugin import leave_out


def built(source: str, directory: Path) -> Path:
    """Return the library made of a C file in this directory; skip the test without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        leave_out("needs a C compiler on Linux, to change what a process's C library does")
    library = directory / Path(source).with_suffix(".so")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, Path(__file__).with_name(source)]
    subprocess.run(command, check=True)
    return library
