"""Asks this machine and this Python."""

from __future__ import annotations

import importlib.util
import resource
from contextlib import suppress
from pathlib import Path

from halfbridge.checker.admin.doctor.facts import Host
from halfbridge.kafka.adapter import client_versions

# Rooms of the package, each of which another package or a directory may stand in for.
_ROOMS = ("serde", "bridge", "checker")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")
_KIB = 1024
_PACKAGE = Path(__file__).parents[3]


def host_facts() -> Host:
    """Return what is known of this machine; what it does not tell is left out."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files_max = 0 if soft == resource.RLIM_INFINITY else soft
    return Host(memory_bytes(), files_max, foreign_modules(), client_versions())


def memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return how much memory a process may use; 0: not known."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = meminfo.read_text("utf-8").splitlines()
        (total,) = (line for line in lines if line.startswith("MemTotal:"))
        limits.append(int(total.split()[1]) * _KIB)
    with suppress(OSError, ValueError):  # `max` is no number, and no limit
        limits.append(int(cgroup.read_text("utf-8")))
    return min(limits, default=0)


def foreign_modules(package: Path | None = None) -> dict[str, str]:
    """Return rooms of the package that are imported from elsewhere, and from where.

    A module `serde` of another project beside this one is no trouble: ours is `halfbridge.serde`
    (ADR 14). Trouble is a directory or package `halfbridge` that has no or other rooms.

    Args:
        package: Where the package is; by default the one that this module is of.
    """
    base = package or _PACKAGE
    found = {}
    for room in _ROOMS:
        spec = importlib.util.find_spec(f"halfbridge.{room}")
        place = "nowhere" if spec is None or spec.origin is None else spec.origin
        if Path(place).parent.resolve() != (base / room).resolve():
            found[f"halfbridge.{room}"] = place
    return found
