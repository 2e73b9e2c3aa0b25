"""What runs on this machine."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# Places in /proc/<pid>/stat behind the command's name, see proc(5): the fields 3 and 22 of all.
_STATE, _START = 0, 19


def children_of(parent: int) -> list[int]:
    """Return the process ids of a process's living children, oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            # The command's name stands in parentheses and may hold anything.
            state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


def kill_pid(pid: int) -> None:
    """End a process by SIGKILL, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Tell whether a process of that id runs (a zombie does not)."""
    return bool(running([pid]))


def running(pids: Iterable[int]) -> set[tuple[int, str]]:
    """Return (process id, start in clock ticks since boot) of those that run; zombies do not.

    The start tells a process from a later process or thread to which the system gave the same id.
    """
    found = set()
    for pid in pids:
        with suppress(OSError):  # there is none
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[_STATE] not in "ZX":
                found.add((pid, fields[_START]))
    return found
