"""The health and the metrics that a process shows."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from halfbridge.checker.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a process at one moment.

    Attributes:
        ready: Whether the process works, or would work if there was work.
        healthy: Whether nothing needs an operator, apart from `partition_errors`.
        reason: Why the process is not ready or not healthy; empty otherwise.
        partition_errors: Partition -> why the partition is stopped, or has been waiting for long.
        delivery: All modes of delivery of its workers; empty where nothing is delivered.
    """

    ready: bool = False
    healthy: bool = True
    reason: str = "starting"
    partition_errors: dict[int, str] = field(default_factory=dict)
    delivery: str = ""

    @property
    def all_well(self) -> bool:
        """Tell whether nothing needs an operator."""
        return self.healthy and not self.partition_errors


class Status:
    """The health and the metrics of a process; one thread writes, the HTTP threads read."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.metrics = Metrics() if metrics is None else metrics
        self._lock = threading.Lock()
        self._ready, self._not_ready_reason = False, "starting"
        self._problems: dict[str, str] = {}
        self._partition_errors: dict[int, str] = {}
        self._delivery = ""

    def set_delivery(self, delivery: str) -> None:
        """Set the mode of delivery, for health and metrics."""
        with self._lock:
            self._delivery = delivery
        self.metrics.delivers(delivery)

    def set_ready(self, *, ready: bool, reason: str = "") -> None:
        """Set whether the process works; `reason` says why not."""
        with self._lock:
            self._ready, self._not_ready_reason = ready, reason

    def set_problem(self, what: str, reason: str) -> None:
        """Set why `what` needs an operator; an empty reason: it no longer does."""
        with self._lock:
            was_ill = self._problems.pop(what, "")
            if reason:
                self._problems[what] = reason
            if bool(was_ill) != bool(reason):
                self.metrics.unhealthy(dict.fromkeys(self._problems, 1))

    def stop_partition(self, partition: int, error: str) -> None:
        """Record why `partition` is stopped, or has been waiting for too long."""
        with self._lock:
            self._partition_errors[partition] = error

    def keep_partitions(self, partitions: Iterable[int]) -> None:
        """Forget the errors of all other partitions, which were revoked."""
        with self._lock:
            kept = self._partition_errors.keys() & set(partitions)
            self._partition_errors = {each: self._partition_errors[each] for each in kept}

    def clear_partition(self, partition: int) -> None:
        """Forget the error of `partition`."""
        with self._lock:
            self._partition_errors.pop(partition, None)

    def snapshot(self) -> Health:
        """Return the present health."""
        with self._lock:
            reason = "; ".join(self._problems.values()) or self._not_ready_reason
            errors = dict(self._partition_errors)
            return Health(self._ready, not self._problems, reason, errors, self._delivery)


class HealthBody(TypedDict, total=False):
    """The JSON object of /healthz and /readyz."""

    ready: bool
    healthy: bool
    reason: str
    partition_errors: dict[str, str]
    delivery: str


def health_body(health: Health) -> HealthBody:
    """Return `health` as the JSON object of /healthz and /readyz."""
    errors = {str(key): text for key, text in sorted(health.partition_errors.items())}
    body: HealthBody = {
        "ready": health.ready,
        "healthy": health.all_well,
        "reason": health.reason,
        "partition_errors": errors,
    }
    return {**body, "delivery": health.delivery} if health.delivery else body
