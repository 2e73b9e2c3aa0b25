"""Programs that tests call and no wheel has."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from halfbridge.testkit.pytest_plugin import leave_out

# What could not be had, by name; .ci/tools prints it. Everything else must be there in CI.
WITHOUT_VARIABLE = "HALFBRIDGE_TEST_WITHOUT"
_CALL_S_MAX = 60.0


def tool(
    name: str,
    *,
    package: str,
    places: Sequence[str] = (),
    others: Sequence[str] = (),
    how: str | None = None,
) -> str:
    """Return where a program is; leave the test out, or fail it in CI, when it is missing.

    `places` are patterns of directories below / to look in after those of PATH; of several that
    match one pattern the last by name comes first, as that is the newest version. `others` are
    names of programs that do as well. `how` says how to install what Debian does not have.
    """
    found = next(filter(None, map(shutil.which, (name, *others))), None)
    for place in places:
        beside = os.pathsep.join(map(str, sorted(Path("/").glob(place), reverse=True)))
        found = found or shutil.which(name, path=beside)
    if found is None:
        _leave_out(name, how or f"Debian's package {package} has it")
    return found


def node_file(package: str, file: str) -> Path:
    """Return a file of a package that npm has installed beside a directory of PATH.

    So `npm install --global` does; leave the test out, or fail it in CI, when it is missing.
    """
    directories = map(Path, os.environ["PATH"].split(os.pathsep))
    files = (each.parent / "lib" / "node_modules" / package / file for each in directories)
    found = next((each for each in files if each.is_file()), None)
    if found is None:
        _leave_out(package, f"npm install --global {package}")
    return found


def compose() -> list[list[str]]:
    """Return the commands that are compose here, v2 first; at least one."""
    commands = [["docker", "compose"], ["docker-compose"]]
    found = [each for each in commands if _works(*each)]
    if not found:
        _leave_out("docker-compose", "Debian's package docker-compose has it")
    return found


def _leave_out(name: str, how: str) -> NoReturn:
    reason = f"no {name}: install it ({how})"
    if name in os.environ.get(WITHOUT_VARIABLE, "").split():
        pytest.skip(f"{reason}; {WITHOUT_VARIABLE} says that it cannot be had")
    leave_out(reason)


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    done = subprocess.run(
        [*command, "version"], capture_output=True, check=False, timeout=_CALL_S_MAX
    )
    return done.returncode == 0
