"""Where and when a measurement was made: a figure without these says nothing."""

from __future__ import annotations

import os
import platform
import re
import sysconfig
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_GIB = 1 << 30
_CPU_INFO = Path("/proc/cpuinfo")
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the figures depend on.

    Attributes:
        cpu: Model of the processor.
        cores: Processors that this process may use.
        memory_gib: Memory of the machine.
        system: Operating system and its version.
        python: Version of the interpreter, and how it was built.
    """

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str

    def to_json(self) -> dict[str, Any]:
        """Return the machine as JSON; its keys are stable."""
        return asdict(self)


def this_machine() -> Machine:
    """Return what there is here."""
    found = _MODEL.search(_CPU_INFO.read_text()) if _CPU_INFO.is_file() else None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=found[1].strip() if found else platform.processor() or platform.machine(),
        cores=_cores(),
        memory_gib=round(pages / _GIB, 1),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        python=f"{platform.python_version()} ({_build()})",
    )


def now() -> str:
    """Return the date and the time of day, UTC."""
    return datetime.now(tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def load() -> tuple[float, float, float]:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    one, five, fifteen = os.getloadavg()
    return round(one, 2), round(five, 2), round(fifteen, 2)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _build() -> str:
    """Return whether the interpreter was optimised by a profile, which doubles its speed."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return "profile-guided" if "--enable-optimizations" in arguments else "not profile-guided"
