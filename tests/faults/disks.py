"""Disks that are small, full, or slow."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from halfbridge.testkit.pytest_plugin import leave_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DISK_MIB = 192
_BALLAST_BYTES = 1 << 20


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """Mount a small file system on `path`; leaves the test out where that is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "halfbridge-test", str(path)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        leave_out(f"a small disk cannot be mounted: {error}")
    if done.returncode:
        leave_out(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(ballast: Path) -> None:
    """Write until nothing fits any more."""
    with ballast.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(_BALLAST_BYTES))
            file.flush()
