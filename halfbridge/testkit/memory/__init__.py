"""Kafka in the memory of one process: brokers, clients, threads and time, all deterministic.

`MemoryStack` is a whole installation for the tests of a service. `every_crash` runs such a test
once for each `Step` at which the service may die. The broker alone is in `machine`. Names are
imported on first use: modules of this package are also imported without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.lazy import lazy_names

if TYPE_CHECKING:
    from halfbridge.testkit.memory.crash import CrashNotReachedError, Step
    from halfbridge.testkit.memory.process import ProcessDeadError
    from halfbridge.testkit.memory.stack import DisagreementError, MemoryStack, every_crash

__all__ = [
    "CrashNotReachedError",
    "DisagreementError",
    "MemoryStack",
    "ProcessDeadError",
    "Step",
    "every_crash",
]

_MODULES = tuple(f"{__name__}.{each}" for each in ("process", "crash", "stack"))
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
