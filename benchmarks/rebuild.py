"""Measures a restart: how long a worker rebuilds what it knew of undecided transactions."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from halfbridge.bench.procfs import usage_of
from halfbridge.testkit.ports import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.run import Scene
    from halfbridge.testkit.children import Child

_FILL_S_MAX = 600.0  # a million half messages; a run that takes longer has failed
_READ_S_MAX = 600.0  # as `_FILL_S_MAX`
_ASK_S_MAX = 5.0  # the daemon answers from memory
# No transaction falls due meanwhile: checks would be measured too.
_TIMEOUT_MS = 24 * 3_600_000


def measure_rebuild(scene: Scene) -> dict[str, float]:
    """Return what a killed worker's successor takes, until it knows all undecided again."""
    count = scene.config.messages
    scene.say(f"storing {count} half messages that nobody decides")
    fill = scene.start_module("fill", "benchmarks.fill")
    scene.await_fact(fill, "stored", timeout_s=_FILL_S_MAX)
    first, _ = _read_all(scene)
    scene.children.kill(first)
    scene.say("killed the worker; its successor reads them again")
    began = time.monotonic()
    second, port = _read_all(scene)
    _await(scene, "readiness", lambda: _get(port, "/readyz") is not None)
    took_s = time.monotonic() - began
    used = usage_of(second.process.pid)
    return {
        "undecided": count,
        "rebuild_s": round(took_s, 2),
        "rss_mb_max": round(used.rss_mb_max, 2),
        "cpu_s": round(used.cpu_s, 2),
    }


def _read_all(scene: Scene) -> tuple[Child, int]:
    """Return a daemon that knows all transactions, and the port of its metrics."""
    (port,) = free_ports(1)
    daemon = scene.start_daemon(
        HALFBRIDGE_METRICS_PORT=str(port),
        HALFBRIDGE_TRANSACTION_TIMEOUT_MS=str(_TIMEOUT_MS),
    )
    _await(scene, "all half messages", lambda: _known(port) >= scene.config.messages)
    return daemon, port


def _await(scene: Scene, what: str, ready: Callable[[], bool]) -> None:
    scene.children.wait_until(ready, what=f"checker: {what}", timeout_s=_READ_S_MAX)


def _known(port: int) -> float:
    """Return how many undecided half messages the daemon knows; 0 while it does not answer."""
    lines = (_get(port, "/metrics") or "").splitlines()
    return sum(float(each.split()[-1]) for each in lines if each.startswith("rocketmq_half_mes"))


def _get(port: int, path: str) -> str | None:
    """Return what the daemon answers with status 200, else None."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=_ASK_S_MAX) as answer:
            return str(answer.read(), "utf-8")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None
