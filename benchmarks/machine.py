"""Where and when a measurement was made: a figure without these says nothing."""

from __future__ import annotations

import os
import platform
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_GIB = 1 << 30
_CPU_INFO = Path("/proc/cpuinfo")
_LOOPS = 5  # the fastest counts: the others had neighbours
_STEPS = 50_000  # some milliseconds
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def this_machine() -> dict[str, Any]:
    """Return what the figures depend on; `cores` are the processors that this process may use.

    `python` has the interpreter's time for a loop: one that was built without profile-guided
    optimization takes 1.5 times as long.
    """
    found = _MODEL.search(_CPU_INFO.read_text()) if _CPU_INFO.is_file() else None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": found[1].strip() if found else platform.processor() or platform.machine(),
        "cores": _cores(),
        "memory_gib": round(pages / _GIB, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": f"{platform.python_version()} (loop of {_loop_us():,} us)",
    }


def now() -> str:
    return datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def load() -> tuple[float, float, float]:
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _loop_us() -> int:
    """Return the best processor time of five for one loop, as `.ci/python` measures it.

    An interpreter does not always say how it was built. Debian's Python is built with a profile,
    and its configuration does not mention the profile.
    """
    took = []
    for _ in range(_LOOPS):
        started = time.process_time_ns()
        slots: dict[int, tuple[int, str]] = {}
        for number in range(_STEPS):
            slots[number & 1023] = (number, str(number))
        took.append(time.process_time_ns() - started)
    return min(took) // 1000
