"""All workers' metrics and health on the supervisor's one port.

Each worker serves its own metrics on a loopback socket. The supervisor opens the socket before it
starts the worker. So the port is known, and stays the same over restarts.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from halfbridge.checker.status import Health

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# A worker that does not answer in this time is shown as down; scrapers give up after 10 s.
FETCH_TIMEOUT_S = 2.0
_THREADS_MAX = 16


class WorkerView:
    """What the supervisor knows of one worker at one moment.

    Attributes:
        slot: The worker's name, its `worker` label.
        port: Its loopback port.
        alive: Whether its process runs.
        restarts: How often the worker was restarted.
        given_up: Why the worker is not restarted any more; empty otherwise.
    """

    __slots__ = ("alive", "given_up", "port", "restarts", "slot")

    def __init__(
        self, slot: str, *, port: int, alive: bool, restarts: int, given_up: str = ""
    ) -> None:
        self.slot = slot
        self.port = port
        self.alive = alive
        self.restarts = restarts
        self.given_up = given_up


class FleetCollector(Collector):
    """Collects the metrics of every live worker with a `worker` label, and the supervisor's own."""

    def __init__(self, view: Callable[[], Sequence[WorkerView]]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all workers, each family once."""
        workers = self._view()
        up = GaugeMetricFamily(
            "halfbridge_worker_up", "1 while the worker answers.", labels=["worker"]
        )
        restarts = CounterMetricFamily(
            "halfbridge_worker_restarts", "Starts after the first.", labels=["worker"]
        )
        families: dict[str, Metric] = {}
        for worker, text in zip(workers, _fetch_all(workers, "/metrics"), strict=True):
            up.add_metric([worker.slot], float(text is not None))
            restarts.add_metric([worker.slot], float(worker.restarts))
            if text is not None:
                _merge(families, text, worker=worker.slot)
        yield up
        yield restarts
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registration must not ask workers that do not run yet."""
        return ()


def fleet_health(workers: Sequence[WorkerView]) -> Health:
    """Return the health of all workers: ready if all are ready, healthy if all are healthy."""
    ready, healthy = True, True
    reasons: list[str] = []
    errors: dict[int, str] = {}
    modes: set[str] = set()
    for worker, text in zip(workers, _fetch_all(workers, "/readyz"), strict=True):
        if text is None:
            ready = False
            healthy = healthy and not worker.given_up
            reasons.append(f"{worker.slot}: {worker.given_up or 'not running'}")
            continue
        body: dict[str, Any] = json.loads(text)
        ready = ready and body["ready"]
        modes.update(filter(None, (body.get("delivery"),)))
        errors.update({int(key): text for key, text in body["partition_errors"].items()})
        # A worker's `healthy` includes its partitions, which are reported separately here.
        healthy = healthy and (body["healthy"] or bool(body["partition_errors"]))
        if body["reason"]:
            reasons.append(f"{worker.slot}: {body['reason']}")
    return Health(ready, healthy, "; ".join(reasons), errors, ", ".join(sorted(modes)))


def _merge(families: dict[str, Metric], text: str, *, worker: str) -> None:
    for family in text_string_to_metric_families(text):
        merged = families.get(family.name)
        if merged is None:
            merged = families[family.name] = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            labels = {**sample.labels, "worker": worker}
            merged.add_sample(sample.name, labels, sample.value)


def _fetch_all(workers: Sequence[WorkerView], path: str) -> list[str | None]:
    with ThreadPoolExecutor(min(_THREADS_MAX, max(1, len(workers)))) as pool:
        return list(pool.map(lambda worker: _fetch(worker, path), workers))


def _fetch(worker: WorkerView, path: str) -> str | None:
    if not worker.alive:
        return None
    connection = HTTPConnection("127.0.0.1", worker.port, timeout=FETCH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
