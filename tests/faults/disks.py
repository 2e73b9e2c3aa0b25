"""Disks that are small, full, or slow; what an operator sees of them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from halfbridge.testkit.pytest_plugin import leave_out
from tests.faults.stage import Stage

_DOCTOR_S = 120.0
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


def doctor_codes(stage: Stage) -> set[str]:
    """Return the codes of what `halfbridge doctor` finds."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "halfbridge", "doctor", "--json"),
            *("--bootstrap-servers", stage.direct, "--topic-prefix", stage.prefix),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=_DOCTOR_S,
    )
    return {each["code"] for each in json.loads(done.stdout)["findings"]}
