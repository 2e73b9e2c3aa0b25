"""Measures what a daemon costs that has nothing to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.undecided import start_warm
from halfbridge.bench.procfs import usage_of

if TYPE_CHECKING:
    from halfbridge.bench.run import Scene
    from halfbridge.testkit.children import Child

_SETTLE_S = 5.0  # timers of the load before have run out by then
_WATCHED_S = 20.0  # at 0.5 % of a core, ten ticks of the kernel's clock
_PERCENT = 100


def measure_idle(scene: Scene) -> dict[str, float | None]:
    """Return percent of a core over _WATCHED_S; the broker's is None if it is elsewhere."""
    daemon = start_warm(scene)
    scene.say(f"watching an idle daemon for {_WATCHED_S:g} s")
    scene.pause(_SETTLE_S)
    before, began = _used(scene, daemon), time.monotonic()
    scene.pause(_WATCHED_S)
    took_s = time.monotonic() - began
    worker, broker = (
        round(_PERCENT * (now - then) / took_s, 2)
        for now, then in zip(_used(scene, daemon), before, strict=True)
    )
    known = scene.brokers.pid is not None
    return {"worker_percent": worker, "broker_percent": broker if known else None}


def _used(scene: Scene, daemon: Child) -> tuple[float, float]:
    """Return the processor time of daemon and broker so far, seconds."""
    broker = scene.brokers.pid
    return usage_of(daemon.process.pid).cpu_s, usage_of(broker).cpu_s if broker else 0.0
