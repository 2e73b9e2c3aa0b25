"""Measures what a daemon costs that has nothing to do."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.undecided import start_warm
from halfbridge.bench.procfs import usage_of
from halfbridge.bench.scene import open_scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.load import BenchConfig
    from halfbridge.bench.scene import Brokers, Scene
    from halfbridge.testkit.children import Child, Interrupts

_SETTLE_S = 5.0  # timers of the load before have run out by then
_WATCHED_S = 20.0  # at 0.5 % of a core, ten ticks of the kernel's clock
_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleResult:
    """Percent of one core, over _WATCHED_S seconds; the broker's is None if it is elsewhere."""

    worker_percent: float
    broker_percent: float | None

    @property
    def ok(self) -> bool:
        return True

    def to_json(self) -> dict[str, Any]:
        return {k: v if v is None else round(v, 2) for k, v in asdict(self).items()}


def measure_idle(
    config: BenchConfig, brokers: Brokers, *, interrupts: Interrupts, say: Callable[[str], None]
) -> IdleResult:
    with open_scene(config, brokers, interrupts=interrupts, say=say) as scene:
        daemon = start_warm(scene)
        scene.say(f"watching an idle daemon for {_WATCHED_S:g} s")
        scene.pause(_SETTLE_S)
        before, began = _used(scene, daemon), time.monotonic()
        scene.pause(_WATCHED_S)
        took_s = time.monotonic() - began
        worker, broker = (
            _PERCENT * (now - then) / took_s
            for now, then in zip(_used(scene, daemon), before, strict=True)
        )
        known = brokers.pid is not None
        return IdleResult(worker_percent=worker, broker_percent=broker if known else None)


def _used(scene: Scene, daemon: Child) -> tuple[float, float]:
    """Return the processor time of daemon and broker so far, seconds."""
    broker = scene.brokers.pid
    return usage_of(daemon.process.pid).cpu_s, usage_of(broker).cpu_s if broker else 0.0
