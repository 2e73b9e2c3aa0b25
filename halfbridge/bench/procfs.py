"""CPU time and memory of a process and all its descendants, from Linux's /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from halfbridge.bench.result import Usage

_PROC = Path("/proc")
_KIB_PER_MIB = 1024
_PARENT, _UTIME, _STIME = 1, 11, 12  # fields of /proc/<pid>/stat after the name


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
            return int(line.split()[1]) / _KIB_PER_MIB
    return 0.0
