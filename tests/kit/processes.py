"""What runs on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


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


def is_running(pid: int) -> bool:
    """Tell whether a process of that id runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
