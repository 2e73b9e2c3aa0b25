"""Processes of a database server: run as an unprivileged user, found again, and killed."""

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_RUN_S_MAX = 120.0  # a data directory is made in 2 s; a busy disk may need longer
_KILL_S_MAX = 10.0
_LOG_LINES = 20
_UNPRIVILEGED = "nobody"  # the user of servers that root starts: database servers refuse root


class ServerError(RuntimeError):
    """A server cannot be made, did not start, or does not end; its last output is in the text."""


def new_directory() -> Path:
    """Return a temporary directory that belongs to the servers' user."""
    directory = Path(tempfile.mkdtemp(prefix="halfbridge-sql-")).resolve()
    if os.geteuid() == 0:
        shutil.chown(directory, _UNPRIVILEGED)
    return directory


def as_unprivileged(program: Path, directory: Path) -> dict[str, Any]:
    """Return Popen's options for a server's program that works in `directory`.

    When this process is root, the child is `nobody`. The child does not inherit the
    environment, whose variables for PostgreSQL would change its behaviour. It makes its temporary
    files in `directory`. A MariaDB server that starts removes all temporary tables in its directory
    for temporary files, so two servers must not share one.
    """
    environ = _environ(program) | {"TMPDIR": str(directory)}
    options: dict[str, Any] = {"cwd": directory, "env": environ}
    if os.geteuid() == 0:
        account = pwd.getpwnam(_UNPRIVILEGED)
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def run(command: Sequence[str], *, directory: Path, statements: str = "") -> None:
    """Run a server's program to its end as the servers' user, with `statements` as its input.

    Raises:
        ServerError: it failed.
    """
    done = subprocess.run(
        command,
        input=statements,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_RUN_S_MAX,
        **as_unprivileged(Path(command[0]), directory),
    )
    if done.returncode:
        last_words = "\n".join(done.stdout.splitlines()[-_LOG_LINES:])
        raise ServerError(f"{command[0]} ended with status {done.returncode}\n{last_words}")


def kill_working_in(directory: Path) -> None:
    """SIGKILL every process whose working directory is this one; return when all have ended.

    Each of PostgreSQL's processes leads a group of its own, so a kill of the first one's
    group leaves the others to notice its death, and to end later. Without a /proc they do that.
    """
    ended = select.poll()
    descriptors = [opened for each in working_in(directory) if (opened := _open(each)) is not None]
    try:
        for descriptor in descriptors:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            ended.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + _KILL_S_MAX
        left = len(descriptors)
        while left:
            gone = ended.poll(max(0.0, deadline - time.monotonic()) * 1_000)
            if not gone:
                raise ServerError(f"{left} processes in {directory} outlive a SIGKILL")
            for descriptor, _ in gone:
                ended.unregister(descriptor)
            left -= len(gone)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def working_in(directory: Path) -> list[int]:
    """Return the ids of all processes whose working directory this is; none without a /proc."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # ended, or not readable
            if link.readlink() == directory:
                found.append(int(link.parent.name))
    return found


def _environ(program: Path) -> dict[str, str]:
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    # A package that was unpacked and not installed (.ci/tools) has its libraries beside it.
    prefix = next((each for each in program.parents if each.name == "usr"), Path("/usr"))
    if prefix != Path("/usr"):
        libraries = [*prefix.glob("lib/*-linux-gnu"), *prefix.parent.glob("lib/*-linux-gnu")]
        environ["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    return environ


def _open(process_id: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.pidfd_open(process_id)
    return None
