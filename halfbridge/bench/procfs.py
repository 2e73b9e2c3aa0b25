"""CPU time and memory of a process and all its descendants, from Linux's /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from halfbridge.bench.result import Usage
from halfbridge.serde.units import KIB

_PROC = Path("/proc")
_PARENT, _UTIME, _STIME = 1, 11, 12  # fields of /proc/<pid>/stat after the name
_ADDRESS, _STATE, _INODE = 1, 3, 9  # fields of /proc/net/tcp
_LISTENING = "0A"


def usage_of(pid: int) -> Usage:
    """Return the CPU seconds and the maximum of the resident memory so far.

    Zeros without /proc, and for a process that has ended.
    """
    cpu_s, rss_mb = 0.0, 0.0
    for each in (pid, *_descendants(pid)):
        with suppress(OSError, IndexError, ValueError):
            fields = _stat(each)
            ticks = int(fields[_UTIME]) + int(fields[_STIME])
            cpu_s += ticks / os.sysconf("SC_CLK_TCK")
            rss_mb = max(rss_mb, _peak_rss_mb(each))
    return Usage(cpu_s, rss_mb)


def listening_pid(port: int) -> int | None:
    """Return the process that listens on a TCP port; None if there is none, or without /proc."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for link in _PROC.glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(link.readlink()) in sockets:
                return int(link.parts[2])
    return None


def _listening_inodes(port: int) -> list[str]:
    found = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                listens = fields[_STATE] == _LISTENING
                if listens and int(fields[_ADDRESS].rpartition(":")[2], 16) == port:
                    found.append(fields[_INODE])
    return found


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents.setdefault(int(_stat(int(entry.name))[_PARENT]), []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def _stat(pid: int) -> list[str]:
    # The name may contain blanks and parentheses; the fields follow the last parenthesis.
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _peak_rss_mb(pid: int) -> float:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / KIB
    return 0.0
